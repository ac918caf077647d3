"""Failures of inputs and of processes: an input that kills, a process that fails on all inputs, a limit of failures."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from batch_runs import read_records, result_files, run, start_infer, torchrun

from xcit_mm.batch.run import open_run

# A decoder that crashes, and a process that loses its folder: a step of the config's pipeline.
FAULTY = """
import os, signal, time
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS

@TRANSFORMS.register_module()
class Faulty(BaseTransform):
    def transform(self, results):
        if (results["img"] == 255).all() and os.path.exists(__file__ + ".kills"):
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("RANK") == "1":
            time.sleep(0.3)
            raise OSError("not mounted")
        return results
"""
CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=["faulty_steps"], allow_failed_imports=False)
steps = [dict(type="LoadImageFromFile"), dict(type="Faulty"), dict(type="PackSegInputs")]
test_dataloader = dict(dataset=dict(pipeline=steps))
"""


@pytest.fixture
def faulty(models, tmp_path, monkeypatch) -> tuple[str, str]:
    """Config and checkpoint of a model whose pipeline kills the process at a white image, if a file exists."""
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "faulty_steps.py").write_text(FAULTY)
    (tmp_path / "faulty.py").write_text(CONFIG.format(base=models["seg"][0]))
    paths = [str(tmp_path / "module"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.syspath_prepend(tmp_path / "module")
    return str(tmp_path / "faulty.py"), models["seg"][1]


@pytest.fixture
def broken(photos, tmp_path) -> Path:
    """Folder of 40 images, of which those from 10 to 29 are empty files."""
    (tmp_path / "in").mkdir()
    for number in range(40):
        content = b"" if 10 <= number < 30 else (photos / "00.png").read_bytes()
        (tmp_path / "in" / f"{number:02}.png").write_bytes(content)
    return tmp_path / "in"


class TestProcesses:
    """A process that fails on every input, and inputs that fail in every process."""

    OPTIONS = ("--shard-size", 4, "--workers", 0, "--no-visualizations")

    def test_many_broken_inputs_in_a_row_stop_nothing(self, models, broken, call, tmp_path):
        code, printed, errors = call("infer", broken, *models["seg"], *self.OPTIONS, "--out", tmp_path / "out")
        assert code == 3 and "20 of 40 inputs predicted" in printed
        assert errors.count(f"failed: {broken}/1") == 3  # when they happen

    def test_a_limit_of_failures_ends_the_run(self, models, broken, refusal, tmp_path):
        arguments = (broken, *models["seg"], *self.OPTIONS, "--out", tmp_path / "out")
        message = refusal("infer", *arguments, "--max-failures", 6)
        assert f"more than 6 failures, the last {broken}/16.png: the file is empty" in message
        assert "(4 of 10 shards are completed: start the run again to resume)" in message

    def test_a_process_that_fails_from_now_on_stops_and_its_failures_are_pending(
        self, models, photos, refusal, call, tmp_path, before_forward
    ):
        (tmp_path / "in").mkdir()
        for number in range(24):
            (tmp_path / "in" / f"{number:02}.png").symlink_to(photos / "00.png")
        calls: list[int] = []

        def fail(images: list[torch.Tensor]) -> None:
            calls.append(1)
            if len(calls) > 6:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

        before_forward(fail)
        arguments = ("infer", tmp_path / "in", *models["seg"], *self.OPTIONS, "--out", tmp_path / "out")
        message = refusal(*arguments)
        assert "10 inputs failed in a row, and then one that was predicted before" in message
        assert "CUDA error" in message and "(2 of 6 shards are completed" in message
        before_forward(lambda images: None)
        assert call(*arguments, "--retry-failed")[0] == 3  # two failures of the second shard, four pending shards
        assert call(*arguments)[0] == 0
        assert len(read_records(tmp_path / "out")) == 24


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_an_input_that_kills_the_process_is_predicted_last_and_fails(workers, faulty, photos, tmp_path):
    options = ["--shard-size", 4, "--workers", workers, "--out", tmp_path / "out"]
    arguments, log = [photos, *faulty, *options], tmp_path / "log"
    kills = tmp_path / "module" / "faulty_steps.py.kills"
    kills.touch()
    codes = []
    for _ in range(2):
        process = start_infer(arguments, log)
        process.join(300)
        codes.append(process.exitcode)
    assert codes == [-signal.SIGKILL if workers == 0 else 1, 3], log.read_text()[-2000:]
    records = read_records(tmp_path / "out")
    (failure,) = [record for record in records if record.error]
    assert len(records) == 12 and Path(failure.path).name == "07.png" and "died 2 times" in failure.error
    assert not list((tmp_path / "out").glob("**/.in-flight-*")) and not open_run(tmp_path / "out").suspects

    kills.unlink()
    process = start_infer([*arguments, "--retry-failed"], log)
    process.join(300)
    undisturbed = start_infer([*arguments[:-1], tmp_path / "undisturbed"], log)
    undisturbed.join(300)
    assert process.exitcode == undisturbed.exitcode == 0, log.read_text()[-2000:]
    assert result_files(tmp_path / "out") == result_files(tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize("workers, hanging", [(0, "hangs.avi"), (2, "hangs.png")])
def test_an_input_that_hangs_is_a_failure(workers, hanging, models, photos, tmp_path):
    """A pipe without a writer: opening it never ends."""
    names = ["00.png", "01.png", hanging, "02.png"]
    for name in names:
        if name.startswith("hangs"):
            os.mkfifo(tmp_path / name)
        else:
            (tmp_path / name).symlink_to(photos / name)
    (tmp_path / "list.txt").write_text("\n".join(names))
    options = ["--root", tmp_path, "--workers", workers, "--timeout", 8, "--out", tmp_path / "out"]
    process = start_infer([tmp_path / "list.txt", *models["seg"], *options], tmp_path / "log")
    process.join(400)
    hangs = process.is_alive()
    process.kill()
    printed = (tmp_path / "log").read_text()
    assert not hangs and process.exitcode == 3 and "3 of 4 inputs predicted" in printed, printed[-2000:]
    records = read_records(tmp_path / "out")
    errors = {record.file_name: record.error for record in records if record.error}
    assert errors == {hanging: "it takes longer than 8 seconds"}
    assert not open_run(tmp_path / "out").suspects


@pytest.mark.slow
def test_another_rank_takes_the_shards_of_a_rank_without_its_folder(faulty, photos, tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(300):  # so many that rank 1 starts before rank 0 ends
        (tmp_path / "in" / f"{number:03}.png").symlink_to(photos / "00.png")
    arguments = [tmp_path / "in", *faulty, "--shard-size", 3, "--no-visualizations", "--out", tmp_path / "out"]
    ended = run(*torchrun(29574), *arguments, "--workers", 0, "--launcher", "pytorch")
    assert ended.returncode == 0 and "300 of 300 inputs predicted" in ended.stdout, ended.stderr[-2000:]
    assert "rank 1 stops: " in ended.stderr and "not mounted" in ended.stderr


class TestUpdates:
    OPTIONS = ("--shard-size", 2, "--workers", 0, "--no-visualizations")

    @pytest.mark.parametrize("name", ["coco", "parquet"])
    def test_a_run_goes_on_when_inputs_come_and_vanish(self, name, models, photos, call, tmp_path):
        folder, out = tmp_path / "in", tmp_path / "out"
        folder.mkdir()
        for number in range(5):
            (folder / f"{number}.png").symlink_to(photos / "00.png")
        arguments = ("infer", folder, *models["det"], *self.OPTIONS, "--format", name, "--out", out)
        assert call(*arguments)[0] == 0
        for removed in ("1", "2", "3"):
            (folder / f"{removed}.png").unlink()
        (folder / "0a.png").symlink_to(photos / "01.png")

        code, printed, errors = call(*arguments)
        assert code == 0 and "5 of 5 inputs predicted" in printed
        assert "1 new inputs and 3 that vanished: add --update to take and drop them" in errors

        code, printed, _ = call(*arguments, "--update")
        assert code == 0 and "3 of 3 inputs predicted" in printed
        found = {record.number: Path(record.path).name for record in read_records(out)}
        assert found == {0: "0.png", 4: "4.png", 5: "0a.png"}
        if name == "coco":
            images = json.loads((out / "images.json").read_text())["images"]
            assert {image["id"]: image["file_name"] for image in images} == {1: "0.png", 5: "4.png", 6: "0a.png"}
        code, printed, errors = call(*arguments)
        assert code == 0 and "3 of 3 inputs predicted" in printed and "--update" not in errors

    def test_a_pending_shard_whose_inputs_vanish_is_left_out(self, models, photos, call, tmp_path):
        folder, out = tmp_path / "in", tmp_path / "out"
        folder.mkdir()
        for number in range(4):
            (folder / f"{number}.png").symlink_to(photos / "00.png")
        arguments = ("infer", folder, *models["seg"], *self.OPTIONS, "--out", out)
        assert call(*arguments)[0] == 0
        open_run(out).shard_path(1).unlink()
        for number in (0, 2, 3):
            (folder / f"{number}.png").unlink()
        code, printed, _ = call(*arguments, "--update")
        assert code == 0 and "1 of 1 inputs predicted" in printed

    def test_a_changed_id_needs_an_update(self, models, photos, call, refusal, tmp_path):
        arguments = ("infer", tmp_path / "list.json", *models["seg"], *self.OPTIONS, "--out", tmp_path / "out")
        for second in (2, 9):
            images = [dict(id=1, file_name=f"{photos}/00.png"), dict(id=second, file_name=f"{photos}/01.png")]
            (tmp_path / "list.json").write_text(json.dumps(dict(images=images, categories=[])))
            if second == 2:
                assert call(*arguments)[0] == 0
        assert f"{photos}/01.png has another size, other values or another id: add --update" in refusal(*arguments)
        assert call(*arguments, "--update")[0] == 0
        found = json.loads((tmp_path / "out" / "images.json").read_text())["images"]
        assert [image["id"] for image in found] == [1, 9]
