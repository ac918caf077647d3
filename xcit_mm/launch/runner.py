"""mmengine's Runner as this package starts it."""

import io
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from mmengine.logging import MMLogger
from mmengine.runner import Runner

# Starts of mmengine's warnings on what its own hooks and metrics do.
_NOT_SHOWN = ('"FileClient" will be', '"HardDiskBackend" is', "The prefix is not set in metric")


class QuietRunner(Runner):
    """A Runner of whose log warnings, errors and lines of this package appear on the screen.
    Gradients that accumulate are a part of the batch, by whose size learning rates are scaled.
    """

    def build_logger(self, *args: Any, **options: Any) -> MMLogger:
        def is_shown(record: logging.LogRecord) -> bool:
            if record.getMessage().startswith(_NOT_SHOWN):
                return False
            return record.levelno >= logging.WARNING or hasattr(record, "on_screen")

        logger = super().build_logger(*args, **options)
        for handler in logger.handlers:
            if type(handler) is logging.StreamHandler:
                handler.addFilter(is_shown)
                handler.setStream(sys.stderr)
        return logger

    def scale_lr(self, optim_wrapper: Any, auto_scale_lr: dict | None = None) -> None:
        if auto_scale_lr and "base_batch_size" in auto_scale_lr:
            count = (self.cfg.get("optim_wrapper") or {}).get("accumulative_counts", 1)
            images = auto_scale_lr["base_batch_size"] / count  # of an iteration
            auto_scale_lr = dict(auto_scale_lr, base_batch_size=images)
        super().scale_lr(optim_wrapper, auto_scale_lr)

    def dump_config(self) -> None:
        """Write nothing before the first checkpoint: a folder has the config of its checkpoints."""

    def save_checkpoint(self, *args: Any, **options: Any) -> None:
        super().save_checkpoint(*args, **options)
        super().dump_config()


@contextmanager
def print_into_log(runner: Runner) -> Iterator[None]:
    """Write what libraries print, Python's warnings and an error's traceback into the log file of a
    run.
    """
    handlers = runner.logger.handlers
    files = [handler.stream for handler in handlers if isinstance(handler, logging.FileHandler)]
    log: Any = files[0] if files else io.StringIO()  # only the first process has a file
    with redirect_stdout(log), warnings.catch_warnings():
        warnings.showwarning = lambda *args: print(warnings.formatwarning(*args[:4]))
        try:
            yield
        except Exception:
            traceback.print_exc(file=log)
            log.flush()
            raise
