"""The published recipes: learning rate, and weight decay of every parameter."""

from torch import Tensor, nn

DECAY = dict(mask_rcnn=0.05, semantic_fpn=0.01, upernet=0.01)
LEARNING_RATE = dict(mask_rcnn=1e-4, semantic_fpn=6e-5, upernet=6e-5)


def decays(task: str, model: nn.Module) -> dict[str, tuple[Tensor, float]]:
    """Return each parameter and its weight decay, which is 0 in LayerNorm only."""
    return {
        f"{prefix}.{name}": (parameter, 0.0 if isinstance(module, nn.LayerNorm) else DECAY[task])
        for prefix, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
    }
