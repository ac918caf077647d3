"""Killed, hung and crashed processes: the next start completes the folder, each image once."""

import os
import random
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.runs import merged, model_of, read_records, run, start_infer, torchrun

from xcit_mm.prediction import Item, reading
from xcit_mm.prediction.engine import CRASHED
from xcit_mm.prediction.journal import Journal
from xcit_mm.prediction.preprocessing import Preprocessing
from xcit_mm.prediction.results import Results


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("", 0))
        return server.getsockname()[1]


@pytest.fixture
def many(photos, tmp_path) -> Path:
    folder = tmp_path / "many"
    for number in range(8):
        shutil.copytree(photos, folder / str(number))
    return folder


def start_ranks(command: list, log: Path, ranks: int) -> list:
    """Start the command in one process, or in the ranks of torchrun."""
    if ranks == 1:
        return [start_infer(command, log)]
    shared = dict(WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    return [
        start_infer(command, log, RANK=rank, LOCAL_RANK=rank, **shared) for rank in range(ranks)
    ]


def wait_for_work(processes: list, out: Path, known: set[Path]) -> None:
    """Wait until each process has begun to predict, or a process has ended."""
    while all(process.exitcode is None for process in processes):
        if len(set(out.rglob("*.jsonl")) - known) == len(processes):
            return
        time.sleep(0.01)


def wait_for_records(processes: list, out: Path, number: int) -> None:
    """Wait until a folder has so many records, or a process has ended."""
    while all(process.exitcode is None for process in processes):
        if len(read_records(out)) >= number:
            return
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["det", "seg"])
def test_kills_at_twenty_random_moments_lose_and_repeat_nothing(
    kind, ranks, models, many, tmp_path
):
    command = [many, *model_of(models[kind]), "--batch-size", 2, "--out"]
    undisturbed = start_infer([*command, tmp_path / "fresh"], tmp_path / "log")
    undisturbed.join(300)
    chosen = random.Random(ranks)
    counts = set()
    for _ in range(20):
        processes = start_ranks([*command, tmp_path / "out"], tmp_path / "log", ranks)
        wanted = len(read_records(tmp_path / "out")) + ranks * chosen.randint(3, 16)
        wait_for_records(processes, tmp_path / "out", wanted)
        time.sleep(chosen.uniform(0, 0.1))
        for process in chosen.sample(processes, ranks):  # torchrun ends the other ranks
            process.kill()
            process.join()
        counts.add(len(read_records(tmp_path / "out")))
    processes = start_ranks([*command, tmp_path / "out"], tmp_path / "log", ranks)
    for process in processes:
        process.join(300)
    log = (tmp_path / "log").read_text()[-2000:]
    assert [process.exitcode for process in processes] == [0] * ranks, log
    assert len(counts) >= 4, counts  # the kills came while records were written
    records = read_records(tmp_path / "out")
    assert len({record["path"] for record in records}) == 96
    assert not any("error" in record for record in records)
    assert_equal_up_to_rounding(merged(tmp_path / "out"), merged(tmp_path / "fresh"))
    left = {path.suffix for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert left <= {".json", ".jsonl", ".png", ".jpg"}, left
    assert not any(path.name.startswith(".") for path in (tmp_path / "out").rglob("*"))


def assert_equal_up_to_rounding(found: object, expected: object) -> None:
    """Batches of other images round differently."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected.keys() - {"segmentation"}:
            assert_equal_up_to_rounding(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_equal_up_to_rounding(*pair)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-3)
    else:
        assert found == expected


def test_two_ranks_of_torchrun_share_a_folder(models, photos, tmp_path):
    options = [photos, *model_of(models["seg"]), "--out"]
    ended = run(*torchrun(free_port()), *options, tmp_path / "out")
    assert ended.returncode == 0 and ended.stdout.count("12 predicted") == 1, ended.stderr[-2000:]
    assert len(list((tmp_path / "out" / "journal").iterdir())) == 2
    assert len(read_records(tmp_path / "out")) == 12


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
@pytest.mark.parametrize("workers", [0, 2])
def test_two_images_that_kill_their_process_fail_and_all_others_are_predicted(
    workers, models, photos, tmp_path
):
    script = tmp_path / "fatal.py"
    script.write_text(FATAL.format(tools=str(ROOT / "tools")))
    command = [sys.executable, script, photos, *model_of(models["det"]), "--out", tmp_path / "out"]
    codes = []
    while len(codes) < 12 and 3 not in codes:
        ended = run(*command, "--workers", workers, "--no-visualizations")
        codes.append(ended.returncode)
    assert codes == [*[-9 if workers == 0 else 1] * (len(codes) - 1), 3] and len(codes) <= 9
    records = {record["name"]: record.get("error") for record in read_records(tmp_path / "out")}
    assert records == {
        path.name: CRASHED if path.name in ("03.png", "05.png") else None
        for path in photos.iterdir()
    }


@pytest.mark.parametrize(("deaths", "is_tried"), [(1, True), (2, True), (3, False)])
def test_an_image_is_tried_last_and_given_up_at_the_third_death(
    deaths, is_tried, models, photos, call, tmp_path
):
    command = ("infer", photos, *model_of(models["seg"]), "--out", tmp_path, "--no-visualizations")
    suspect = Item(str(photos / "00.png"), "00.png")
    assert call("infer", photos / "11.png", *command[2:])[0] == 0
    for _ in range(deaths):
        Journal(tmp_path).start(suspect)
    code, printed, errors = call(*command)
    records = read_records(tmp_path)
    assert len(records) == 12 and records[-1]["path"] == suspect.path  # the last
    if is_tried:
        assert code == 0 and "error" not in records[-1]
        return
    assert code == 3 and "11 predicted, 1 failed" in printed and CRASHED in errors
    assert call(*command)[0] == 3 and len(read_records(tmp_path)) == 12  # not tried again
    assert call(*command, "--retry-failed")[0] == 0  # by then the memory may be free


def test_a_kill_right_after_the_start_forgets_no_death(models, photos, call, tmp_path, monkeypatch):
    command = ("infer", photos / "0[0-2].png", *model_of(models["seg"]), "--out", tmp_path)
    suspects = [Item(str(photos / name), name) for name in ("00.png", "01.png")]
    assert call("infer", photos / "02.png", *command[2:])[0] == 0
    for suspect in suspects:
        for _ in range(2):
            Journal(tmp_path).start(suspect)

    class Killed(BaseException):
        pass

    def die(self, item):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "start", die)
        with pytest.raises(Killed):
            call(*command)
    Journal(tmp_path).start(suspects[1])
    code, _, errors = call(*command)
    assert code == 3 and "01.png: " + CRASHED in errors and "00.png: " not in errors


def test_an_error_that_is_no_items_fault_is_no_death(
    models, photos, call, refusal, tmp_path, monkeypatch
):
    """A disk that is full, say, at each of four starts."""
    command = ("infer", photos / "00.png", *model_of(models["seg"]), "--out", tmp_path)

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Results, "draw", fail)
        for _ in range(4):
            assert "No space left on device" in refusal(*command)
    assert call(*command)[0] == 0


def test_a_hanging_image_ends_the_process_that_reads(
    models, photos, call, refusal, tmp_path, monkeypatch
):
    read = Preprocessing.read

    def hang(self, image):
        if str(image).endswith("05.png"):
            time.sleep(60)
        return read(self, image)

    monkeypatch.setattr(Preprocessing, "read", hang)
    monkeypatch.setattr(reading, "TIMEOUT", 2)
    command = ("infer", photos, *model_of(models["seg"]), "--out", tmp_path / "out", "--workers", 1)
    for _ in range(3):
        assert "timed out after 2 seconds (the same command goes on)" in refusal(*command)
    code, printed, errors = call(*command)
    assert code == 3 and "11 predicted, 1 failed" in printed and CRASHED in errors


def test_a_second_process_in_the_folder_is_refused_until_the_first_ends(
    models, photos, refusal, call, tmp_path
):
    command = [photos, *model_of(models["seg"]), "--out", tmp_path / "out"]
    first = start_infer(command, tmp_path / "log")
    wait_for_work([first], tmp_path / "out", set())
    os.kill(first.pid, signal.SIGSTOP)
    try:
        message = refusal("infer", photos / "00.png", *command[1:])
        assert f"another process writes into {tmp_path / 'out'}" in message
    finally:
        os.kill(first.pid, signal.SIGCONT)
    first.join(120)
    assert first.exitcode == 0, (tmp_path / "log").read_text()[-2000:]
    code, printed, _ = call("infer", *command)
    assert code == 0 and "12 predicted" in printed
    assert len(read_records(tmp_path / "out")) == 12


def test_an_incomplete_last_line_is_ignored_and_a_damaged_line_is_named(
    models, photos, call, refusal, tmp_path
):
    command = ("infer", photos / "00.png", *model_of(models["det"]), "--out", tmp_path / "out")
    assert call(*command)[0] == 0
    (journal,) = (tmp_path / "out" / "journal").iterdir()
    content = journal.read_bytes()
    journal.write_bytes(content[:-100])
    assert call(*command)[0] == 0
    journal.write_bytes(content[:-100] + b"\n")
    message = refusal(*command)
    assert f"{journal}, line 2 is damaged: remove the file" in message
    journal.unlink()
    assert call(*command)[0] == 0
