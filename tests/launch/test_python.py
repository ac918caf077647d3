"""Fine-tuning, training and testing from Python, as in a notebook."""

import logging
from pathlib import Path

import pytest

from xcit_mm import Predictor, evaluate, finetune, train
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


def test_a_detector_is_finetuned_tested_and_used_without_a_command(trained, arguments, data, capfd):
    level = logging.getLogger("xcit_mm").level
    logging.getLogger("xcit_mm").setLevel("ERROR")
    try:
        folder = finetune(trained, **arguments, cfg_options=QUICK)
        scores = evaluate(folder, cfg_options=QUICK)
    finally:
        logging.getLogger("xcit_mm").setLevel(level)
    assert folder == Path("work_dirs/nuts")
    assert {"coco/bbox_mAP", "coco/segm_mAP_50"} <= scores.keys()
    assert all(type(score) is float for score in scores.values())
    photo = next((data / "images" / "validation").iterdir())
    predictor = Predictor.from_pretrained(folder, device="cpu")
    assert tuple(predictor.names) == ("circle", "square") and predictor(photo).boxes.shape[1] == 4
    shown = capfd.readouterr()
    assert shown.out == "" and "nuts" not in shown.err
    assert train("nuts.py", resume=True, cfg_options=QUICK) == folder
    assert "the run is complete" in capfd.readouterr().err


@pytest.mark.parametrize(
    "changes, name",
    [
        (dict(config="nuts.txt"), "config"),
        (dict(tile=96), "tile"),
        (dict(hold_out=False), "hold_out"),
        (dict(cfg_options=dict(max_iter=2)), "cfg_options"),
        (dict(data=Path("data.yaml")), "val"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named_and_nothing_is_written(changes, name, trained, arguments):
    before = sorted(Path().rglob("[!.]*.*"))
    with pytest.raises(ArgumentError, match=f"^{name}: ") as error:
        finetune(trained, **(arguments | changes))
    assert error.value.name == name
    assert sorted(Path().rglob("[!.]*.*")) == before


def test_a_launcher_that_is_unknown_is_named():
    with pytest.raises(ArgumentError, match=r"^launcher: 'slurm' is neither"):
        train("maskrcnn_xcit_small_12_p16", launcher="slurm")


def test_an_unknown_model_is_an_exception_with_similar_names(arguments):
    with pytest.raises(ValueError, match="try maskrcnn_xcit_small_12_p16"):
        finetune("maskrcnn_xcit_smal_12_p16", **arguments)
