"""Prediction in another process: of suspects, the inputs that were in flight when a process died, and with a limit."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

from ..utils.errors import reason
from .loading import LoaderDied
from .options import Drawing, Execution
from .run import Run, open_run
from .workers import load_engine, run_local


def run_with_timeout(run: Run) -> None:
    """Predict the pending shards in another process, and start it again when it exceeds the time limit or dies.

    Raises:
        RuntimeError: If the process ends with an error of its own.
    """
    while run.to_predict():
        before, code = set(run.suspects), _run_process(run, "pending")
        run.collect_suspects()
        if code == 0:
            return
        _check(code, set(run.suspects) != before)
        print(f"the process that predicts died ({_signal_name(code)}): starting it again", file=sys.stderr)


def predict_suspects(run: Run) -> None:
    """Predict the suspects of a run. An input from which its process dies twice is recorded as a failure.

    Raises:
        RuntimeError: If the model cannot be loaded, or the disk is full.
    """
    if run.deferred():
        print(
            f"{len(run.deferred())} inputs were in flight when a process died: predicting each alone", file=sys.stderr
        )
    while run.deferred():
        before, code = run.suspects, _run_process(run, "suspects")
        run.suspects = run.read_suspects()
        died = {key for key, deaths in run.suspects.items() if deaths != before[key]}
        if code == -signal.SIGALRM and died:
            run.suspects |= dict.fromkeys(died, f"it takes longer than {run.execution.timeout:g} seconds")
            run.save_suspects()
        elif code:
            _check(code, bool(died))


def _run_process(run: Run, task: str) -> int:
    """Run `_main` to its end, and return its exit code."""
    execution = run.execution if task == "pending" else replace(run.execution, workers=0, max_failures=None)
    argument = json.dumps([str(run.out), asdict(execution), asdict(run.drawing), task])
    environment = os.environ | dict(PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    command = [sys.executable, "-W", "ignore", "-m", __name__, argument]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.communicate(b"\n")
            raise


def _check(code: int, has_new_suspects: bool) -> None:
    if code > 0 or not has_new_suspects:
        raise RuntimeError(f"the process that predicts ended with {_signal_name(code)}: its error is printed above")


def _signal_name(code: int) -> str:
    return f"code {code}" if code > 0 else signal.Signals(-code).name


def _main(argument: str) -> None:
    """Predict the pending shards, or each suspect alone. Ctrl-C is left to the parent, which writes a line to stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.default_int_handler)
    out, execution, drawing, task = json.loads(argument)
    run = open_run(Path(out), Execution(**execution), Drawing(**drawing))
    current: tuple[int, int] | None = None

    def end_with_parent() -> None:
        if os.read(0, 1) and task == "pending":
            os.kill(os.getpid(), signal.SIGUSR1)  # keeps the completed records
            return
        if current is not None and isinstance(deaths := run.suspects.get(current), int):
            run.suspects[current] = deaths - 1  # the parent's end is not its fault
            run.save_suspects()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        if task == "pending":
            run_local(run)
            return
        engine = load_engine(run, lambda inputs, frames: None)
        for current in run.deferred():
            if isinstance(deaths := run.suspects[current], int):
                run.suspects[current] = deaths + 1
            run.save_suspects()
            engine.predict_alone(*current)
            del run.suspects[current]
            run.save_suspects()
    except LoaderDied:
        os.kill(os.getpid(), signal.SIGKILL)
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        sys.exit(reason(error))


if __name__ == "__main__":
    _main(sys.argv[1])
