"""`train --from MODEL --data DATA` writes a config that fits both, checks it, and trains it."""

import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.doctor_data import edit_json
from helpers.finetuning import QUICK
from mmengine.config import Config

from xcit_mm.launch import write_finetuning_config
from xcit_mm.weights.zoo import find_model

CLASSES = ("circle", "square", "triangle", "star")


def without_masks(content: dict) -> None:
    for annotation in content["annotations"]:
        annotation["segmentation"] = []


def test_a_folder_gives_classes_splits_schedule_and_work_folder(trained, data, started, folder):
    cfg = started(trained, "--data", data)
    header = (folder / "my-data.py").read_text().splitlines()[:2]
    assert header[0].startswith(f"# Fine-tunes {trained}. Written by")
    assert header[1].startswith("# my data: 8 photos, ") and "held out 4 photos" in header[1]
    assert cfg.train_dataloader.dataset.metainfo.classes == CLASSES[:2]
    assert (
        cfg.work_dir == "work_dirs/my-data" and not cfg.resume
    )  # the model was resumed in its own
    assert cfg.model.roi_head.bbox_head.num_classes == cfg.model.roi_head.mask_head.num_classes == 2
    held_out = str(folder / "my-data-coco" / "val.json")
    assert cfg.val_dataloader.dataset.ann_file == cfg.val_evaluator.ann_file == held_out
    assert cfg.load_from == find_model(str(trained))[1] and cfg.train_cfg.max_iters == 1000
    assert cfg.default_hooks.checkpoint.save_best == "coco/segm_mAP"


def test_a_json_alone_is_trained_without_validation(trained, data, started):
    def many(content: dict) -> None:
        first = content["images"][0]
        content["images"] += [first | dict(id=1000 + number) for number in range(400)]

    path = data / "annotations" / "instances_training.json"
    edit_json(path, many)
    cfg = started(trained, "--data", path, "--config", "own.py")
    assert cfg.val_dataloader is None and cfg.train_cfg.max_iters == 12 * 408 // 2
    assert cfg.test_dataloader.dataset.ann_file == cfg.train_dataloader.dataset.ann_file


def test_folders_of_images_and_maps_train_a_semantic_fpn(models, shapes, started, folder):
    work = folder / "segmentor"
    work.mkdir()
    Config.fromfile(models["seg"][0]).dump(work / "mine.py")
    (work / "last_checkpoint").write_text(models["seg"][1])
    data = folder / "maps"
    for kind in ("images", "annotations"):
        shutil.copytree(shapes / kind, data / kind, ignore=shutil.ignore_patterns("*.json"))
    (data / "classes.txt").write_text("none\nground\ncircle\nsquare\ntriangle\nstar\n")
    cfg = started(work, "--data", data)
    assert cfg.train_dataloader.dataset.metainfo.classes[1:] == ("ground", *CLASSES)
    assert cfg.model.decode_head.num_classes == 6 and not cfg.train_dataloader.dataset.get(
        "reduce_zero_label"
    )
    maps = Path(cfg.val_dataloader.dataset.data_prefix.seg_map_path)
    assert len(list(maps.rglob("*.png"))) == 4


@pytest.mark.slow
def test_boxes_without_masks_train_a_faster_rcnn_that_predicts(trained, data, call, folder):
    for path in (data / "annotations").glob("*.json"):
        edit_json(path, without_masks)
    sys.argv = ["train.py", "--from", str(trained), "--data", str(data), "--cfg-options", *QUICK]
    assert importlib.import_module("train").main() == 0
    work = folder / "work_dirs" / "my-data"
    assert Config.fromfile(work / "my-data.py").model.type == "FasterRCNN"
    assert list(work.glob("best_coco_bbox_mAP_iter_2.pth"))
    image = next((data / "images" / "validation").iterdir())
    assert call("infer", image, "--model", work, "--out", folder / "found")[0] == 0


def test_a_fine_tuned_model_is_fine_tuned_on_other_data(trained, data, started, folder):
    training = data / "annotations" / "instances_training.json"
    write_finetuning_config(str(trained), training, folder / "first.py")
    (folder / "again").mkdir()
    Config.fromfile(folder / "first.py").dump(folder / "again" / "first.py")
    shutil.copy(trained / "last_checkpoint", folder / "again")
    cfg = started(folder / "again", "--data", data)
    held_out = str(folder / "my-data-coco" / "val.json")
    assert cfg.val_dataloader.dataset.ann_file == held_out and cfg.val_cfg.type == "ValLoop"


