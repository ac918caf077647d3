"""tools/doctor.py CONFIG names what is wrong with a run, and nothing on a correct one."""

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import doctor
import numpy as np
import pytest
import torch
from mmdet.datasets import CocoDataset
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from paths import CONFIGS

from xcit_mm import XCiT
from xcit_mm.runs.data_checks import check_classes
from xcit_mm.runs.doctor import diagnose

SHIPPED = sorted(path for task in ("mask_rcnn", "semantic_fpn", "upernet") for path in (CONFIGS / task).glob("*.py"))
MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-t12-p16_fpn_amp-ms-crop-3x_coco.py"
SEMANTIC_FPN = CONFIGS / "semantic_fpn" / "fpn_xcit-t12-p16_8xb2-80k_ade20k-512x512.py"
UPERNET = CONFIGS / "upernet" / "upernet_xcit-t12-p16_8xb2-160k_ade20k-512x512.py"
SHAPES = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"

COCO = Path("data/coco")
TRAIN_JSON, VAL_JSON = (COCO / "annotations" / f"instances_{split}2017.json" for split in ("train", "val"))
ADE = Path("data/ade/ADEChallengeData2016")
MAPS = ADE / "annotations" / "training"


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((48, 64, 3), 99, np.uint8))


def write_map(path: Path, labels: list[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.resize(np.array(labels, np.uint8), (48, 64)))


def write_coco() -> None:
    categories = [dict(id=2 * i + 1, name=name) for i, name in enumerate(CocoDataset.METAINFO["classes"])]
    box = dict(bbox=[4, 4, 20, 20], area=400, iscrowd=0, segmentation=[[4, 4, 24, 4, 24, 24, 4, 24]])
    for path, split in ((TRAIN_JSON, "train"), (VAL_JSON, "val")):
        images = [dict(id=i, file_name=f"{i}.jpg", height=48, width=64) for i in range(3)]
        for image in images:
            write_image(COCO / f"{split}2017" / image["file_name"])
        annotations = [dict(box, id=i, image_id=i % 3, category_id=one["id"]) for i, one in enumerate(categories)]
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(dict(images=images, annotations=annotations, categories=categories)))


def write_label_maps(root: Path, labels: list[int]) -> None:
    for split in ("training", "validation"):
        for number in range(3):
            write_image(root / "images" / split / f"{number}.jpg")
            write_map(root / "annotations" / split / f"{number}.png", labels)


def not_in_a_metafile(package: str, config: str) -> str:
    raise ValueError(f"{config} is a base config")


