"""Strict loading in mmengine's runs: `load_from`, testing and resuming."""

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import BaseLoop, Runner

from .matching import HeadMismatch, match_model

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
    """

    def __init__(self, strict_heads: bool = True) -> None:
        self.strict_heads = strict_heads

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check the checkpoint against the model, and give its tensors their published names.

        Raises:
            CheckpointMismatch: A ValueError, if the checkpoint does not fit, with the model as it was.
        """
        model = runner.model
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        # A runner builds its training loop only to train.
        begins_training = isinstance(runner._train_loop, BaseLoop) and not runner._resume
        try:
            checkpoint["state_dict"] = match_model(model, checkpoint, self.strict_heads or not begins_training)
        except HeadMismatch as error:
            if not (begins_training and self.strict_heads):
                raise
            raise HeadMismatch(f"{error}; to fine-tune on other classes, StrictLoadHook(strict_heads=False)") from None
