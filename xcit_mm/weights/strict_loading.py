"""Strict loading in mmengine's runs: `load_from`, testing and resuming."""

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..utils.compat import is_resuming, is_training_run
from .bands import FILL_HINT, check_stem_rule
from .matching import BandMismatch, HeadMismatch, match_model

__all__ = ["StrictLoadHook"]


@HOOKS.register_module()
class StrictLoadHook(Hook):
    """Makes mmengine load a whole detector, segmentor or classifier, or raise before it loads anything.

    It acts on `load_from`, testing and resuming: every parameter and buffer of the model must be in
    the file, with its shape, and nothing may be left over. A file of a backbone alone is refused,
    since the heads would stay random: that is what `init_cfg` is for.

    Args:
        strict_heads: False lets heads of other shapes, such as for other classes, keep their
            initial values where training begins from `load_from`, and lists them. Testing and
            resuming are strict all the same.
        fill_stem: 'rgb-mean', 'rgb-zero' or 'mean': the rule of `xcit_mm.weights.bands.stem_for_bands` that
            makes a stem for the model's `in_channels` where training begins from a `load_from` of a model
            for RGB. A file that has as many bands as the model loads as it is.

    Raises:
        ValueError: If there is no such rule.
    """

    priority = "VERY_HIGH"  # before a hook copies the checkpoint's tensors, as EMAHook does by their names

    def __init__(self, strict_heads: bool = True, fill_stem: str | None = None) -> None:
        check_stem_rule(fill_stem)
        self.strict_heads = strict_heads
        self.fill_stem = fill_stem

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check the checkpoint against the model, and give its tensors their published names.

        Raises:
            CheckpointMismatch: A ValueError, if the checkpoint does not fit, with the model as it was.
        """
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        begins_training = is_training_run(runner) and not is_resuming(runner)
        strict_heads, fill_stem = (self.strict_heads, self.fill_stem) if begins_training else (True, None)
        try:
            checkpoint["state_dict"] = match_model(model, checkpoint, strict_heads, fill_stem)
        except BandMismatch as error:
            if not begins_training:
                raise
            raise BandMismatch(f"{error}; to fine-tune on other bands, StrictLoadHook with {FILL_HINT}") from None
        except HeadMismatch as error:
            if not (begins_training and self.strict_heads):
                raise
            raise HeadMismatch(f"{error}; to fine-tune on other classes, StrictLoadHook(strict_heads=False)") from None
