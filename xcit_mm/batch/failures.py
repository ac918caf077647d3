"""Failures of a process that predicts: printed when they happen, counted, and distinguished from its own failure."""

import contextlib
from pathlib import Path

from ..prediction.predictor import Predictor
from ..utils.images import read_image
from .reading import Video
from .results import try_or_message
from .run import Run
from .shards import DamagedShard

SUSPECT = "in flight when a process died, and not yet predicted again"
PRINTED = 3  # failures; more are printed at the end of the run
STREAK = 10  # failures in a row, after which an input that did not fail is predicted again


class WorkerStopped(RuntimeError):
    """Error of a process that fails on inputs which another process has predicted. Its shards stay pending."""


class FailureCounter:
    """Counts the failures of a process.

    After 10, 20, 40, ... failures in a row, it predicts an input again that has not failed, in any process. If that
    input fails, the reason is the process, for example because a folder is not mounted, and not the inputs.
    """

    def __init__(self, run: Run, predictor: Predictor) -> None:
        self._run, self._predictor, self._maximum = run, predictor, run.execution.max_failures
        self._failures, self._streak = 0, 0
        self._predicted: int | None = None  # the last input without a failure
        self._shards: list[int] = []  # those that began in the streak

    def start_shard(self, shard: int) -> None:
        self._shards.append(shard)

    def add(self, number: int, error: str | None) -> None:
        """Count an input.

        Raises:
            WorkerStopped: If the failures are those of the process. The shards of failures alone are pending again.
            RuntimeError: If there are more failures than the maximum.
        """
        if error is None:
            self._predicted, self._streak, self._shards = number, 0, []
            return
        if error == SUSPECT:
            return
        self._failures += 1
        self._streak += 1
        if self._failures <= PRINTED:
            self._run.report(f"failed: {self._run.inputs[number].path}: {error}")
        if self._maximum is not None and self._failures > self._maximum:
            raise RuntimeError(f"more than {self._maximum} failures, the last {self._run.inputs[number].path}: {error}")
        checks, remainder = divmod(self._streak, STREAK)
        if remainder == 0 and checks & (checks - 1) == 0 and (reason := self._find_own_failure()):
            for shard in self._shards:
                self._run.shard_path(shard).unlink(missing_ok=True)
            raise WorkerStopped(
                f"{self._streak} inputs failed in a row, and then one that was predicted before, {reason}"
            )

    def _find_own_failure(self) -> str | None:
        number = self._find_predicted() if self._predicted is None else self._predicted
        if number is None:
            return None
        input_, loading = self._run.inputs[number], self._run.model.loading

        def predict() -> None:
            if input_.size is not None:
                Path(input_.path).open().close()
            else:
                image = next(iter(Video(input_.path))) if input_.is_video else read_image(input_.path, **loading)
                self._predictor(image)

        error = try_or_message(predict)
        return None if error is None else f"{input_.path}: {error}"

    def _find_predicted(self) -> int | None:
        for shard in range(len(self._run.shards)):
            with contextlib.suppress(DamagedShard):
                for record in self._run.records(shard, brief=True):
                    if record.error is None:
                        return record.number
        return None
