"""Killed, hung and crashed processes: the next start completes the folder, each image once."""

import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from helpers.processes import CONTEXT
from helpers.runs import merged, read_records

from xcit_mm.commands import predict
from xcit_mm.prediction import Item, reading
from xcit_mm.prediction.engine import CRASHED
from xcit_mm.prediction.journal import Journal
from xcit_mm.prediction.preprocessing import Preprocessing


def start_infer(arguments: Sequence[object], log: Path, **env: object) -> BaseProcess:
    """Start `xcit-mm predict` in a process with imported libraries, with variables."""
    variables = {name: str(value) for name, value in env.items()}
    process = CONTEXT.Process(target=run_infer, args=(list(map(str, arguments)), log, variables))
    process.start()
    return process


def run_infer(arguments: list[str], log: Path, env: dict[str, str]) -> None:
    """Run `xcit-mm predict` in this process, which then ends."""
    os.environ |= env
    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    torch.set_num_threads(1)
    sys.exit(predict.main(arguments))


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("", 0))
        return server.getsockname()[1]


def start_ranks(arguments: tuple, log: Path, ranks: int) -> list:
    """Start a command in one process, or in ranks with the variables of torchrun."""
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


def scores_in(results: dict) -> list[float]:
    """Return the scores of `merged` results, which batches of other images round."""
    images = [result for name, result in sorted(results.items()) if name != "files"]
    return [found["score"] for _, _, objects in images for found in objects]


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
    assert scores_in(results) == pytest.approx(scores_in(expected), abs=1e-3)
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".png", ".jpg"}
    assert not any(path.name.startswith(".") for path in files)  # the lock, and parts of files


def test_two_ranks_share_a_folder(command, photos, tmp_path, out):
    log = tmp_path / "log"
    processes = start_ranks(command(photos)[1:], log, 2)
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0], log.read_text()[-2000:]
    assert log.read_text().count("12 predicted") == 1
    assert len(list((out / "journal").iterdir())) == 2
    assert len(read_records(out)) == 12


def run_fatal(arguments: list[str], log: Path) -> None:
    """Predict in a process that dies when it reads one of two photos."""
    read = Preprocessing.read

    def read_or_die(self: Preprocessing, image: object) -> object:
        if str(image).endswith(("03.png", "05.png")):
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, image)

    Preprocessing.read = read_or_die
    multiprocessing.set_start_method("fork", force=True)  # so that workers have it too
    run_infer(arguments, log, {})


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "killed"), [(0, -9), (2, 1)])
def test_two_images_that_kill_their_process_fail_and_all_others_are_predicted(
    workers, killed, command, photos, tmp_path, out
):
    arguments = (*command(photos, kind="det")[1:], "--workers", workers, "--no-visualizations")
    codes = []
    while len(codes) < 12 and 3 not in codes:
        process = CONTEXT.Process(
            target=run_fatal, args=(list(map(str, arguments)), tmp_path / "log")
        )
        process.start()
        process.join(300)
        codes.append(process.exitcode)
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
