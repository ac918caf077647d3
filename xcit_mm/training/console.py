"""What a run prints: progress, scores of validations, and the path of the log with the rest."""

import io
import os
import sys
from numbers import Real
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from ..utils.output import progress_bar, say, without_shared_prefix
from ..utils.ranks import is_first

_WINDOW = 10  # iterations over which the loss is averaged


class ConsoleHook(Hook):
    """Shows the progress of a training or a test."""

    priority = "LOWEST"  # after the hooks that compute and save what is shown

    def before_train(self, runner: Runner) -> None:
        self._start(runner, runner.max_iters, runner.iter)

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        scalars = runner.message_hub.log_scalars
        loss = scalars["train/loss"].mean(_WINDOW)
        rate = scalars["train/lr"].current()
        self._show(1, f"loss {loss:.4g}  lr {rate:.3g}")

    def after_val_iter(self, runner: Runner, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        self._show(0, f"validation {batch_idx + 1}/{len(runner.val_dataloader)}")

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float]) -> None:
        scores = {key: value for key, value in metrics.items() if isinstance(value, Real)}
        main_scores = [key for key in scores if key.endswith(("mAP", "mAP_50"))]
        shown = main_scores or list(scores)[:4]
        names = zip(without_shared_prefix(shown), shown, strict=True)
        line = ", ".join(f"{name} {scores[key]:.4g}" for name, key in names)
        say(f"validation after iteration {runner.iter}: {line or 'no scores'}")

    def after_train(self, runner: Runner) -> None:
        self._bar.close()

    def before_test(self, runner: Runner) -> None:
        self._start(runner, len(runner.test_dataloader))

    def after_test_iter(self, runner: Runner, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        self._show(1)

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self._bar.close()

    def _start(self, runner: Runner, iterations: int, done: int = 0) -> None:
        say(f"log: {os.path.relpath(runner.log_dir)}/{runner.timestamp}.log")
        self._is_terminal = sys.stderr.isatty()
        file = sys.stderr if self._is_terminal else io.StringIO()
        self._bar = progress_bar(iterations, "it", initial=done, file=file, disable=not is_first())

    def _show(self, done: int, state: str = "") -> None:
        """Advance the bar. Without a terminal, write a line after each tenth of the run instead."""
        tenth = 10 * self._bar.n // self._bar.total
        self._bar.set_postfix_str(state, refresh=False)
        self._bar.update(done)
        if self._is_terminal:
            self._bar.refresh()
        elif 10 * self._bar.n // self._bar.total > tenth:
            say(str(self._bar))
