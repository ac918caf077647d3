"""Killed, hung and crashed processes: the next start completes the folder, each image once."""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from helpers.ranks import start_ranks
from helpers.runs import merged, read_records

from xcit_mm.commands import predict
from xcit_mm.prediction import Item, engine
from xcit_mm.prediction.engine import CRASHED
from xcit_mm.prediction.journal import Journal
from xcit_mm.prediction.preprocessing import Preprocessing


def predict_in_rank(_: int, arguments: list[str], fatal: bool) -> None:
    """Run `xcit-mm predict` in this process, which then ends. `fatal`: two photos kill it."""
    read = Preprocessing.read

    def read_or_die(self: Preprocessing, image: object) -> object:
        if str(image).endswith(("03.png", "05.png")):
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, image)

    if fatal:
        Preprocessing.read = read_or_die
        multiprocessing.set_start_method("fork", force=True)  # so that workers have it too
    sys.exit(predict.main(arguments))


def start(arguments: Iterable, log: Path, ranks: int = 1, fatal: bool = False) -> list[BaseProcess]:
    """Start `xcit-mm predict` in one process, or in ranks with the variables of torchrun."""
    return start_ranks(ranks, predict_in_rank, list(map(str, arguments)), fatal, log=log)


def exit_codes(processes: list[BaseProcess]) -> list[int | None]:
    for process in processes:
        process.join(300)
    return [process.exitcode for process in processes]


def wait_until(condition: Callable[[], bool], processes: list[BaseProcess]) -> None:
    """Wait until a condition holds, or a process has ended."""
    while all(process.exitcode is None for process in processes) and not condition():
        time.sleep(0.01)


def scores_in(results: dict) -> list[float]:
    """Return the scores of `merged` results, which batches of other images round."""
    images = [result for name, result in sorted(results.items()) if name != "files"]
    return [found["score"] for _, _, objects in images for found in objects]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ranks"), [("det", 1), ("seg", 2)])
def test_kills_at_twenty_random_moments_lose_and_repeat_nothing(
    kind, ranks, command, photos, tmp_path, out
):
    for number in range(8):
        shutil.copytree(photos, tmp_path / "in" / str(number))
    fresh = tmp_path / "fresh"
    log = tmp_path / "log"
    options = ("--batch-size", 2)
    exit_codes(start([*command(tmp_path / "in", kind=kind, out=fresh)[1:], *options], log))
    arguments = (*command(tmp_path / "in", kind=kind)[1:], *options)
    chosen = random.Random(ranks)
    counts = set()
    for _ in range(20):
        processes = start(arguments, log, ranks)
        wanted = len(read_records(out)) + ranks * chosen.randint(3, 16)
        wait_until(lambda wanted=wanted: len(read_records(out)) >= wanted, processes)
        time.sleep(chosen.uniform(0, 0.1))
        for process in chosen.sample(processes, ranks):  # torchrun ends the other ranks
            process.kill()
            process.join()
        counts.add(len(read_records(out)))
    codes = exit_codes(start(arguments, log, ranks))
    assert codes == [0] * ranks, log.read_text()[-2000:]
    assert len(counts) >= 4, counts  # the kills came while records were written
    records = read_records(out)
    assert len({record["path"] for record in records}) == 96
    assert not any("error" in record for record in records)
    results = merged(out)
    expected = merged(fresh)
    assert results.keys() == expected.keys() and results["files"] == expected["files"]
    assert scores_in(results) == pytest.approx(scores_in(expected), abs=1e-3)
    files = [path for path in out.rglob("*") if path.is_file() and path.name != ".lock"]
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".png", ".jpg"}
    assert not any(path.name.startswith(".") for path in files)  # parts of files


def test_ranks_share_a_folder(command, photos, call, tmp_path, out):
    log = tmp_path / "log"
    processes = start(command(photos)[1:], log, 2)
    assert exit_codes(processes) == [0, 0], log.read_text()[-2000:]
    assert log.read_text().count("12 predicted") == 1
    assert len(list((out / "journal").iterdir())) == 2
    assert call(*command(photos))[0] == 0 and len(read_records(out)) == 12


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "killed"), [(0, -9), (2, 1)])
def test_two_images_that_kill_their_process_fail_and_no_others(
    workers, killed, command, photos, tmp_path, out
):
    arguments = (*command(photos, kind="det")[1:], "--workers", workers, "--no-visualizations")
    codes = []
    while len(codes) < 12 and 3 not in codes:
        codes += exit_codes(start(arguments, tmp_path / "log", fatal=True))
    assert codes == [*[killed] * (len(codes) - 1), 3] and len(codes) <= 9
    records = {record["name"]: record.get("error") for record in read_records(out)}
    assert len(records) == 12
    failures = {name: error for name, error in records.items() if error}
    assert failures == {"03.png": CRASHED, "05.png": CRASHED}


def test_an_image_that_hangs_is_tried_last_and_given_up_in_the_end(
    command, photos, call, refusal, monkeypatch, out
):
    read = Preprocessing.read

    def hang(self: Preprocessing, image: object) -> object:
        if str(image).endswith("05.png"):
            time.sleep(3)
        return read(self, image)

    monkeypatch.setattr(Preprocessing, "read", hang)
    monkeypatch.setattr(engine, "TIMEOUT", 2)
    arguments = (*command(photos), "--workers", 1)
    assert call(*command(photos / "11.png"))[0] == 0
    for _ in range(2):  # processes that died before
        Journal(out).start(Item(str(photos / "05.png"), "05.png"))
    assert "timed out after 2 seconds" in refusal(*arguments)
    assert len(read_records(out)) == 11
    code, printed, errors = call(*arguments)
    assert code == 3 and "11 predicted, 1 failed" in printed and CRASHED in errors
    monkeypatch.setattr(Preprocessing, "read", read)
    assert call(*arguments, "--retry-failed")[0] == 0  # by then the memory may be free


def test_an_incomplete_last_line_is_ignored(command, photos, call, out):
    arguments = command(photos / "00.png")
    assert call(*arguments)[0] == 0
    (journal,) = (out / "journal").iterdir()
    journal.write_bytes(journal.read_bytes()[:-10])
    assert call(*arguments)[0] == 0
    assert [record["name"] for record in read_records(out)] == ["00.png"]
