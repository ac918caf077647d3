"""Layer-wise learning-rate decay for fine-tuning."""

from operator import itemgetter

from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from ..models import Backbone


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, with lower learning rates towards the image, as in BEiT.

    The rate of a parameter in layer l is lr * layer_decay_rate ** (depth + 1 - l), times the
    factors of mmengine's own rules (`custom_keys`, ...). The stem and the positional encoding are
    layer 0, block n (from 0) is layer n + 1, and pyramid, neck and heads are layer depth + 1. Set
    `optim_wrapper=dict(constructor='LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.8, ...), ...)`.

    Raises:
        ValueError: If the model has not exactly one backbone of this package.
    """

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
    """Return the depth of each parameter of the trunk: 1 in the last block, most in the stem."""
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
