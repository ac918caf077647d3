"""Prediction of suspects, the inputs that were in flight when a process died, one at a time in another process."""

import json
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
from .workers import load_engine

__all__ = ["predict_suspects"]


def predict_suspects(run: Run) -> None:
    """Predict the suspects of a run. An input from which its process dies twice is recorded as a failure.

    Raises:
        RuntimeError: If the model cannot be loaded, or the disk is full.
    """
    if run.deferred():
        print(
            f"{len(run.deferred())} inputs were in flight when a process died: predicting each alone", file=sys.stderr
        )
    execution = asdict(run.execution) | dict(workers=1, batch_size=1, max_failures=None)
    argument = json.dumps([str(run.out), execution, asdict(run.drawing)])
    environment = os.environ | dict(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    while run.deferred():
        before = run.suspects
        command = [sys.executable, "-W", "ignore", "-m", __name__, argument]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
            code = process.wait()
        run.read_suspects()
        if code > 0 or (code and run.suspects == before):
            raise RuntimeError(
                f"the process that predicts inputs alone ended with code {code}: its error is printed above"
            )


def _main(argument: str) -> None:
    """Predict the suspects until the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of stdin ends this process
    out, execution, drawing = json.loads(argument)
    run = open_run(Path(out), Execution(**execution), Drawing(**drawing))
    current: tuple[int, int] | None = None

    def end_with_parent() -> None:
        os.read(0, 1)
        if current in run.suspects:
            run.suspects[current] -= 1  # the parent's end is not its fault
            run.save_suspects()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        engine = load_engine(run, lambda inputs, frames: None)
        for current in run.deferred():
            run.suspects[current] += 1
            run.save_suspects()
            engine.predict_alone(*current)
            del run.suspects[current]
            run.save_suspects()
    except LoaderDied:
        os.kill(os.getpid(), signal.SIGKILL)
    except Exception as error:
        sys.exit(reason(error))


if __name__ == "__main__":
    _main(sys.argv[1])
