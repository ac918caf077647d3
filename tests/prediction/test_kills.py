"""Killed, hung and crashed processes: the next start completes the folder, each image once."""

import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.runs import merged, read_records, run, start_infer, torchrun

from xcit_mm.prediction import Item, reading
from xcit_mm.prediction.engine import CRASHED
from xcit_mm.prediction.journal import Journal
from xcit_mm.prediction.preprocessing import Preprocessing
from xcit_mm.prediction.results import Results


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("", 0))
        return server.getsockname()[1]


def start_ranks(arguments: tuple, log: Path, ranks: int) -> list:
    """Start a command in one process, or in the ranks of torchrun."""
    if ranks == 1:
        return [start_infer(arguments, log)]
    shared = dict(WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    return [
        start_infer(arguments, log, RANK=rank, LOCAL_RANK=rank, **shared) for rank in range(ranks)
    ]


def wait_until(condition: Callable[[], bool], processes: list) -> None:
    """Wait until a condition holds, or a process has ended."""
    while all(process.exitcode is None for process in processes) and not condition():
        time.sleep(0.01)


def objects_of(results: dict) -> list[float]:
    """Return boxes and scores of `merged` results, which batches of other images round."""
    images = [result for name, result in sorted(results.items()) if name != "files"]
    return [
        number
        for _, _, objects in images
        for found in objects
        for number in (*found["bbox"], found["score"])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["det", "seg"])
def test_kills_at_twenty_random_moments_lose_and_repeat_nothing(
    kind, ranks, command, photos, tmp_path, out
):
    for number in range(8):
        shutil.copytree(photos, tmp_path / "in" / str(number))
    fresh = tmp_path / "fresh"
    log = tmp_path / "log"
    options = ("--batch-size", 2)
    start_infer([*command(tmp_path / "in", kind=kind, out=fresh)[1:], *options], log).join(300)
    arguments = (*command(tmp_path / "in", kind=kind)[1:], *options)
    chosen = random.Random(ranks)
    counts = set()
    for _ in range(20):
        processes = start_ranks(arguments, log, ranks)
        wanted = len(read_records(out)) + ranks * chosen.randint(3, 16)
        wait_until(lambda wanted=wanted: len(read_records(out)) >= wanted, processes)
        time.sleep(chosen.uniform(0, 0.1))
        for process in chosen.sample(processes, ranks):  # torchrun ends the other ranks
            process.kill()
            process.join()
        counts.add(len(read_records(out)))
    processes = start_ranks(arguments, log, ranks)
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * ranks, log.read_text()[-2000:]
    assert len(counts) >= 4, counts  # the kills came while records were written
    records = read_records(out)
    assert len({record["path"] for record in records}) == 96
    assert not any("error" in record for record in records)
    results = merged(out)
    expected = merged(fresh)
    assert results.keys() == expected.keys() and results["files"] == expected["files"]
    assert objects_of(results) == pytest.approx(objects_of(expected), abs=1e-3)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".png", ".jpg"}
    assert not any(path.name.startswith(".") for path in files)


def test_two_ranks_of_torchrun_share_a_folder(command, photos, out):
    ended = run(*torchrun(free_port()), *command(photos)[1:])
    assert ended.returncode == 0 and ended.stdout.count("12 predicted") == 1, ended.stderr[-2000:]
    assert len(list((out / "journal").iterdir())) == 2
    assert len(read_records(out)) == 12


