"""Layer-wise learning-rate decay for fine-tuning."""

from operator import itemgetter

from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from ..models import Backbone


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, with learning rates that fall towards the image, as in BEiT.

    A parameter in layer l gets the rate lr * layer_decay_rate ** (depth + 1 - l), times the
    factors from mmengine's own rules (`custom_keys`, ...). Layer 0 is the stem and the positional
    encoding, layer n + 1 is block n, counted from 0, and layer depth + 1 is everything after the
    trunk: pyramid, neck and heads. In a config::

        optim_wrapper = dict(
            constructor="LayerDecayOptimWrapperConstructor",
            paramwise_cfg=dict(layer_decay_rate=0.8),
        )

    Raises:
        ValueError: If the rate of the decay or of the optimizer is missing, or if the model does
            not have exactly one backbone from this package.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        if "layer_decay_rate" not in self.paramwise_cfg or self.base_lr is None:
            raise ValueError("layer decay: give paramwise_cfg.layer_decay_rate and optimizer.lr")

    def add_params(
        self,
        params: list[dict],
        module: nn.Module,
        prefix: str = "",
        is_dcn_module: int | float | None = None,
    ) -> None:
        super().add_params(params, module, prefix, is_dcn_module)
        if prefix:  # mmengine calls this method for every submodule, and last for the model
            return
        rate = self.paramwise_cfg["layer_decay_rate"]
        depths = _find_depths(module)  # without neck and heads, whose depth is 0
        for group in params:
            (parameter,) = group["params"]  # mmengine makes a group for each parameter
            group["lr"] = group.get("lr", self.base_lr) * rate ** depths.get(parameter, 0)
        # mmengine lists a layer that two heads share twice. The log shows the first rate.
        unique = {group["params"][0]: group for group in params}
        params[:] = sorted(unique.values(), key=itemgetter("lr"), reverse=True)


def _find_depths(model: nn.Module) -> dict[nn.Parameter, int]:
    """Return the depth of each parameter in the trunk: 1 in the last block, most in the stem."""
    backbones = [module for module in model.modules() if isinstance(module, Backbone)]
    if len(backbones) != 1:
        count = f"{type(model).__name__} has {len(backbones)} backbones of this package"
        raise ValueError(f"{count}: layer decay needs exactly one")
    return {
        parameter: depth
        for depth, stage in enumerate(reversed(backbones[0].stages()), start=1)
        for module in stage
        for parameter in module.parameters()
    }
