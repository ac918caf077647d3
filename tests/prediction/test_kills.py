"""Killed, hung and crashed processes: the next start completes the folder, each image once."""

import json
import random
import shutil
import socket
import sys
import time
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.runs import merged, model_of, read_records, run, start_infer, torchrun

from xcit_mm.prediction import Item, Predictor, worker
from xcit_mm.prediction.worker import KILLER


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("", 0))
        return server.getsockname()[1]


@pytest.fixture
def many(photos, tmp_path) -> Path:
    folder = tmp_path / "many"
    for number in range(4):
        shutil.copytree(photos, folder / str(number))
    return folder


def start_ranks(command: list, log: Path, ranks: int) -> list:
    """Start the command in one process, or in the ranks of torchrun."""
    if ranks == 1:
        return [start_infer(command, log, max_records=4)]
    shared = dict(WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    return [
        start_infer(command, log, 4, RANK=rank, LOCAL_RANK=rank, **shared) for rank in range(ranks)
    ]


def wait_for_work(processes: list, out: Path, known: set[Path]) -> None:
    """Wait until each process has begun to predict, or has ended."""
    while len(set(out.rglob("*.in-flight")) - known) < len(processes) and all(
        p.exitcode is None for p in processes
    ):
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["det", "seg"])
def test_kills_at_twenty_random_moments_lose_and_repeat_nothing(
    kind, ranks, models, many, tmp_path
):
    command = [many, *model_of(models[kind]), "--batch-size", 2, "--out"]
    undisturbed = start_ranks([*command, tmp_path / "fresh"], tmp_path / "log", 1)
    wait_for_work(undisturbed, tmp_path / "fresh", set())
    start = time.time()
    undisturbed[0].join(300)
    duration, chosen, counts = time.time() - start, random.Random(ranks), set()
    for _ in range(20):
        known = set((tmp_path / "out").rglob("*.in-flight"))
        processes = start_ranks([*command, tmp_path / "out"], tmp_path / "log", ranks)
        wait_for_work(processes, tmp_path / "out", known)
        time.sleep(chosen.uniform(0.05, 0.6) * duration / ranks)
        for process in chosen.sample(processes, ranks):  # torchrun ends the other ranks
            process.kill()
            process.join()
        counts.add(len(read_records(tmp_path / "out")))
    processes = start_ranks([*command, tmp_path / "out"], tmp_path / "log", ranks)
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * ranks, (
        tmp_path / "log"
    ).read_text()[-2000:]
    assert len(counts - {0, 48}) >= 2, counts  # the kills came while records were written
    records = read_records(tmp_path / "out")
    assert len(records) == len({record["path"] for record in records}) == 48
    assert not any("error" in record for record in records)
    assert_equal_up_to_rounding(merged(tmp_path / "out"), merged(tmp_path / "fresh"))
    assert not list((tmp_path / "out" / "parts").glob("*.in-flight"))


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
    else:
        assert found == (
            pytest.approx(expected, abs=1e-3) if isinstance(expected, float) else expected
        )


def test_two_ranks_of_torchrun_share_a_folder(models, photos, tmp_path):
    options = [photos, *model_of(models["seg"]), "--out"]
    ended = run(*torchrun(free_port()), *options, tmp_path / "out")
    assert ended.returncode == 0 and ended.stdout.count("12 predicted") == 1, ended.stderr[-2000:]
    parts = {path.name.split("-")[2] for path in (tmp_path / "out" / "parts").iterdir()}
    assert parts == {"0", "1"} and len(read_records(tmp_path / "out")) == 12


DIE = """
import os, sys, signal
sys.path.insert(0, {tools!r})
import xcit_mm.prediction.preprocessing as preprocessing
read = preprocessing.Preprocessing.read
def fatal(self, image):
    if str(image).endswith("05.png"):
        os.kill(os.getpid(), signal.SIGKILL)
    return read(self, image)
preprocessing.Preprocessing.read = fatal
import infer
if __name__ == "__main__":
    sys.exit(infer.main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_kills_its_process_fails_at_the_third_start(
    workers, models, photos, tmp_path
):
    script = tmp_path / "fatal.py"
    script.write_text(DIE.format(tools=str(ROOT / "tools")))
    command = [sys.executable, script, photos, *model_of(models["det"]), "--out", tmp_path / "out"]
    codes = [
        run(*command, "--workers", workers, "--no-visualizations").returncode for _ in range(3)
    ]
    assert codes == ([-9, -9, 3] if workers == 0 else [1, 1, 3])
    failures = {
        record["name"]: record["error"]
        for record in read_records(tmp_path / "out")
        if "error" in record
    }
    assert failures == {"05.png": KILLER} and len(read_records(tmp_path / "out")) == 12


def test_an_image_that_was_in_flight_at_two_kills_is_tried_and_predicted(
    models, photos, call, tmp_path
):
    """The kills had another reason."""
    command = (
        "infer",
        photos,
        *model_of(models["det"]),
        "--out",
        tmp_path / "out",
        "--no-visualizations",
    )
    assert call("infer", photos / "00.png", *command[2:])[0] == 0
    flight = tmp_path / "out" / "parts" / "part-1-0.in-flight"
    flight.write_text(
        json.dumps([str(photos / "03.png"), 2])
        + "\n"
        + json.dumps([str(photos / "04.png"), 1])
        + "\n["
    )
    code, printed, _ = call(*command)
    assert code == 0 and "12 predicted: " in printed and not flight.exists()
    flight.write_text(json.dumps([str(photos / "03.png"), 3]) + "\n")  # of an image with a record
    assert call(*command)[0] == 0


def test_a_hanging_image_ends_the_process_that_reads(
    models, photos, call, refusal, tmp_path, monkeypatch
):
    from xcit_mm.prediction import reading
    from xcit_mm.prediction.preprocessing import Preprocessing

    read = Preprocessing.read

    def hang(self, image):
        if str(image).endswith("05.png"):
            time.sleep(60)
        return read(self, image)

    monkeypatch.setattr(Preprocessing, "read", hang)
    monkeypatch.setattr(reading, "TIMEOUT", 2)
    monkeypatch.setattr(worker.Worker, "_is_killer", lambda self, item: True)
    command = ("infer", photos, *model_of(models["seg"]), "--out", tmp_path / "out", "--workers", 1)
    for _ in range(2):
        assert "DataLoader timed out after 2 seconds" in refusal(*command)
    code, printed, errors = call(*command)
    assert code == 3 and "11 predicted, 1 failed" in printed and KILLER in errors


@pytest.mark.slow
def test_an_image_is_no_killer_if_a_second_model_does_not_fit_beside_the_first(
    models, photos, tmp_path
):
    predictor = Predictor(*models["seg"])
    predictor.arguments["checkpoint"] = str(
        tmp_path / "none.pth"
    )  # building it raises, as for want of memory
    item = Item(str(photos / "00.png"), "00.png")
    assert not worker.Worker(tmp_path, predictor, [], None, 0)._is_killer(item)
