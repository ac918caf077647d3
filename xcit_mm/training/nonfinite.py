"""A stop at values that are not finite, with the module and the images they come from."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from ..utils.compat import TORCH
from ..utils.errors import preview
from ..weights.strict_load import unwrapped


def is_finite(value: Any) -> bool:
    """Return whether all floating-point tensors of nested dicts, lists and tuples are finite."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    return not isinstance(value, Tensor) or bool(value.isfinite().all())


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """Stops a training if its gradients or its loss are not finite.

    Gradients are checked before the optimizer steps. All processes raise a FloatingPointError.
    Each names the images of its last iteration, and the first module with a non-finite output,
    which it finds by running the images again. If it finds none, gradients that accumulate may
    come from images of an earlier iteration. A step that a loss scaler skips is not an error if
    the loss is finite.
    """

    priority = "HIGH"  # before other hooks save or log the iteration

    def before_train(self, runner: Runner) -> None:
        if TORCH < (2, 3) and runner.cfg.get("compile"):
            problem = f"torch {torch.__version__} does not check gradients of compiled models"
            raise ValueError(f"{problem}: set compile=False, or take torch 2.3 or newer")
        self._runner: Any = runner
        self._runner.optim_wrapper.optimizer.register_step_pre_hook(self._check_gradients)

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        self._batch = data_batch

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self._check(outputs["loss"])

    def _check_gradients(self, optimizer: Any, *_: Any) -> None:
        if getattr(optimizer, "found_inf", 0):
            return  # a fused optimizer skips this step itself
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        # In float16, the sum of many finite values may be infinite.
        self._check(torch.stack([gradient.sum(dtype=torch.float32) for gradient in gradients]))

    def _check(self, value: Tensor) -> None:
        """Raise FloatingPointError if a value is not finite in any process."""
        all_finite = value.isfinite().all().float()
        all_reduce(all_finite, op="min")
        if not all_finite:
            samples = self._batch.get("data_samples") or ()
            # Semi-supervised training has a dict of lists, in which no image is named.
            paths = [sample.get("img_path") for sample in samples if hasattr(sample, "get")]
            source = f"{self._find_source()} at {preview(paths) or 'images without paths'}"
            raise FloatingPointError(f"iteration {self._runner.iter}: {source}")

    @torch.no_grad()
    def _find_source(self) -> str:
        """Describe the first non-finite value, at the precision of the training."""
        model = self._runner.model
        precision = self._runner.optim_wrapper.optim_context(model)
        model = unwrapped(model)
        names = {module: name for name, module in model.named_modules() if name}
        batch = model.data_preprocessor(self._batch, training=True)
        sources = [] if is_finite(batch) else ["the input"]

        def inspect(module: nn.Module, inputs: Any, output: Any) -> None:
            if module in names and not is_finite(output):
                sources.append(f"the output of {names[module]} ({type(module).__name__})")

        # All processes run it, since modules such as SyncBN wait for each other. A loss may raise.
        with precision, register_module_forward_hook(inspect), suppress(Exception):
            model.forward(**batch, mode="loss")
        if not sources:
            return "loss or gradients are not finite, here or in another process or iteration"
        return f"{sources[0]} is the first that is not finite"
