"""`train --from MODEL --data DATA` writes a config that fits both, checks it, and trains it."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import mmengine.runner
import numpy as np
import pytest
from mmengine.config import Config

from xcit_mm.checks.finetuning import finetune, write_finetuning_config
from xcit_mm.weights.models import find_model

CLASSES = ("circle", "square", "triangle", "star")
QUICK = ["train_cfg.max_iters=2", "train_cfg.val_interval=2", "default_hooks.checkpoint.interval=2"]
QUICK += [
    f"{split}_dataloader.{key}"
    for split in ("train", "val", "test")
    for key in ("num_workers=0", "persistent_workers=False")
]


class Started(Exception):
    """mmengine would run this config."""


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    return tmp_path


@pytest.fixture
def trained(models, tmp_path) -> Path:
    """The work folder of a Mask R-CNN for four classes, of a training that was resumed."""
    work = tmp_path / "trained"
    work.mkdir()
    cfg = Config.fromfile(models["det"][0])
    cfg.merge_from_dict(dict(work_dir=str(work), resume=True))
    cfg.dump(work / "mine.py")
    (work / "last_checkpoint").write_text(models["det"][1])
    return work


@pytest.fixture
def started(monkeypatch) -> Callable[..., Config]:
    """Returns the config with which the command starts mmengine."""

    def start(cfg: Config) -> None:
        raise Started(cfg)

    def run(*args: object) -> Config:
        monkeypatch.setattr(mmengine.runner.Runner, "from_cfg", start)
        with pytest.raises(Started) as found:
            finetune(["--from", *map(str, args)])
        return found.value.args[0]

    return run


def edit_json(path: Path, change: Callable[[dict], None]) -> Path:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def two_classes(content: dict) -> None:
    content["categories"] = content["categories"][:2]
    content["annotations"] = [each for each in content["annotations"] if each["category_id"] <= 2]


def without_masks(content: dict) -> None:
    two_classes(content)
    for annotation in content["annotations"]:
        annotation["segmentation"] = []


@pytest.fixture
def data(shapes, tmp_path) -> Path:
    """A folder with jsons of two classes and images."""
    shutil.copytree(shapes, tmp_path / "my data")
    for path in (tmp_path / "my data" / "annotations").glob("*.json"):
        edit_json(path, two_classes)
    return tmp_path / "my data"


def test_a_folder_gives_classes_splits_and_schedule(trained, data, started, folder):
    cfg = started(trained, "--data", data, "--work-dir", "out")
    assert (folder / "my-data.py").read_text().startswith(f"# Fine-tunes {trained} on 8 images.")
    assert cfg.train_dataloader.dataset.metainfo.classes == CLASSES[:2] and cfg.work_dir == "out"
    assert cfg.model.roi_head.bbox_head.num_classes == cfg.model.roi_head.mask_head.num_classes == 2
    held_out = str(data / "annotations" / "instances_validation.json")
    assert cfg.val_dataloader.dataset.ann_file == cfg.val_evaluator.ann_file == held_out
    assert cfg.load_from == find_model(str(trained))[1] and cfg.train_cfg.max_iters == 1000
    assert cfg.default_hooks.checkpoint.save_best == "coco/segm_mAP"


def test_a_fine_tuning_leaves_the_work_folder_of_its_model_alone(trained, data, started):
    cfg = started(trained, "--data", data)
    assert cfg.work_dir == "work_dirs/my-data" and not cfg.resume


def test_a_json_alone_is_trained_without_validation(trained, data, started):
    def many(content: dict) -> None:
        first = content["images"][0]
        content["images"] += [first | dict(id=1000 + number) for number in range(400)]

    path = edit_json(data / "annotations" / "instances_training.json", many)
    cfg = started(trained, "--data", path, "--config", "own.py")
    assert cfg.val_dataloader is None and cfg.train_cfg.max_iters == 12 * 408 // 2
    assert cfg.test_dataloader.dataset.ann_file == cfg.train_dataloader.dataset.ann_file


def write_yolo(data: Path, root: Path, polygons: bool = False) -> Path:
    """Write a data set in COCO's format as Ultralytics and Roboflow do."""
    for split, name in (("training", "train"), ("validation", "valid")):
        content = json.loads((data / "annotations" / f"instances_{split}.json").read_text())
        shutil.copytree(data / "images" / split, root / name / "images")
        (root / name / "labels").mkdir()
        for image in content["images"]:
            lines = []
            for each in (each for each in content["annotations"] if each["image_id"] == image["id"]):
                x, y, w, h = each["bbox"]
                values = [x + w / 2, y + h / 2, w, h] if not polygons else [x, y, x + w, y, x + w, y + h, x, y + h]
                size = (image["width"], image["height"])
                values = [value / size[place % 2] for place, value in enumerate(values)]
                lines.append(" ".join(map(str, [each["category_id"] - 1, *values])))
            (root / name / "labels" / Path(image["file_name"]).with_suffix(".txt").name).write_text("\n".join(lines))
    names = "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: [circle, square]\n"
    (root / "data.yaml").write_text(names)
    return root