def test_captions_of_coco_are_no_training_images(trained, data, folder):
    (data / "annotations" / "captions_training.json").write_text("{}")
    write_finetuning_config(str(trained), data, folder / "coco.py")
    assert "held_out = dict(" in (folder / "coco.py").read_text()


def test_a_json_of_all_images_is_not_held_out(trained, data, folder):
    (data / "annotations" / "instances_validation.json").unlink()
    shutil.move(data / "images" / "training", data / "annotations" / "trainval")
    (data / "annotations" / "instances_training.json").rename(
        data / "annotations" / "trainval.json"
    )
    write_finetuning_config(str(trained), data, folder / "all.py")
    assert "held_out = training\n" in (folder / "all.py").read_text()


def test_a_published_name_is_the_base_in_any_folder(data, folder):
    write_finetuning_config("maskrcnn_xcit_small_12_p16", data, folder / "mine.py")
    cfg = Config.fromfile(folder / "mine.py")
    assert (
        cfg.load_from == "xcit://maskrcnn_xcit_small_12_p16" and cfg.model.backbone.init_cfg is None
    )
    assert cfg.optim_wrapper.paramwise_cfg == dict(
        layer_decay_rate=0.8, custom_keys=dict(norm=dict(decay_mult=0.0))
    )
    assert cfg.model.backbone.arch == "s12" and cfg.train_cfg.type == "IterBasedTrainLoop"


TRAINING = "annotations/instances_training.json"


def with_another_json(data: Path) -> None:
    shutil.copy(data / TRAINING, data / "instances_train.json")


def with_bands(data: Path) -> None:
    cv2.imwrite(str(data / "images/training/four.tif"), np.zeros((96, 96, 4), np.uint16))
    edit_json(data / TRAINING, lambda content: content["images"][0].update(file_name="four.tif"))


def without_images_on_disk(data: Path) -> None:
    shutil.rmtree(data / "images")


def changed(**lists: list) -> Callable[[Path], None]:
    return lambda data: edit_json(data / TRAINING, lambda content: content.update(lists))


@pytest.mark.parametrize(
    "break_data, message",
    [
        (shutil.rmtree, "no folder or file at"),
        (with_another_json, f"but has {TRAINING}, instances_train.json"),
        (changed(categories=[]), "has 0 categories and"),
        (changed(annotations=[]), "and 0 annotations: annotate it"),
        (changed(images=[]), "lists no images"),
        (changed(annotations=None), "is not in COCO's format"),
        (with_bands, "write a config as in docs/bands.md"),
        (without_images_on_disk, "00000.jpg of"),
    ],
)
def test_data_that_cannot_train_is_one_line(break_data, message, refused, trained, data, folder):
    break_data(data)
    assert message in refused(trained, "--data", data)
    assert not (folder / "my-data.py").exists()


@pytest.mark.parametrize(
    "model, message",
    [
        ("maskrcnn_xcit_smal_12_p16", "try maskrcnn_xcit_small_12_p16"),
        ("xcit_small_12_p16_384_dist", "is neither a config"),
    ],
)
def test_model_that_cannot_be_fine_tuned_is_one_line(model, message, refused, data):
    assert message in refused(model, "--data", data)


def test_a_config_is_not_replaced(refused, trained, data, folder):
    (folder / "taken.py").touch()
    line = refused(trained, "--data", data, "--config", "taken.py")
    assert "taken.py exists: train it" in line
    assert (folder / "taken.py").read_text() == ""


def test_several_processes_train_a_config_that_exists(refused, trained, data):
    line = refused(trained, "--data", data, "--launcher", "pytorch")
    assert "then train it with --launcher" in line


def test_a_failed_check_stops_the_run_and_keeps_the_config(refused, trained, data, folder, capsys):
    path = data / "annotations" / "instances_training.json"
    edit_json(
        path,
        lambda content: [each.update(bbox=[0, 0, 0.1, 0.1]) for each in content["annotations"]],
    )
    message = refused(trained, "--data", data)
    assert message.startswith("ValueError: D408 train: ") and (folder / "my-data.py").is_file()
    assert "written: my-data.py. If a check fails, correct" in capsys.readouterr().err
