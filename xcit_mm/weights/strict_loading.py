"""Strict loading in mmengine's runs: `load_from`, testing and resuming."""

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..utils.compat import is_resuming, is_training_run
from .bands import check_stem_rule
from .matching import BandMismatch, HeadMismatch, match_model


@HOOKS.register_module()
class StrictLoadHook(Hook):
    """Loads a whole detector, segmentor or classifier in mmengine, or raises before anything is loaded.

    It acts on `load_from`, testing and resuming. The file must hold every parameter and buffer of the model with its
    shape, and nothing else. It rejects the file of a backbone alone, with which the heads would stay random;
    `init_cfg` loads such a file.

    Args:
        strict_heads: False lets heads of other shapes, for example for other classes, keep their initial values when
            training starts from `load_from`, and lists them. Testing and resuming stay strict.
        fill_stem: Rule of `xcit_mm.weights.bands.stem_for_bands`, 'rgb-mean', 'rgb-zero' or 'mean', that makes a stem
            for the model's `in_channels` when training starts from a `load_from` of a model for RGB. A file with as
            many bands as the model loads unchanged.

    Raises:
        ValueError: If the rule is unknown.
    """

    priority = "VERY_HIGH"  # before a hook copies the checkpoint's tensors, as EMAHook does by their names

    def __init__(self, strict_heads: bool = True, fill_stem: str | None = None) -> None:
        check_stem_rule(fill_stem)
        self.strict_heads = strict_heads
        self.fill_stem = fill_stem

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check the checkpoint against the model, and give its tensors the names of the model.

        Raises:
            CheckpointMismatch: A ValueError, if the checkpoint does not fit. The model stays unchanged.
        """
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        starts_training = is_training_run(runner) and not is_resuming(runner)
        strict_heads, fill_stem = (self.strict_heads, self.fill_stem) if starts_training else (True, None)
        try:
            checkpoint["state_dict"] = match_model(model, checkpoint, strict_heads, fill_stem)
        except (BandMismatch, HeadMismatch) as error:
            if not starts_training or (isinstance(error, HeadMismatch) and not strict_heads):
                raise
            raise type(error)(f"{error}; to fine-tune, StrictLoadHook with {error.remedy}") from None