def write_voc(data: Path, root: Path) -> Path:
    """Write a data set in COCO's format as that of VOC2012."""
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for split, name in (("validation", "val"), ("training", "train")):
        content = json.loads((data / "annotations" / f"instances_{split}.json").read_text())
        names = {each["id"]: each["name"] for each in content["categories"]}
        stems = []
        for image in content["images"]:
            stem = f"{name}{Path(image['file_name']).stem}"
            stems.append(stem)
            shutil.copy(data / "images" / split / image["file_name"], root / "JPEGImages" / f"{stem}.jpg")
            objects = ""
            for each in (each for each in content["annotations"] if each["image_id"] == image["id"]):
                x, y, w, h = each["bbox"]
                sides = dict(xmin=x + 1, ymin=y + 1, xmax=x + w, ymax=y + h)
                box = "".join(f"<{side}>{value}</{side}>" for side, value in sides.items())
                objects += f"<object><name>{names[each['category_id']]}</name><bndbox>{box}</bndbox></object>"
            (root / "Annotations" / f"{stem}.xml").write_text(f"<annotation>{objects}</annotation>")
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(stems))
    return root


@pytest.mark.parametrize("form", ["yolo", "polygons", "voc"])
def test_yolo_and_pascal_voc_become_coco_jsons_beside_the_config(form, trained, data, started, folder):
    pytest.importorskip("supervision")
    other = write_voc(data, folder / form) if form == "voc" else write_yolo(data, folder / form, form == "polygons")
    cfg = started(trained, "--data", other)
    assert cfg.train_dataloader.dataset.metainfo.classes == CLASSES[:2]
    assert cfg.model.type == ("MaskRCNN" if form == "polygons" else "FasterRCNN")
    for split, name in (("train", "training"), ("val", "validation")):
        found = json.loads(Path(cfg[f"{split}_dataloader"].dataset.ann_file).read_text())
        given = json.loads((data / "annotations" / f"instances_{name}.json").read_text())
        assert len(found["images"]) == len(given["images"])
        boxes, same = (
            sorted((*each["bbox"], each["category_id"]) for each in content["annotations"])
            for content in (found, given)
        )
        assert len(boxes) == len(same) and np.abs(np.array(boxes) - np.array(same)).max() <= 1
        assert not any(each["iscrowd"] for each in found["annotations"])
    assert Path(cfg.train_dataloader.dataset.ann_file).parent == folder / f"{form}-coco"


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
    assert cfg.model.decode_head.num_classes == 6 and not cfg.train_dataloader.dataset.get("reduce_zero_label")
    assert cfg.val_dataloader.dataset.data_prefix.seg_map_path == str(data / "annotations" / "validation")


def test_a_folder_of_another_format_is_described(trained, data, folder):
    other = folder / "labelme"
    shutil.copytree(data / "images" / "training", other)
    for path in list(other.glob("*.jpg")):
        path.with_suffix(".json").write_text(json.dumps(dict(version="5", shapes=[], imagePath=path.name)))
    assert "is a folder of labelme's json files: expected a COCO json" in refused(trained, "--data", other)
    assert "is a folder of 8 .csv files" in refused(trained, "--data", rename(other, ".csv"))


def rename(root: Path, suffix: str) -> Path:
    for path in list(root.glob("*.json")):
        path.rename(path.with_suffix(suffix))
    return root


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


