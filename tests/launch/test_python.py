"""Fine-tuning, training and testing from Python, as in a notebook."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from xcit_mm import Predictor, evaluate, finetune, train
from xcit_mm.__main__ import main
from xcit_mm.utils.errors import ArgumentError

QUICK = {
    f"{split}_dataloader.{key}": value
    for split in ("train", "val", "test")
    for key, value in (("num_workers", 0), ("persistent_workers", False))
}
QUICK |= {"train_cfg.max_iters": 2, "train_cfg.val_interval": 2}
QUICK |= {"default_hooks.checkpoint.interval": 2}


@pytest.fixture
def arguments(data) -> dict:
    """Arguments of `finetune` for jsons of two classes."""
    jsons = data / "annotations"
    return dict(
        data=jsons / "instances_training.json",
        val=jsons / "instances_validation.json",
        images=data / "images" / "training",
        val_images=data / "images" / "validation",
        config="nuts.py",
    )


@pytest.fixture
def silenced() -> Iterator[None]:
    """The logger of the package says errors only."""
    logger = logging.getLogger("xcit_mm")
    level = logger.level
    logger.setLevel("ERROR")
    yield
    logger.setLevel(level)


def test_a_detector_is_finetuned_tested_and_used_in_silence(
    trained, arguments, data, silenced, capfd
):
    folder = finetune(trained, **arguments, cfg_options=QUICK)
    scores = evaluate(folder, cfg_options=QUICK)
    predictor = Predictor.from_pretrained(folder, device="cpu")
    assert folder == Path("work_dirs/nuts")
    assert {"coco/bbox_mAP", "coco/segm_mAP_50"} <= scores.keys()
    assert all(type(score) is float for score in scores.values())
    photo = next((data / "images" / "validation").iterdir())
    assert tuple(predictor.names) == ("circle", "square") and predictor(photo).boxes.shape[1] == 4
    shown = capfd.readouterr()
    assert shown.out == "" and "nuts" not in shown.err and "mmengine - INFO" not in shown.err
    assert_drawn(folder)


def test_a_segmentor_that_is_trained_whole_ends_with_drawings(trained_segmentor, maps, capfd):
    """Which are predicted whole: in memory, a raster that was trained in bands would not fit."""
    options = QUICK | {"load_from": None, "model.decode_head.channels": 24}
    arguments = dict(config="streets.py", whole=True, cfg_options=options)
    folder = finetune(trained_segmentor, maps, **arguments)
    printed = capfd.readouterr().err
    assert "seen at scale 1, in windows of 1024 pixels" in printed
    shown, weights = printed.splitlines()[-2:]
    assert shown == "labels beside predictions: work_dirs/streets/predictions"
    assert weights.startswith("weights: work_dirs/streets/best_")
    assert_drawn(folder)
    assert train("streets.py", resume=True, cfg_options=QUICK) == folder
    assert "the run is complete" in capfd.readouterr().err


def assert_drawn(folder: Path) -> None:
    """Check that four photos have labels at the left and predictions at the right."""
    drawings = list((folder / "predictions").iterdir())
    assert len(drawings) == 4
    left, right = np.split(np.asarray(Image.open(drawings[0]), float), 2, axis=1)
    assert len(left) == 96 and np.abs(left[:, :96] - right[:, :96]).mean() > 1


def test_a_wrong_argument_is_named_and_nothing_is_written(trained, arguments):
    before = sorted(Path().rglob("[!.]*.*"))
    with pytest.raises(ArgumentError, match=r"^hold_out: it is for a labelled raster") as error:
        finetune(trained, **arguments, hold_out=False)
    assert error.value.name == "hold_out"
    assert sorted(Path().rglob("[!.]*.*")) == before


def test_several_processes_that_would_write_the_same_files_are_refused(arguments, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"^finetune takes one process"):
        finetune("maskrcnn_xcit_small_12_p16", **arguments)
    assert not Path("work_dirs").exists()


def test_scores_of_two_data_sets_are_printed_with_their_names(monkeypatch, capsys):
    scores = {"streets/coco/bbox_mAP": 0.5, "fields/coco/bbox_mAP": 0.25}
    monkeypatch.setattr("xcit_mm.commands.test.evaluate", lambda **options: scores)
    assert main(["test", "nuts"]) == 0
    assert capsys.readouterr().out == "streets/coco/bbox_mAP  0.5\nfields/coco/bbox_mAP  0.25\n"


@pytest.mark.parametrize("launcher, processes", [("slurm", 1), ("pytorch", 1), ("none", 2)])
def test_a_launcher_that_does_not_fit_is_named(launcher, processes, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    with pytest.raises(ArgumentError, match=f"^launcher: '{launcher}': give 'pytorch'"):
        train("maskrcnn_xcit_small_12_p16", launcher=launcher)
