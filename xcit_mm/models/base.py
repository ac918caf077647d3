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
    """`BaseModule` that an `init_cfg` of type 'Pretrained' fills completely, or raises.

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
        """Set the mode, but keep frozen modules, and BatchNorm under `norm_eval`, in eval mode."""
        super().train(mode)
        for module in self.frozen_modules():
            module.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, BatchNorm):
                    module.eval()
        return self

    def init_weights(self) -> None:
        """Initialise by `init_cfg`; a second call changes nothing, as in mmengine.

        A pretrained checkpoint fills the whole trunk, or raises and changes nothing.
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
        """Return the initialisations by mmengine, and the options of those from a checkpoint."""
        cfgs = [self.init_cfg] if isinstance(self.init_cfg, dict) else self.init_cfg or []
        by_mmengine = []
        from_checkpoint = []
        for cfg in cfgs:
            if "type" not in cfg:
                raise ValueError(f"init_cfg={cfg} has no type: for weights it is 'Pretrained'")
            if cfg["type"] in ("Pretrained", PretrainedInit):
                from_checkpoint.append({name: cfg[name] for name in cfg if name != "type"})
            else:
                by_mmengine.append(cfg)
        required, *optional = self.pretrained_options
        for options in from_checkpoint:
            if required not in options or not set(options) <= {required, *optional}:
                raise ValueError(
                    f"init_cfg with {', '.join(options)}: give {required} and, if needed, "
                    f"{' or '.join(optional)}; the layout is recognised"
                )
            check_stem_rule(options.get("fill_stem"))
        return by_mmengine, from_checkpoint
