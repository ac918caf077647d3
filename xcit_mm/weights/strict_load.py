"""The hook that loads a whole model in mmengine."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..utils.compat import is_resuming, is_training_run, running_dataset
from ..utils.errors import preview
from ..utils.output import log_line
from .class_names import as_names, check_same_classes, learned_classes
from .matching import match_model


@HOOKS.register_module()
class StrictLoadHook(Hook):
    """Loads a whole detector, segmentor or classifier in mmengine, or raises and loads nothing.

    It acts when a training starts from `load_from`, when a run resumes, and in a test. The file
    must hold every parameter and buffer of the model with its shape. Other tensors are an error
    too, except for class attention, blocks after the last tap, and levels of the pyramid that the
    model does not have. If the file names its classes, they must be those of the data, in the same
    order.

    Args:
        strict_heads: False lets a training that starts from `load_from` have other classes. Layers
            of the heads that the file does not have, or has in other shapes, keep their initial
            values, and a message lists them. Layers that only the file has are left out.
        fill_stem: Whether `stem_for_bands` makes a stem for the model's `in_channels` when a
            training starts from a file for RGB.
        prefix: What precedes the model's names in the file of `load_from`, such as 'teacher.'.
    """

    # EMAHook copies the checkpoint's tensors by their names, so this hook runs before it.
    priority = "VERY_HIGH"

    def __init__(
        self, strict_heads: bool = True, fill_stem: bool = False, prefix: str | None = None
    ) -> None:
        self.options = dict(strict_heads=strict_heads, fill_stem=fill_stem, prefix=prefix)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check the checkpoint against the model, and give its tensors the model's names.

        Raises:
            ValueError: If the checkpoint does not fit.
        """
        learned = learned_classes(checkpoint)
        metainfo = getattr(running_dataset(runner), "metainfo", {})
        classes = as_names(metainfo.get("classes"))
        starts = is_training_run(runner) and not is_resuming(runner)
        if not starts or self.options["strict_heads"]:
            check_same_classes("the checkpoint", learned, classes)
        elif learned and classes and learned != classes:
            other = f"the file has learned other classes, {preview(learned)}"
            log_line(f"{other}: only layers of equal shapes start from their weights")
        options: dict[str, Any] = self.options if starts else {}
        checkpoint["state_dict"] = match_model(unwrapped(runner.model), checkpoint, **options)


def unwrapped(model: Any) -> Any:
    """Return a model without DDP and test-time augmentation, in which names have a prefix."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model