def test_other_jsons_of_coco_and_a_json_of_all_images_are_not_held_out(trained, data, folder):
    (data / "annotations" / "captions_training.json").write_text("{}")
    write_finetuning_config(str(trained), data, folder / "coco.py")
    assert "held_out = dict(" in (folder / "coco.py").read_text()
    for name in ("captions_training", "instances_validation"):
        (data / "annotations" / f"{name}.json").unlink()
    shutil.move(data / "images" / "training", data / "annotations" / "trainval")
    (data / "annotations" / "instances_training.json").rename(data / "annotations" / "trainval.json")
    write_finetuning_config(str(trained), data, folder / "all.py")
    assert "held_out = training\n" in (folder / "all.py").read_text()


def test_a_published_name_is_the_base_in_any_folder(data, folder):
    write_finetuning_config("maskrcnn_xcit_small_12_p16", data, folder / "mine.py")
    cfg = Config.fromfile(folder / "mine.py")
    assert cfg.load_from == "xcit://maskrcnn_xcit_small_12_p16" and cfg.model.backbone.init_cfg is None
    assert cfg.optim_wrapper.paramwise_cfg == dict(layer_decay_rate=0.8, custom_keys=dict(norm=dict(decay_mult=0.0)))
    assert cfg.model.backbone.arch == "s12" and cfg.train_cfg.type == "IterBasedTrainLoop"


def refused(*args: object) -> str:
    """Return the error of the command, which must not train."""
    with pytest.raises(SystemExit) as end:
        finetune(["--from", *map(str, args)])
    assert isinstance(end.value.code, str) and "\n" not in end.value.code
    return end.value.code


def test_wrong_input_is_one_line(trained, data, folder, monkeypatch):
    monkeypatch.setattr(mmengine.runner.Runner, "from_cfg", lambda cfg: pytest.fail("the command trains"))
    training = data / "annotations" / "instances_training.json"
    (folder / "taken.py").touch()
    assert "taken.py exists: train it" in refused(trained, "--data", data, "--config", "taken.py")
    assert "try maskrcnn_xcit_small_12_p16" in refused("maskrcnn_xcit_smal_12_p16", "--data", data)
    assert "is a EncoderDecoder with UPerHead: --from takes" in refused("upernet_xcit_tiny_12_p16", "--data", data)
    assert "no folder or file at" in refused(trained, "--data", folder / "none")
    assert "is a folder of 1 .py files: expected" in refused(trained, "--data", trained)
    assert "then train it with --launcher" in refused(trained, "--data", data, "--launcher", "pytorch")
    shutil.copy(training, data / "instances_train.json")
    assert "but has annotations/instances_training.json, instances_train.json" in refused(trained, "--data", data)
    (data / "instances_train.json").unlink()
    edit_json(training, lambda content: content.update(categories=[]))
    assert "has 0 categories and" in refused(trained, "--data", data)
    edit_json(training, lambda content: content["images"][0].update(file_name="none.jpg"))
    assert "none.jpg of" in refused(trained, "--data", data)
    edit_json(training, lambda content: content.update(images=[]))
    assert "lists no images" in refused(trained, "--data", data)
    training.write_text("{}")
    assert "is not in COCO's format" in refused(trained, "--data", data)
    assert not (folder / "my-data.py").exists()


def test_rasters_lead_to_the_page_on_bands(trained, data):
    cv2.imwrite(str(data / "images" / "training" / "four.tif"), np.zeros((96, 96, 4), np.uint16))
    path = data / "annotations" / "instances_training.json"
    edit_json(path, lambda content: content["images"][0].update(file_name="four.tif"))
    assert "write a config as in docs/bands.md" in refused(trained, "--data", data)


def test_a_failed_check_stops_the_run_and_keeps_the_config(trained, data, folder, capsys):
    path = data / "annotations" / "instances_training.json"
    edit_json(path, lambda content: [each.update(bbox=[0, 0, 0.1, 0.1]) for each in content["annotations"]])
    message = refused(trained, "--data", data)
    assert message.startswith("ValueError: D408 train: ") and (folder / "my-data.py").is_file()
    assert "written: my-data.py. If a check fails, correct" in capsys.readouterr().err
