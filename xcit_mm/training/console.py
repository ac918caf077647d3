"""The console of a run: progress, scores and the path of the log, which holds the rest."""

import os
from collections.abc import Mapping
from numbers import Real
from typing import Any, TextIO

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from tqdm import tqdm

from ..utils.cli import print_line, progress_bar

_WINDOW = 10  # iterations over which loss and time are averaged


class ConsoleHook(Hook):
    """Shows the progress of a training or a test, and writes the scores of a test to `output`."""

    priority = "LOWEST"  # after the hooks that compute and save what is shown

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def before_train(self, runner: Runner) -> None:
        sizes = f"{len(runner.train_dataloader.dataset)} images for training"
        if runner.val_loop is not None:
            sizes += f", {len(runner.val_dataloader.dataset)} for validation"
        self._start(runner, sizes, runner.max_iters)

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        self._progress.show(runner.iter + 1, _describe_iteration(runner))

    def after_val_iter(self, runner: Runner, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        batches = len(runner.val_dataloader)
        self._progress.show(runner.iter, f"validation {batch_idx + 1}/{batches}")

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        scores = _list_scores(metrics)
        main_scores = [score for score in scores if score[0].endswith(("mAP", "mAP_50"))]
        line = ", ".join(f"{name} {score:.4g}" for name, score in main_scores or scores[:4])
        _print_once(f"validation after iteration {runner.iter}: {line or 'no scores'}")

    def after_train(self, runner: Runner) -> None:
        self._progress.close()

    def before_test(self, runner: Runner) -> None:
        sizes = f"{len(runner.test_dataloader.dataset)} images"
        self._start(runner, sizes, len(runner.test_dataloader))

    def after_test_iter(self, runner: Runner, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        self._progress.show(batch_idx + 1)

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self._progress.close()
        if is_main_process():
            for name, score in _list_scores(metrics):
                print(f"{name}  {score:.4g}", file=self._output)

    def _start(self, runner: Runner, sizes: str, iterations: int) -> None:
        _print_once(f"{sizes}; log: {os.path.relpath(runner.log_dir)}/{runner.timestamp}.log")
        self._progress = _Progress(iterations)


class _Progress:
    """A bar in a terminal, elsewhere a line for each tenth."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._tenth = 0
        fields = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"
        no_bar = None if is_main_process() else True  # None: without a terminal
        self._bar = progress_bar(total, "it", bar_format=fields, disable=no_bar)
        self.close = self._bar.close

    def show(self, done: int, state: str = "") -> None:
        """Show how many iterations are done, and what they do."""
        tenth = 10 * done // self._total
        if not self._bar.disable:
            self._bar.n = done
            self._bar.set_postfix_str(state)
        elif tenth > self._tenth:
            self._tenth = tenth
            _print_once(f"{done}/{self._total}  {state}".rstrip())


def _print_once(line: str) -> None:
    if is_main_process():
        print_line(line)


def _describe_iteration(runner: Runner) -> str:
    """Describe loss, learning rate and time of the last iterations."""
    scalars = runner.message_hub.log_scalars
    parts = [f"loss {scalars['train/loss'].mean(_WINDOW):.4g}"]
    if "train/lr" in scalars:  # not with several optimizers
        parts.append(f"lr {scalars['train/lr'].current():.3g}")
    if "train/time" in scalars:  # of IterTimerHook
        seconds = scalars["train/time"].mean(_WINDOW)
        time_left = tqdm.format_interval(seconds * (runner.max_iters - runner.iter - 1))
        parts.append(f"{seconds:.3g} s/it  {time_left} left")
    return "  ".join(parts)


def _list_scores(metrics: Mapping[str, Any] | None) -> list[tuple[str, float]]:
    """List the scores over all classes: name, without the prefix of the metric, and value."""
    return [
        (name.rpartition("/")[2], float(score))
        for name, score in (metrics or {}).items()
        if isinstance(score, Real) and not name.endswith("_precision")  # of mmdet's single classes
    ]
