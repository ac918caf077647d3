"""The hook that loads a whole model in mmengine, each class by its name."""

from contextlib import suppress
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..utils.cli import log_line
from ..utils.compat import is_resuming, is_training_run
from ..utils.configs import read_config
from .bands import check_fill_stem
from .classes import (
    ClassNames,
    check_same_classes,
    configured_classes,
    learned_classes,
    plain_names,
)
from .matching import CheckpointMismatch, match_model
from .zoo import find_config


@HOOKS.register_module()
class StrictLoadHook(Hook):
    """Loads a whole detector, segmentor or classifier in mmengine, or raises and loads nothing.

    It acts on `load_from`, testing and resuming. The file must hold every parameter and buffer of
    the model with its shape, and nothing else. The file of a backbone alone is for `init_cfg`.

    A class is its name: at the start of a training, rows of the heads are moved to the numbers that
    their classes have in the training data, and a resumed run must have the file's classes.

    Args:
        strict_heads: False lets rows of new classes, and heads of other shapes, keep their initial
            values when training starts from `load_from`, and lists them.
        fill_stem: Whether `xcit_mm.weights.bands.stem_for_bands` makes a stem for the model's
            `in_channels` when training starts from the file of a model for RGB.

    Raises:
        ValueError: If `fill_stem` is not True or False.
    """

    # Before a hook copies the checkpoint's tensors, as EMAHook does by their names.
    priority = "VERY_HIGH"

    def __init__(self, strict_heads: bool = True, fill_stem: bool = False) -> None:
        check_fill_stem(fill_stem)
        self.strict_heads = strict_heads
        self.fill_stem = fill_stem

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check the checkpoint against the model, and give its tensors the names of the model, or
        raise CheckpointMismatch.
        """
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        options: dict[str, Any] = {}
        if is_training_run(runner):
            dataset = runner.train_dataloader.dataset
            classes = plain_names(getattr(dataset, "metainfo", {}).get("classes"))
            if is_resuming(runner):
                try:
                    check_same_classes("the checkpoint", learned_classes(checkpoint), classes)
                except ValueError as error:
                    raise CheckpointMismatch(str(error)) from None
            else:
                options = dict(strict_heads=self.strict_heads, fill_stem=self.fill_stem)
                options["names"] = _pair_names(runner, checkpoint, classes) if classes else None
        checkpoint["state_dict"] = match_model(model, checkpoint, **options)


def _pair_names(runner: Runner, checkpoint: dict, classes: tuple[str, ...]) -> ClassNames | None:
    """Return the classes of a checkpoint and of the training that starts from it, and log how they
    differ. Return None if neither the checkpoint nor the config beside it names its classes.
    """
    in_file = learned_classes(checkpoint)
    name = runner.cfg.get("load_from")
    if in_file is None and name:
        with suppress(ValueError, OSError):  # a file without a config beside it
            in_file = configured_classes(read_config(find_config(name)))
    if in_file is None:
        log_line("the checkpoint does not name its classes: heads of equal shapes keep their rows")
        return None
    names = ClassNames(in_file, classes)
    if in_file != classes:
        log_line(names.describe())
    return names