@pytest.fixture(autouse=True)
def metafiles_unread(monkeypatch) -> None:
    """mmengine looks for `mmdet::_base_/...` in hundreds of metafiles, in vain, for seconds a test."""
    monkeypatch.setattr("mmengine.config.config._get_external_cfg_path", not_in_a_metafile)


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch) -> None:
    """Correct data sets where the configs look for them, and a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    write_coco()
    write_label_maps(ADE, list(range(151)))
    write_label_maps(Path("data/shapes"), [1, 2, 3, 4, 5])


def lines(config: Path, *options: str) -> list[str]:
    argv = ["--cfg-options", *options] if options else []
    return [str(finding) for finding in diagnose(str(config), argv)]


def failures(config: Path, *options: str) -> list[str]:
    return [line for line in lines(config, *options) if line.startswith("FAIL")]


@pytest.mark.parametrize("config", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configs_are_not_complained_of(config):
    assert failures(config) == []


def test_demo_config_is_not_complained_of():
    assert failures(SHAPES) == []


@pytest.mark.parametrize(
    "config, option, message",
    [
        (
            MASK_RCNN,
            "model.roi_head.bbox_head.num_classes=3",
            "roi_head.bbox_head.num_classes is 3, the train data set",
        ),
        (
            MASK_RCNN,
            "model.roi_head.mask_head.num_classes=3",
            "roi_head.mask_head.num_classes is 3, the train data set",
        ),
        (
            SEMANTIC_FPN,
            "model.decode_head.num_classes=149",
            "decode_head.num_classes is 149, the train data set has 150",
        ),
        (UPERNET, "model.auxiliary_head.num_classes=19", "auxiliary_head has num_classes=19 and ignore_index=255, the"),
        (MASK_RCNN, "train_dataloader.dataset.metainfo.classes=(cat,dog)", "train and val data sets have different"),
        (MASK_RCNN, "train_dataloader.dataset.metainfo.classes=cat", "classes='cat' in the train data set"),
        (MASK_RCNN, "model.neck.in_channels=[384,384,384,384]", "neck.in_channels is [384, 384, 384, 384], the back"),
        (MASK_RCNN, "model.backbone.out_indices=(3,7,11)", "the backbone gives [192, 192, 192] -- fix"),
        (MASK_RCNN, "model.rpn_head.in_channels=128", "rpn_head.in_channels is 128, the neck gives"),
        (UPERNET, "model.decode_head.in_channels=[384,384,384,384]", "decode_head.in_channels is [384, 384, 384, 384]"),
        (UPERNET, "model.auxiliary_head.in_channels=384", "auxiliary_head.in_channels is 384, the backbone gives"),
        (UPERNET, "model.backbone.out_indices=(3,7,11)", "decode_head.in_channels is [192, 192, 192, 192], the"),
        (UPERNET, "train_dataloader.batch_size=1", "BatchNorm in decode_head.psp_modules.0 follows pooling to 1x1"),
        (SEMANTIC_FPN, "model.decode_head.ignore_index=0", "unlabelled pixels have different labels: decode_head."),
        (SEMANTIC_FPN, "model.data_preprocessor.seg_pad_val=0", "data_preprocessor.seg_pad_val=0"),
        (
            SEMANTIC_FPN,
            "train_dataloader.dataset.reduce_zero_label=False",
            "reduce_zero_label=False in the data set, no",
        ),
        (SHAPES, "train_dataloader.dataset.reduce_zero_label=False", "label 5 ("),
        (
            SEMANTIC_FPN,
            "train_dataloader.dataset.data_root=nowhere",
            "the train data are not at nowhere -- fix: put or",
        ),
        (SEMANTIC_FPN, "val_dataloader.dataset.img_suffix=.tif", "val: no *.tif in"),
        (SEMANTIC_FPN, "train_dataloader.dataset.seg_map_suffix=.tif", "3 of 3 images have no segmentation map"),
        (MASK_RCNN, "val_dataloader.dataset.type=NoDataset", "no data set of type NoDataset is registered"),
        (MASK_RCNN, f"val_evaluator.ann_file={ADE}", "Is a directory"),
        (MASK_RCNN, "load_from=none.pth", "load_from: no checkpoint at none.pth"),
        (MASK_RCNN, "model.backbone.init_cfg.checkpoint=none.pth", "init_cfg: no checkpoint at none.pth"),
        (MASK_RCNN, "model.backbone.init_cfg.checkpoint=xcit://none", "'none' is not a published name"),
        (MASK_RCNN, "model.backbone.arch=s13", "the model cannot be built: ValueError: unknown arch 's13'"),
        (MASK_RCNN, "default_scope=mmpose", "default_scope='mmpose'"),
    ],
)
def test_wrong_options_are_named(config, option, message):
    assert any(message in line for line in failures(config, option))


def edit_json(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def swap_categories(content: dict) -> None:
    categories = content["categories"]
    categories[0], categories[1] = categories[1], categories[0]


BREAKS = {
    "the classes: it would show bicycle as person, person as bicycle": lambda: edit_json(TRAIN_JSON, swap_categories),
    "1 of 80 classes are no category of the json: cat; left out are its Cat (1 annotations)": lambda: edit_json(
        VAL_JSON, lambda content: content["categories"][15].update(name="Cat")
    ),
    "has annotations of the classes": lambda: edit_json(TRAIN_JSON, lambda content: content.update(annotations=[])),
    "is not JSON": lambda: TRAIN_JSON.write_text("images"),
    "not in COCO's format: KeyError: 'categories'": lambda: edit_json(VAL_JSON, lambda one: one.pop("categories")),
    "2 annotations of data/coco/annotations/instances_train2017.json have no segmentation": lambda: edit_json(
        TRAIN_JSON, lambda content: [content["annotations"][place].pop("segmentation") for place in (0, 5)]
    ),
    "has 1 annotations with the id of another one": lambda: edit_json(
        TRAIN_JSON, lambda content: content["annotations"][1].update(id=0)
    ),
    "train: 1 of 3 images are missing: data/coco/train2017/1.jpg": lambda: (COCO / "train2017/1.jpg").unlink(),
    "data/coco/val2017/2.jpg cannot be read": lambda: (COCO / "val2017/2.jpg").write_bytes(b"no image"),
    "data/coco/train2017/0.jpg is of (48, 64), in the json of (64, 48) pixels": lambda: edit_json(
        TRAIN_JSON, lambda content: content["images"][0].update(height=64, width=48)
    ),
    "train data are not at data/coco/annotations/instances_train2017.json": lambda: TRAIN_JSON.unlink(),
}


@pytest.mark.parametrize("message", BREAKS)
def test_wrong_coco_data_are_named(message):
    BREAKS[message]()
    assert any(message in line for line in failures(MASK_RCNN))


def test_evaluator_of_other_images_is_named():
    edit_json(TRAIN_JSON, lambda content: [image.update(id=image["id"] + 10) for image in content["images"]])
    found = failures(MASK_RCNN, f"val_evaluator.ann_file={TRAIN_JSON}")
    assert any("are not in the val_evaluator's" in line for line in found)


MAP_BREAKS = {
    "label 199 (": lambda: write_map(MAPS / "0.png", [1, 200]),
    "0.png has 3 channels: colours instead of labels": lambda: write_image(MAPS / "0.png"),
    "1 of 3 images have no segmentation map": lambda: (MAPS / "1.png").unlink(),
    "1.png cannot be read": lambda: (MAPS / "1.png").write_bytes(b"no image"),
}


@pytest.mark.parametrize("message", MAP_BREAKS)
def test_wrong_label_maps_are_named(message):
    MAP_BREAKS[message]()
    assert any(message in line for line in failures(SEMANTIC_FPN))


def test_labels_from_0_under_reduce_zero_label_are_named():
    write_label_maps(Path("data/shapes"), [0, 1, 2, 3, 4])
    assert any("leaves the last class without pixels" in line for line in failures(SHAPES))


def test_weights_of_another_patch_size_are_named():
    torch.save(dict(model=XCiT("t12", 8).state_dict()), "p8.pth")
    message = "p8.pth does not fit: the file is t12/p8, the config asks for t12/p16"
    assert any(message in line for line in failures(MASK_RCNN, "model.backbone.init_cfg.checkpoint=p8.pth"))


def test_fitting_weights_are_ok_and_a_backbone_is_no_detector():
    torch.save(dict(model=XCiT("t12", 16).state_dict()), "p16.pth")
    assert "ok    init_cfg p16.pth is there and fits" in lines(MASK_RCNN, "model.backbone.init_cfg.checkpoint=p16.pth")
    assert any("give it to the backbone's init_cfg" in line for line in failures(MASK_RCNN, "load_from=p16.pth"))


def test_whole_model_of_other_classes_is_named():
    cfg = Config.fromfile(SHAPES)
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), "whole.pth")
    assert "ok    load_from whole.pth is there and fits" in lines(SHAPES, "load_from=whole.pth")
    found = failures(SHAPES, "load_from=whole.pth", "model.decode_head.num_classes=7")
    assert any("decode_head.conv_seg.weight of (5, 128, 1, 1), not (7, 128, 1, 1)" in line for line in found)


def test_sync_bn_on_processes_without_cuda_is_named(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert any("backbone and decode_head use SyncBN" in line for line in failures(SEMANTIC_FPN))
    fix = ["model.backbone.norm_cfg.type=BN", "model.decode_head.norm_cfg.type=BN"]
    assert failures(SEMANTIC_FPN, *fix) == []


def test_data_sets_inside_wrappers_are_looked_at(tmp_path):
    config = tmp_path / "config.py"
    config.write_text(
        f"_base_ = {str(SHAPES)!r}\n"
        "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=2, "
        "dataset=dict(type='ConcatDataset', datasets=[dict(type='BaseSegDataset', data_root='nowhere')])))\n"
    )
    assert any("the train data are not at nowhere" in line for line in failures(config))


def test_what_is_no_failure_is_a_note():
    found = lines(MASK_RCNN, "custom_hooks=[]")
    notes = [line for line in found if line.startswith("note")]
    assert any("2 images a step over 1 process(es), the learning rate is for 16 -- fix" in line for line in notes)
    assert any("without StrictLoadHook" in line for line in notes)
    assert any("xcit://xcit_tiny_12_p16_384_dist is not in" in line for line in notes)
    assert any("mixed precision needs a GPU" in line for line in notes)
    assert not any(line.startswith("FAIL") for line in found)


def test_categories_left_out_are_noted():
    edit_json(TRAIN_JSON, lambda content: content["categories"].append(dict(id=500, name="unicorn")))
    edit_json(TRAIN_JSON, lambda content: content["annotations"][0].update(category_id=500))
    message = "note  train: categories that are no classes are left out: unicorn (1 annotations)"
    assert any(line.startswith(message) for line in lines(MASK_RCNN))


def test_command_goes_on_after_a_failure_and_exits_with_1(tool):
    options = ["model.neck.in_channels=[384]", "train_dataloader.dataset.data_root=nowhere"]
    run = tool("doctor", SEMANTIC_FPN, "--cfg-options", *options)
    assert run.returncode == 1, run.stderr
    found = run.stdout.splitlines()
    assert sum(line.startswith("FAIL") for line in found) == 2
    assert all(line[:6] in ("ok    ", "note  ", "FAIL  ") for line in found)
    assert all(" -- fix: " in line for line in found if line.startswith("FAIL"))


def test_without_a_config_the_installation_is_checked(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["doctor.py"])
    assert doctor.main() == 0
    assert "no GPU, training runs on CPU" in capsys.readouterr().out


def test_classes_of_mmpretrain_are_not_missed():
    loader = dict(dataset=dict(type="CustomDataset", data_root="data/folders"))
    (finding,) = check_classes(Config(dict(default_scope="mmpretrain", train_dataloader=loader)), {})
    assert finding.level == "note"
