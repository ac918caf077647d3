"""tools/doctor.py CONFIG reports every error of a run, and no failure for a correct run."""

import re

import pytest
import torch
from helpers.doctor_data import (
    ADE,
    MAPS,
    MASK_RCNN,
    RETINANET,
    SEMANTIC_FPN,
    SHAPES,
    UPERNET,
    assert_named,
    failures,
    findings,
)
from helpers.paths import CONFIGS, ROOT
from helpers.processes import run_script

from xcit_mm import XCiT

pytestmark = pytest.mark.usefixtures("doctors_place")

# A leaf of every recipe: the other leaves differ in the backbone only.
RECIPES = {path.parent.name: path for path in CONFIGS.glob("[!_]*/*_xcit-s12-p16_*.py")}
FEATURE_MAPS = dict(
    retinanet="the neck gives 5 maps of 256 channels at strides 8, 16, 32, 64, 128",
    mask2former="the backbone gives 4 maps of 384 channels at strides 4, 8, 16, 32",
)


@pytest.mark.parametrize("recipe", [*RECIPES, "demo"])
def test_shipped_configs_have_no_failures(recipe, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # then every parameter of the backbone needs a gradient
    config = RECIPES.get(recipe, SHAPES)
    found = findings(config)
    assert [finding for finding in found if finding.level == "FAIL"] == []
    if recipe in FEATURE_MAPS:
        assert f"{FEATURE_MAPS[recipe]}, as the heads expect" in [finding.text for finding in found]


NARROW = [192] * 4
WIDE = [384] * 4
BBOX_HEAD = "roi_head.bbox_head.num_classes"
MASK_HEAD = "roi_head.mask_head.num_classes"
MASK2FORMER = CONFIGS / "mask2former" / "mask2former_xcit-s12-p16_8xb2-lsj-50e_coco.py"
MASK2FORMER_ADE = MASK2FORMER.with_name("mask2former_xcit-s12-p16_8xb2-160k_ade20k-512x512.py")
BAND_MEAN = "data_preprocessor.mean has 3 values, the backbone has in_channels=4"

# An option, and the codes and values of all failures that follow.
WRONG_OPTIONS = [
    (MASK_RCNN, f"model.{MASK_HEAD}=3", [("D303", MASK_HEAD, 3, "train", 80)]),
    (
        MASK_RCNN,
        "train_dataloader.dataset.metainfo.classes=(cat,dog)",
        [
            ("D303", BBOX_HEAD, 80, "train", 2),
            ("D303", MASK_HEAD, 80, "train", 2),
            ("D305", "train", "val", "cat and person, dog and bicycle"),
        ],
    ),
    (
        MASK_RCNN,
        "train_dataloader.dataset.metainfo.classes=cat",
        [("D302", "classes='cat'", "train")],
    ),
    (MASK_RCNN, f"model.neck.in_channels={WIDE}", [("D602", "neck.in_channels", WIDE, NARROW)]),
    (
        MASK_RCNN,
        "model.backbone.out_indices=(3,7,11)",
        [("D602", "neck.in_channels", NARROW, NARROW[:3])],
    ),
    (
        MASK_RCNN,
        "model.rpn_head.in_channels=128",
        [("D603", "rpn_head.in_channels", 128, "the neck", [256] * 5)],
    ),
    (
        MASK_RCNN,
        "model.neck.num_outs=4",
        [("D606", "rpn_head", "4, 8, 16, 32, 64", "the neck", "4, 8, 16, 32")],
    ),
    (
        RETINANET,
        "model.neck.start_level=1",  # as in mmdet's own RetinaNet
        [("D606", "bbox_head", "8, 16, 32, 64, 128", "the neck", "16, 32, 64, 128, 256")],
    ),
    (
        MASK2FORMER,
        "model.panoptic_head.pixel_decoder.strides=(8,16,32,64)",
        [("D606", "pixel_decoder", "8, 16, 32, 64", "the backbone", "4, 8, 16, 32")],
    ),
    (
        UPERNET,
        "model.decode_head.in_channels=[9,9,9,9]",
        [("D603", "decode_head.in_channels", "the backbone", NARROW)],
    ),
    (
        SHAPES,
        "train_dataloader.dataset.reduce_zero_label=False",
        [("D506", "train", "decode_head", "num_classes=5", "label 5 (1842 pixels")],
    ),
    (SEMANTIC_FPN, "train_dataloader.dataset.data_root=nowhere", [("D311", "train", "nowhere")]),
    (
        SEMANTIC_FPN,
        "val_dataloader.dataset.img_suffix=.tif",
        [("D314", "val", ADE / "images" / "validation")],
    ),
    (
        SEMANTIC_FPN,
        "train_dataloader.dataset.seg_map_suffix=.tif",
        [("D314", "train", "3 of 3", MAPS / "0.tif")],
    ),
    # The classes, and the files.
    (MASK_RCNN, "val_dataloader.dataset.type=NoDataset", [("", "NoDataset"), ("", "NoDataset")]),
    (MASK_RCNN, f"val_evaluator.ann_file={ADE}", [("", "IsADirectoryError", ADE)]),
    (MASK_RCNN, "load_from=none.pth", [("", "none.pth")]),
    (MASK_RCNN, "model.backbone.init_cfg.checkpoint=xcit://none", [("", "none")]),
    (MASK_RCNN, "model.backbone.arch=s13", [("", "s13", "n12, t12, t24, s12, s24, m24, l24")]),
    (SHAPES, "model.backbone.in_channels=4", [("", BAND_MEAN)]),
    (MASK2FORMER_ADE, "model.test_cfg.mode=slide", [("", "Mask2FormerHead")]),
    (MASK_RCNN, "default_scope=mmpose", [("", "mmpose", MASK_RCNN, "mmdet, mmseg, mmpretrain")]),
]


@pytest.mark.parametrize(
    "config, option, expected", WRONG_OPTIONS, ids=[option for _, option, _ in WRONG_OPTIONS]
)
def test_wrong_option_is_the_only_failure(config, option, expected):
    assert_named(failures(config, option.replace(" ", "")), expected)


def test_weights_are_compared_with_the_model():
    torch.save(dict(model=XCiT("t12", 8).state_dict()), "p8.pth")
    found = failures(MASK_RCNN, "model.backbone.init_cfg.checkpoint=p8.pth")
    assert_named(found, [("D704", "init_cfg p8.pth", "t12/p8", "t12/p16")])
    torch.save(dict(model=XCiT("t12", 16).state_dict()), "p16.pth")
    ok = findings(MASK_RCNN, "model.backbone.init_cfg.checkpoint=p16.pth", level="ok")
    assert "init_cfg p16.pth fits" in [finding.text for finding in ok]
    found = failures(MASK_RCNN, "load_from=p16.pth")
    assert_named(found, [("D704", "load_from p16.pth", "it is a backbone")])


def test_notes_are_not_failures(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "")  # scripts may pass on an unset variable
    notes = findings(MASK_RCNN, "custom_hooks=[]", level="note")
    assert_named(notes, [("D204", "2 images", "1 process", "16 images"), ("D701",)])
    assert failures(MASK_RCNN, "custom_hooks=[]") == []


def test_command_continues_after_a_failure_and_exits_with_1(tmp_path):
    options = ["model.neck.in_channels=[384]", "train_dataloader.dataset.data_root=nowhere"]
    run = run_script(
        ROOT / "tools" / "doctor.py", str(SEMANTIC_FPN), "--cfg-options", *options, cwd=tmp_path
    )
    assert run.returncode == 1, run.stderr
    lines = run.stdout.splitlines()
    assert [line[:9] for line in lines if line.startswith("FAIL")] == ["FAIL D311", "FAIL D602"]
    assert all(re.match(r"(ok {9}|(note|FAIL) (D\d{3}| {4})  )\S", line) for line in lines)


def test_optimizer_and_colours_of_another_recipe_are_notes():
    options = ["optim_wrapper.optimizer.type=SGD", "model.data_preprocessor.bgr_to_rgb=False"]
    found = findings(SHAPES, *options, "load_from=xcit://sem_fpn_xcit_tiny_12_p16", level="note")
    assert {"D205", "D216"} <= {finding.code for finding in found}


def test_every_code_is_on_the_page_and_the_page_is_short():
    page = (ROOT / "docs" / "doctor.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "xcit_mm" / "checks").glob("*.py"))
    codes = set(re.findall(r'"(D\d{3})"', sources))
    assert codes | {"D101"} == set(re.findall(r"^### (D\d{3})", page, re.MULTILINE))
    assert len(page.split()) <= 1200
