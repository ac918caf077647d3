"""Layer-wise learning-rate decay for fine-tuning."""

from operator import itemgetter
from typing import Any

from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS


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

    The `backbone` of the model must be one from this package.

    Raises:
        KeyError: If `layer_decay_rate` is missing.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        # Here, since mmengine does not call `add_params` if `paramwise_cfg` is empty.
        self._rate = self.paramwise_cfg["layer_decay_rate"]

    def add_params(
        self,
        params: list[dict],
        module: Any,
        prefix: str = "",
        is_dcn_module: int | float | None = None,
    ) -> None:
        super().add_params(params, module, prefix, is_dcn_module)
        if prefix:  # mmengine calls this method for every submodule, and last for the model
            return
        # 1 in the last block, most in the stem. Neck and heads, whose depth is 0, are left out.
        depths = {
            parameter: depth
            for depth, stage in enumerate(reversed(module.backbone.stages()), start=1)
            for part in stage
            for parameter in part.parameters()
        }
        for group in params:
            (parameter,) = group["params"]  # mmengine makes a group for each parameter
            group["lr"] = group.get("lr", self.base_lr) * self._rate ** depths.get(parameter, 0)
        # mmengine lists a layer that two heads share twice. The log shows the first rate.
        unique = {group["params"][0]: group for group in params}
        params[:] = sorted(unique.values(), key=itemgetter("lr"), reverse=True)