FATAL = """
import os, sys, signal
sys.path.insert(0, {tools!r})
import xcit_mm.prediction.preprocessing as preprocessing
read = preprocessing.Preprocessing.read
def fatal(self, image):
    if str(image).endswith(("03.png", "05.png")):
        os.kill(os.getpid(), signal.SIGKILL)
    return read(self, image)
preprocessing.Preprocessing.read = fatal
import infer
if __name__ == "__main__":
    sys.exit(infer.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "killed"), [(0, -9), (2, 1)])
def test_two_images_that_kill_their_process_fail_and_all_others_are_predicted(
    workers, killed, command, photos, tmp_path, out
):
    script = tmp_path / "fatal.py"
    script.write_text(FATAL.format(tools=str(ROOT / "tools")))
    options = ("--workers", workers, "--no-visualizations")
    codes = []
    while len(codes) < 12 and 3 not in codes:
        ended = run(sys.executable, script, *command(photos, kind="det")[1:], *options)
        codes.append(ended.returncode)
    assert codes == [*[killed] * (len(codes) - 1), 3] and len(codes) <= 9
    records = {record["name"]: record.get("error") for record in read_records(out)}
    assert len(records) == 12
    failures = {name: error for name, error in records.items() if error}
    assert failures == {"03.png": CRASHED, "05.png": CRASHED}


def note_deaths(out: Path, photo: Path, count: int) -> None:
    """Write the journals of processes that died while they predicted a photo."""
    for _ in range(count):
        Journal(out).start(Item(str(photo), photo.name))


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_an_image_is_tried_last_and_given_up_at_the_third_death(deaths, command, photos, call, out):
    options = ("--no-visualizations",)
    assert call(*command(photos / "11.png"), *options)[0] == 0
    note_deaths(out, photos / "00.png", deaths)
    code, printed, errors = call(*command(photos), *options)
    records = read_records(out)
    assert len(records) == 12 and records[-1]["name"] == "00.png"  # the last
    if deaths < 3:
        assert code == 0 and "error" not in records[-1]
        return
    assert code == 3 and "11 predicted, 1 failed" in printed and CRASHED in errors
    assert call(*command(photos), *options)[0] == 3 and len(read_records(out)) == 12
    retried = call(*command(photos), *options, "--retry-failed")
    assert retried[0] == 0  # by then the memory may be free


def test_a_kill_right_after_the_start_forgets_no_death(command, photos, call, out, monkeypatch):
    assert call(*command(photos / "02.png"))[0] == 0
    for name in ("00.png", "01.png"):
        note_deaths(out, photos / name, 2)

    def interrupt(self: Journal, item: Item) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "start", interrupt)
        assert call(*command(photos / "0[0-2].png"))[0] == 130
    note_deaths(out, photos / "01.png", 1)
    code, _, errors = call(*command(photos / "0[0-2].png"))
    assert code == 3 and "01.png: " + CRASHED in errors and "00.png: " not in errors


def test_an_error_that_is_no_items_fault_is_no_death(command, photos, call, refusal, monkeypatch):
    """A disk that is full, say, at each of four starts."""

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Results, "draw", fail)
        for _ in range(4):
            assert "No space left on device" in refusal(*command(photos / "00.png"))
    assert call(*command(photos / "00.png"))[0] == 0


def test_a_hanging_image_ends_the_process_that_reads(command, photos, call, refusal, monkeypatch):
    read = Preprocessing.read

    def hang(self: Preprocessing, image: object) -> object:
        if str(image).endswith("05.png"):
            time.sleep(60)
        return read(self, image)

    monkeypatch.setattr(Preprocessing, "read", hang)
    monkeypatch.setattr(reading, "TIMEOUT", 2)
    arguments = (*command(photos), "--workers", 1)
    for _ in range(3):
        assert "timed out after 2 seconds" in refusal(*arguments)
    code, printed, errors = call(*arguments)
    assert code == 3 and "11 predicted, 1 failed" in printed and CRASHED in errors


def test_a_second_process_in_the_folder_is_refused_until_the_first_ends(
    command, photos, refusal, call, tmp_path, out
):
    first = start_infer(command(photos)[1:], tmp_path / "log")
    wait_until(lambda: bool(list(out.rglob("*.jsonl"))), [first])
    os.kill(first.pid, signal.SIGSTOP)
    try:
        assert f"another process writes into {out}" in refusal(*command(photos / "00.png"))
    finally:
        os.kill(first.pid, signal.SIGCONT)
    first.join(120)
    assert first.exitcode == 0, (tmp_path / "log").read_text()[-2000:]
    assert call(*command(photos))[0] == 0 and len(read_records(out)) == 12


def test_an_incomplete_last_line_is_ignored_and_a_damaged_line_is_named(
    command, photos, call, refusal, out
):
    arguments = command(photos / "00.png")
    assert call(*arguments)[0] == 0
    (journal,) = (out / "journal").iterdir()
    complete = journal.read_bytes()
    journal.write_bytes(complete[:-10])
    assert call(*arguments)[0] == 0
    journal.write_bytes(complete[:-10] + b"\n")
    assert f"{journal}, line 2 is damaged" in refusal(*arguments)
