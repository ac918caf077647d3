"""Prediction of suspects, the inputs that were in flight when a process died, one at a time in another process."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from ..utils.errors import reason
from .loading import LoaderDied
from .options import Drawing, Execution
from .run import Run, open_run
from .workers import Job

__all__ = ["predict_suspects"]


def predict_suspects(job: Job, run: Run) -> None:
    """Predict the suspects of a run. An input from which its process dies twice is recorded as a failure.

    Raises:
        RuntimeError: If the model cannot be loaded, or the disk is full.
    """
    if not run.deferred():
        return
    print(f"{len(run.deferred())} inputs were in flight when a process died: predicting each alone", file=sys.stderr)
    execution = asdict(job.execution) | dict(workers=1, batch_size=1, max_failures=None)
    argument = json.dumps([job.out, job.config, job.checkpoint, execution, asdict(job.drawing)])
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-W", "ignore", "-m", __name__, argument]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | dict(PYTHONPATH=path)) as process:
        code = process.wait()
    if code:
        raise RuntimeError(f"the process that predicts inputs alone ended with code {code}: its error is printed above")


def _main(argument: str) -> int:
    """Predict the suspects in a child process, and replace it when it dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of stdin ends this process
    out, config, checkpoint, execution, drawing = json.loads(argument)
    job = Job(out, config, checkpoint, Execution(**execution), Drawing(**drawing))
    stdin = os.dup(0)  # multiprocessing closes stdin
    run = open_run(Path(out))
    while run.deferred():
        before = run.suspects
        process = multiprocessing.get_context("fork").Process(target=_predict, args=(job, run, stdin))
        process.start()
        process.join()
        run = open_run(run.out)
        if process.exitcode and (process.exitcode > 0 or run.suspects == before):
            return abs(process.exitcode)
    return 0


def _predict(job: Job, run: Run, stdin: int) -> None:
    current: tuple[int, int] | None = None

    def end_with_parent() -> None:
        os.read(stdin, 1)
        if current in run.suspects:
            run.suspects[current] -= 1  # the parent's end is not its fault
            run.save_suspects()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        engine = job.engine(run, lambda inputs, frames: None, job.execution.device)
        for current in run.deferred():
            run.suspects[current] += 1
            run.save_suspects()
            engine.predict_alone(*current)
            del run.suspects[current]
            run.save_suspects()
    except Exception as error:
        if isinstance(error, LoaderDied):
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(reason(error))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
