"""`train --from MODEL --data DATA` writes a config that fits both, checks it, and trains it."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers.doctor_data import edit_annotations, edit_json
from mmengine.registry import PARAM_SCHEDULERS
from PIL import Image

from xcit_mm.checks.run_config import ConfiguredSplit
from xcit_mm.launch.config import to_code
from xcit_mm.weights.zoo import find_model

CLASSES = ("circle", "square", "triangle", "star")
TRAINING = "annotations/instances_training.json"


def test_a_folder_gives_classes_splits_schedule_and_work_folder(trained, data, start, folder):
    cfg = start("--from", trained, "--data", data)
    header = (folder / "my-data.py").read_text().splitlines()[:2]
    assert header[0].startswith(f"# Fine-tunes {trained}. Written by")
    assert header[1].startswith("# my data: 8 photos, ") and "held out 4 photos" in header[1]
    assert cfg.train_dataloader.dataset.metainfo.classes == CLASSES[:2]
    assert cfg.work_dir == "work_dirs/my-data"
    assert not cfg.resume  # though the model was resumed in its own folder
    assert cfg.model.roi_head.bbox_head.num_classes == cfg.model.roi_head.mask_head.num_classes == 2
    held_out = str(folder / "my-data-coco" / "val.json")
    assert cfg.val_dataloader.dataset.ann_file == cfg.val_evaluator.ann_file == held_out
    assert cfg.load_from == find_model(str(trained))[1]
    assert cfg.train_cfg.max_iters == 1000
    assert cfg.default_hooks.checkpoint.save_best == "coco/segm_mAP"


@pytest.mark.parametrize("length", [1, 2, 5, 20])
def test_a_short_schedule_reaches_its_rate(length, trained, data, start, folder):
    """A user edits max_iters in the file to try a training."""
    start("--from", trained, "--data", data)
    config = folder / "my-data.py"
    config.write_text(config.read_text().replace("max_iters = 1000", f"max_iters = {length}"))
    cfg = start(config)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedulers = [PARAM_SCHEDULERS.build(dict(s, optimizer=optimizer)) for s in cfg.param_scheduler]
    rates = []
    for _ in range(length):
        rates.append(optimizer.param_groups[0]["lr"])
        for scheduler in schedulers:
            scheduler.step()
    assert cfg.train_cfg.val_interval >= 1
    assert length < 5 or max(rates) > 0.5


def test_a_json_alone_is_trained_without_validation_then_its_model_on_a_folder(
    trained, data, start, folder
):
    def add_images(coco: dict) -> None:
        image = coco["images"][0]
        for number in range(400):
            name = f"copy{number}.jpg"
            shutil.copy(
                data / "images/training" / image["file_name"], data / "images/training" / name
            )
            coco["images"].append(dict(image, id=1000 + number, file_name=name))

    edit_json(data / TRAINING, add_images)
    cfg = start("--from", trained, "--data", data / TRAINING, "--config", "own.py")
    assert cfg.val_dataloader is None
    assert cfg.train_cfg.max_iters == 12 * 408 // 2
    assert cfg.test_dataloader.dataset.ann_file == cfg.train_dataloader.dataset.ann_file
    (folder / "first").mkdir()
    cfg.dump(folder / "first" / "own.py")
    shutil.copy(trained / "last_checkpoint", folder / "first")
    cfg = start("--from", folder / "first", "--data", data)
    assert cfg.val_dataloader.dataset.ann_file == str(folder / "my-data-coco" / "val.json")
    assert cfg.val_cfg.type == "ValLoop"


def test_folders_of_images_and_maps_train_a_semantic_fpn(trained_segmentor, shapes, start, folder):
    data = folder / "maps"
    for part in ("images", "annotations"):
        shutil.copytree(shapes / part, data / part, ignore=shutil.ignore_patterns("*.json"))
    (data / "classes.txt").write_text("none\nground\ncircle\nsquare\ntriangle\nstar\n")
    photo = data / "images/validation/00000.jpg"
    photo.rename(photo.with_suffix(".JPG"))
    label = data / "annotations/validation/00000.png"
    Image.open(label).save(label.with_name("00000_mask.tif"))
    label.unlink()
    cfg = start("--from", trained_segmentor, "--data", data)
    assert cfg.train_dataloader.dataset.metainfo.classes[1:] == ("ground", *CLASSES)
    assert cfg.model.decode_head.num_classes == 6
    assert not cfg.train_dataloader.dataset.get("reduce_zero_label")
    (held_out,) = ConfiguredSplit(cfg, "val").datasets
    images = held_out.list_photos().values()
    assert [Path(image["seg_map_path"]).is_file() for image in images] == [True] * 4


def test_annotations_without_a_mask_are_named_and_the_user_chooses(trained, data, refused, start):
    edit_json(data / TRAINING, lambda coco: coco["annotations"][3].update(segmentation=[]))
    annotation = json.loads((data / TRAINING).read_text())["annotations"][3]
    message = refused("--from", trained, "--data", data)
    assert "1 of " in message and f"have no mask: id {annotation['id']} (image 0000" in message
    cfg = start("--from", trained, "--data", data, "--boxes")
    assert cfg.model.type == "FasterRCNN"
    for path in (data / "annotations").glob("*.json"):
        edit_annotations(path, lambda annotation: annotation.update(segmentation=[]))
    cfg = start("--from", trained, "--data", data, "--config", "boxes.py")
    assert cfg.model.type == "FasterRCNN" and cfg.val_evaluator.metric == ["bbox"]


def test_a_published_name_is_the_base_in_any_folder(data, start):
    cfg = start("--from", "maskrcnn_xcit_small_12_p16", "--data", data, "--skip-checks")
    assert cfg.load_from == "xcit://maskrcnn_xcit_small_12_p16"
    assert cfg.model.backbone.init_cfg is None and cfg.model.backbone.arch == "s12"
    assert cfg.optim_wrapper.paramwise_cfg.layer_decay_rate == 0.8
    assert cfg.train_cfg.type == "IterBasedTrainLoop"


@pytest.mark.parametrize(
    "model, split, bands, dtype, message",
    [
        ("trained", "training", 4, np.uint8, "has 4 bands"),
        ("trained", "validation", 3, np.uint16, "has 16 bits"),
        ("trained_segmentor", "validation", 4, np.uint8, "has 4 bands"),
        ("trained_segmentor", "training", 4, np.uint16, "has 4 bands"),
    ],
)
def test_bands_and_bits_that_would_be_lost_are_named(
    model, split, bands, dtype, message, refused, data, folder, request
):
    tif = data / "images" / split / "00000.tif"
    cv2.imwrite(str(tif), np.full((96, 96, bands), 99, dtype))
    tif.with_suffix(".jpg").unlink()
    if model == "trained":
        json_path = data / f"annotations/instances_{split}.json"
        edit_json(json_path, lambda coco: coco["images"][0].update(file_name=tif.name))
    error = refused("--from", request.getfixturevalue(model), "--data", data)
    assert f"{tif} {message}" in error and "docs/bands.md" in error
    assert not (folder / "my-data.py").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--data", "none"], "no folder or file at"),
        (["--from", "maskrcnn_xcit_smal_12_p16"], "try maskrcnn_xcit_small_12_p16"),
        (["--from", "xcit_small_12_p16_384_dist"], "is neither a config"),
        (["--config", "{{fileDirname}}.py"], "-coco' has {{, which mmengine replaces"),
        (["--config", "taken.py"], "taken.py exists: resume by `xcit-mm train taken.py --resume`"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options, message, refused, trained, data, folder):
    (folder / "taken.py").write_text("mine")
    assert message in refused("--from", trained, "--data", data, *options)
    assert (folder / "taken.py").read_text() == "mine" and not (folder / "my-data.py").exists()


def test_a_failed_check_of_the_data_is_one_line(refused, trained, data):
    edit_annotations(data / TRAINING, lambda annotation: annotation.update(bbox=[0, 0, 0.1, 0.1]))
    message = refused("--from", trained, "--data", data)
    assert message.startswith("ValueError: D408 train: ")


@pytest.mark.parametrize("value", [{"type": "A", "map": {0: "a", "b.c": [1, None]}}, {"b.c": {}}])
def test_a_written_config_holds_keys_that_are_not_names(value):
    assert eval(to_code(value)) == value
