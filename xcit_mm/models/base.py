"""What OpenMMLab expects of a backbone: `init_cfg`, frozen stages, BatchNorm in eval mode."""

from mmengine.model import BaseModule
from mmengine.model.weight_init import PretrainedInit
from torch import nn

from ..utils.compat import BatchNorm, log_initialization_to_file_only
from ..weights.bands import check_stem_rule
from ..weights.matching import load_pretrained

InitCfg = dict | list[dict] | None


@log_initialization_to_file_only
class Backbone(BaseModule):
    """`BaseModule` that an `init_cfg` of type 'Pretrained' fills completely, by `load_pretrained`,
    or raises.

    Raises:
        TypeError: If an argument is unknown.
        ValueError: If `init_cfg` has no type or an option that `load_pretrained` does not have.
    """

    # Options of an `init_cfg` of type 'Pretrained'. The first is required.
    pretrained_options: tuple[str, ...] = ("checkpoint", "use_ema", "fill_stem")
    init_cfg: InitCfg
    norm_eval: bool

    def __init__(self, init_cfg: InitCfg = None, **unknown: object) -> None:
        if unknown:
            hint = "help() lists them; forgot _delete_=True over a base config's backbone?"
            raise TypeError(f"{type(self).__name__} has no argument {', '.join(unknown)}: {hint}")
        super().__init__(init_cfg)
        self._split_init_cfg()  # raises now what would otherwise be raised after the data is read

    def frozen_modules(self) -> list[nn.Module]:
        """Return the modules that training does not change."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> "Backbone":
        """Set the training mode. Frozen modules, and BatchNorm under `norm_eval`, stay in eval
        mode.
        """
        super().train(mode)
        for module in self.frozen_modules():
            module.eval()
        for module in self.modules() if self.norm_eval else ():
            if isinstance(module, BatchNorm):
                module.eval()
        return self

    def init_weights(self) -> None:
        """Initialise by `init_cfg`. A pretrained checkpoint fills the whole trunk, or raises and
        changes nothing.

        A second call changes nothing, as in mmengine.
        """
        if self.is_init:  # type: ignore[has-type]  # BaseModule's
            super().init_weights()  # which warns
            return
        init_cfg = self.init_cfg
        self.init_cfg, pretrained = self._split_init_cfg()
        try:
            super().init_weights()
            for options in pretrained:
                load_pretrained(self, **options)
        except Exception:
            self.is_init = False  # a second call must try again
            raise
        finally:
            self.init_cfg = init_cfg

    def _split_init_cfg(self) -> tuple[list[dict], list[dict]]:
        """Return the initialisations that mmengine performs, and the options of those from a
        checkpoint.
        """
        cfgs = [self.init_cfg] if isinstance(self.init_cfg, dict) else self.init_cfg or []
        for cfg in cfgs:
            if "type" not in cfg:
                raise ValueError(f"init_cfg={cfg} has no type: for weights it is 'Pretrained'")
        pretrained = [cfg for cfg in cfgs if cfg["type"] in ("Pretrained", PretrainedInit)]
        options = [
            {name: value for name, value in cfg.items() if name != "type"} for cfg in pretrained
        ]
        required, *optional = self.pretrained_options
        for cfg in options:
            if required not in cfg or not set(cfg) <= {required, *optional}:
                raise ValueError(
                    f"init_cfg with {', '.join(cfg)}: give {required} and, if needed, {' or '.join(optional)}; "
                    "the layout is recognised"
                )
            check_stem_rule(cfg.get("fill_stem"))
        return [cfg for cfg in cfgs if cfg not in pretrained], options
