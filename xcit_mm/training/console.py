"""The console of a run: progress, scores and what this package says. The rest is in the log."""

import io
import logging
import math
import os
import re
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from numbers import Real
from typing import Any, TextIO

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.runner import Runner
from tqdm import tqdm

from ..utils.cli import print_line, progress_bar
from ..utils.compat import ScriptRunner, add_hooks_to_runs, file_handlers
from ..weights.work_dirs import BEST

_WINDOW = 10  # iterations over which loss and time are averaged
_MAX_UNWRITTEN = 1_000_000  # characters that wait for a log file, which only the first process has
_PAUSE = 10  # seconds between lines of a test without a terminal
# Of COCO's twelve scores, the mean over overlaps and the score at half an overlap.
_MAIN_SCORE = re.compile(r"mAP(_50)?$")
_CLASS_SUFFIX = "_precision"  # of mmdet's score of a single class


class ConsoleHook(Hook):
    """Shows the progress of a training or a test, and writes the scores of a test to `output`."""

    priority = "LOWEST"  # after the hooks that compute and save what is shown

    def __init__(self, output: TextIO) -> None:
        self.table = ""  # the last table of scores by class that the library has logged
        self._best_table = ""  # of a segmentor: the report has that of a detector
        self._output = output
        self._bars: list[_ProgressBar] = []  # of a training, and of a validation in it
        self._former_best: dict[str, Any] = {}  # checkpoints before a validation

    def before_train(self, runner: Runner) -> None:
        line = f"{_describe_size(runner.train_dataloader.dataset)} for training"
        if runner.val_loop is not None:
            line += f", {len(runner.val_dataloader.dataset)} for validation"
        _print_once(f"{line}; log: {_log_file(runner)}")
        self._bars.append(_ProgressBar(runner.max_iters, done=runner.iter))

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        self._bars[-1].show(runner.iter + 1, _describe_iteration(runner))

    def after_train(self, runner: Runner) -> None:
        self.close()
        if self._best_table:
            _print_once(f"classes in the best validation:{self._best_table}")

    def before_val_epoch(self, runner: Runner) -> None:
        self._former_best = _best_checkpoints(runner)
        # In a terminal, the validation has a bar. Elsewhere it has no lines of progress.
        bar = _ProgressBar(len(runner.val_dataloader), name="validation ", pause=math.inf)
        self._bars.append(bar)

    def after_val_iter(self, runner: Runner, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        self._bars[-1].show(batch_idx + 1)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self._bars.pop().close()
        metrics = metrics or {}
        is_best = _best_checkpoints(runner) != self._former_best
        # The metrics of a detector have scores of classes, which the run's report shows.
        if is_best and not any(name.endswith(_CLASS_SUFFIX) for name in metrics):
            self._best_table = self.table
        scores = _list_overall_scores(metrics)
        main_scores = [score for score in scores if _MAIN_SCORE.search(score[0])] or scores[:4]
        line = ", ".join(f"{name} {score:.4g}" for name, score in main_scores) or "no scores"
        end = ", the best so far" if is_best else ""
        _print_once(f"validation after iteration {runner.iter}: {line}{end}")

    def before_test(self, runner: Runner) -> None:
        _print_once(f"{_describe_size(runner.test_dataloader.dataset)}; log: {_log_file(runner)}")
        bar = _ProgressBar(len(runner.test_dataloader), name="test ", pause=_PAUSE)
        self._bars.append(bar)

    after_test_iter = after_val_iter

    def after_test_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        self._bars.pop().close()
        if is_main_process():
            scores = _list_overall_scores(metrics or {})
            width = max((len(name) for name, _ in scores), default=0)
            lines = [f"{name:{width}}  {score:.4g}" for name, score in scores]
            print("\n".join([self.table, *lines]).strip(), file=self._output)

    def close(self) -> None:
        """Remove the bars."""
        while self._bars:
            self._bars.pop().close()


class _ProgressBar:
    """A bar in a terminal, elsewhere a line for each tenth, at least `pause` seconds apart.

    The bar of a part of a run, which has a name, disappears at its end.
    """

    def __init__(self, total: int, done: int = 0, name: str = "", pause: float = 0) -> None:
        self._total = max(total, 1)
        self._shown_tenth = 10 * done // self._total
        self._name = name
        self._pause = pause
        self._shown_at = time.monotonic()
        self._bar: tqdm | None = None
        if sys.stderr.isatty() and is_main_process():
            fields = "{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"
            options = dict(initial=done, bar_format=fields, leave=not name)
            self._bar = progress_bar(total, "it", desc=name or None, **options)

    def show(self, done: int, state: str = "") -> None:
        """Show how many iterations are done, and the text `state`. Lines have a minimum pause."""
        if self._bar is not None:
            self._bar.set_postfix_str(state, refresh=False)
            self._bar.update(done - self._bar.n)
            return
        tenth = 10 * done // self._total
        now = time.monotonic()
        if tenth > self._shown_tenth and now - self._shown_at >= self._pause:
            self._shown_tenth = tenth
            self._shown_at = now
            _print_once(f"{self._name}{done}/{self._total}  {state}".rstrip())

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _print_once(line: str) -> None:
    if is_main_process():
        print_line(line)


def _describe_size(dataset: Any) -> str:
    """Return the number of images as text, and of classes if the data set names its classes."""
    classes = (getattr(dataset, "metainfo", None) or {}).get("classes")
    class_count = f" of {len(classes)} classes" if isinstance(classes, Sequence) else ""
    return f"{len(dataset)} images{class_count}"


def _describe_iteration(runner: Runner) -> str:
    """Describe loss, learning rate, time and memory of the last iterations."""
    scalars = runner.message_hub.log_scalars
    parts = []
    if "train/loss" in scalars:
        parts.append(f"loss {scalars['train/loss'].mean(_WINDOW):.4g}")
    if "train/lr" in scalars:
        parts.append(f"lr {scalars['train/lr'].current():.3g}")
    if "train/time" in scalars:
        seconds = scalars["train/time"].mean(_WINDOW)
        time_left = tqdm.format_interval(seconds * (runner.max_iters - runner.iter - 1))
        parts += [f"{seconds:.3g} s/it", f"{time_left} left"]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if torch.cuda.is_available():
        memory = torch.cuda.max_memory_allocated()
    return "  ".join([*parts, f"{memory / 1e9:.1f} GB"])


def _best_checkpoints(runner: Runner) -> dict[str, Any]:
    info = runner.message_hub.runtime_info
    return {key: value for key, value in info.items() if key.startswith(BEST)}


def _list_overall_scores(metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    """List scores over all classes: name, without the prefix of the metric, and value."""
    return [
        (name.rpartition("/")[2], float(score))
        for name, score in metrics.items()
        if isinstance(score, Real) and not name.endswith(_CLASS_SUFFIX)
    ]


def _log_file(runner: Runner) -> str:
    paths = [handler.baseFilename for handler in file_handlers(runner.logger)]
    return os.path.relpath(paths[0]) if paths else "none"


class _LogStream(io.TextIOBase):
    """A stream into the log file of the run, from the start of the program on."""

    def __init__(self) -> None:
        self._unwritten = ""  # until there is a file

    def write(self, output: str) -> int:
        """Write into the log file of the run, or keep the output until the run has a log file."""
        self._unwritten = (self._unwritten + output)[-_MAX_UNWRITTEN:]
        for handler in file_handlers(MMLogger.get_current_instance()):
            if handler.stream is not None:
                handler.stream.write(self._unwritten)
                handler.stream.flush()
                self._unwritten = ""
        return len(output)


class _ScreenHandler(logging.Handler):
    """Shows errors of the library's log, and lines of this package."""

    def __init__(self, hook: ConsoleHook) -> None:
        super().__init__()
        self._hook = hook

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message.startswith("\n+-"):  # the library's table of scores by class
            self._hook.table = message
        if record.levelno >= logging.ERROR:
            print_line(message)  # of any process
        elif getattr(record, "on_screen", False):  # a line of this package
            _print_once(message)


@contextmanager
def console_of_run() -> Iterator[None]:
    """Show what a person reads of a run of mmengine, and write the rest into its log file.

    The rest is the library's log, its prints and its warnings. Its errors are shown.
    """
    hook = ConsoleHook(sys.stdout)
    log = _LogStream()

    def show_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any
    ) -> None:
        log.write(warnings.formatwarning(message, category, filename, lineno))

    with add_hooks_to_runs(hook), warnings.catch_warnings(), redirect_stdout(log):
        warnings.showwarning = show_warning  # type: ignore[assignment]
        ScriptRunner.screen = _ScreenHandler(hook)
        logger = MMLogger.get_current_instance()  # until the run has its own
        handlers = logger.handlers
        logger.handlers = [ScriptRunner.screen]
        try:
            yield
        finally:
            hook.close()
            logger.handlers = handlers
            ScriptRunner.screen = None
