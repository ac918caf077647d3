"""`xcit-mm doctor CONFIG` reports every error of a run, and no failure for a correct run."""

import re
from pathlib import Path

import pytest
from helpers.doctor_data import (
    ADE,
    MASK_RCNN,
    RETINANET,
    SEMANTIC_FPN,
    SHAPES,
    VAL_JSON,
    assert_named,
    edit_json,
    failures,
    findings,
)
from helpers.paths import CONFIGS, ROOT
from mmengine.config import Config

from xcit_mm.checks.doctor import check_test, check_training
from xcit_mm.checks.findings import Finding

pytestmark = pytest.mark.usefixtures("doctors_place")

# A leaf of every recipe: the other leaves differ in the backbone only.
RECIPES = {path.parent.name: path for path in CONFIGS.glob("[!_]*/*_xcit-s12-p16_*.py")}


@pytest.mark.parametrize("recipe", [*RECIPES, "demo"])
def test_shipped_configs_have_no_failures(recipe):
    found = findings(RECIPES.get(recipe, SHAPES))
    assert {finding.code for finding in found if finding.level != "ok"} <= {"D204"}
    assert sum(": 3 images" in finding.text for finding in found) == 2


MASK2FORMER = CONFIGS / "mask2former" / "mask2former_xcit-s12-p16_8xb2-lsj-50e_coco.py"

MASK2FORMER_SEG = MASK2FORMER.with_name("mask2former_xcit-s12-p16_8xb2-160k_ade20k-512x512.py")

# Options, and the codes and values of all failures that follow.
WRONG_OPTIONS = [
    (
        MASK_RCNN,
        ["train_dataloader.dataset.metainfo.classes=(cat,dog)"],
        [
            ("D303", "roi_head.bbox_head.num_classes", 80, "train", 2),
            ("D303", "roi_head.mask_head.num_classes", 80, "train", 2),
            ("D305", "class 0 is cat in the train data, person in the val data"),
        ],
    ),
    (
        MASK_RCNN,
        ["model.backbone.out_indices=(3,7,11)"],
        [("", "neck.in_channels", [192] * 4, [192] * 3)],
    ),
    (
        RETINANET,
        ["model.neck.start_level=1"],  # as in mmdet's own RetinaNet
        [("D606", "bbox_head", [8, 16, 32, 64, 128], "the neck", [16.0, 32.0, 64.0, 128.0, 256.0])],
    ),
    (
        MASK2FORMER,
        ["model.panoptic_head.pixel_decoder.strides=(8,16,32,64)"],
        [("D606", "pixel_decoder", [8, 16, 32, 64], "the backbone", [4, 8, 16, 32])],
    ),
    (
        MASK2FORMER_SEG,
        ["model.test_cfg.mode=slide", "model.test_cfg.crop_size=(512,512)"],
        [("D607", "Mask2FormerHead")],
    ),
    (
        SEMANTIC_FPN,
        ["val_dataloader.dataset.img_suffix=.tif"],
        [("D314", "val", ADE / "images" / "validation")],
    ),
    (
        MASK_RCNN,
        ["test_dataloader.dataset.ann_file=annotations/none.json"],
        [("D311", "test", "none.json")],
    ),
    (MASK_RCNN, ["test_evaluator.ann_file=none.json"], [("D311", "test", "none.json")]),
    (
        MASK_RCNN,
        ["test_evaluator.metrics.type=CocoMetric", "test_evaluator.metrics.ann_file=none.json"],
        [("D311", "test", "none.json")],
    ),
    (
        SHAPES,
        ["train_dataloader.dataset.type=Mistyped", "model.neck.in_channels=[9]"],
        [("", "neck"), ("", "Mistyped")],
    ),
]


@pytest.mark.parametrize(
    "config, options, expected", WRONG_OPTIONS, ids=[options[0] for _, options, _ in WRONG_OPTIONS]
)
def test_each_wrong_option_is_named_and_hides_no_other(config, options, expected):
    assert_named(failures(config, *options), expected)


def test_a_config_may_name_the_scope_of_each_part(own_config):
    config = own_config(
        "default_scope = None\n"
        "train_dataloader = dict(dataset=dict(_scope_='mmseg'))\n"
        "val_dataloader = test_dataloader = train_dataloader"
    )
    assert failures(config) == []


def test_notes_are_not_failures():
    options = ["custom_hooks=[]", "optim_wrapper.accumulative_counts=2"]
    found = findings(MASK_RCNN, *options, processes=2)
    assert not any(finding.level == "FAIL" for finding in found)
    batch = ("D204", "8 images", "2 process", "2 iteration(s)", "16 images")
    notes = [finding for finding in found if finding.level == "note"]
    assert_named(notes, [batch, ("D701",)])
    assert findings(MASK_RCNN, "optim_wrapper.accumulative_counts=8", level="note") == []


def test_command_continues_after_a_failure_and_exits_with_1(call):
    options = ["model.neck.in_channels=[384]", "train_dataloader.dataset.data_root=nowhere"]
    code, printed, _ = call("doctor", SEMANTIC_FPN, "--cfg-options", *options)
    assert code == 1
    lines = printed.splitlines()
    failed = [line[:11] for line in lines if line.startswith("FAIL")]
    assert failed == ["FAIL       ", "FAIL D311  "]
    assert all(re.match(r"(ok {9}|(note|FAIL) (D\d{3}| {4})  )\S", line) for line in lines)


def test_a_detr_with_levels_of_its_own_has_no_failures(tmp_path):
    config = tmp_path / "detr.py"
    config.write_text(
        "_base_ = 'mmdet::deformable_detr/deformable-detr_r50_16xb2-50e_coco.py'\n"
        "custom_imports = dict(imports=['xcit_mm'])\n"
        "backbone = dict(_delete_=True, type='XCiT', arch='n12', strides=(8, 16, 32))\n"
        "model = dict(backbone=backbone, neck=dict(in_channels=[128] * 3))\n"
    )
    assert failures(config) == []


PUBLISHED = "load_from=xcit://sem_fpn_xcit_tiny_12_p16"
FROM_AUTHORS = "https://dl.fbaipublicfiles.com/xcit/ade/sem_fpn_xcit_tiny_12_p16.pth"
PIXELS = "model.data_preprocessor"
CROP = "train_dataloader.dataset.pipeline.2"
SILENT = [
    ("D216", [f"{PIXELS}.bgr_to_rgb=False", PUBLISHED], "BGR"),
    ("D216", [f"{PIXELS}.mean=None", f"{PIXELS}.std=None", PUBLISHED], "mean=None"),
    ("D216", [f"{PIXELS}.mean=[0.485,0.456,0.406]", PUBLISHED], "mean=[0.485"),
    ("D216", [f"{PIXELS}.mean=None", f"load_from={FROM_AUTHORS}"], "mean=None"),
    ("D507", ["model.decode_head.ignore_index=0"], "is 0, that of the metric 255"),
    ("D607", [f"{PIXELS}.test_cfg=None"], "not a multiple of 32"),
    ("D607", [f"{PIXELS}.size=(150,160)"], "[150 160]"),
    ("D607", [f"{CROP}.type=RandomCrop", f"{CROP}.crop_size=(99,170)"], "[160 170]"),
    ("D607", ["model.test_cfg.mode=slide", "model.test_cfg.crop_size=(80,96)"], "(80, 96)"),
]


def test_maskformer_of_mmseg_must_not_pad(tmp_path):
    """It squeezes the map of a padded image, which mmseg then cuts."""
    config = tmp_path / "maskformer.py"
    config.write_text(
        "_base_ = 'mmseg::maskformer/maskformer_r50-d32_8xb2-160k_ade20k-512x512.py'\n"
        "custom_imports = dict(imports=['xcit_mm'])\n"
        "model = dict(backbone=dict(_delete_=True, type='XCiT', arch='n12'),\n"
        "    decode_head=dict(in_channels=[128] * 4))\n"
    )
    options = ["model.data_preprocessor.test_cfg.size_divisor=32"]
    found = findings(config, *options, level="note")
    assert "MaskFormerHead squeezes" in "".join(note.text for note in found)
    options = ["model.data_preprocessor.test_cfg=None"]
    assert "D607" not in [note.code for note in findings(config, *options, level="note")]


def test_published_weights_take_other_bands_than_those_of_a_photo():
    four = [f"{PIXELS}.{name}=[9,9,9,9]" for name in ("mean", "std")]
    assert failures(SHAPES, PUBLISHED, "model.backbone.in_channels=4", *four) == []


@pytest.mark.parametrize("code, options, named", SILENT)
def test_a_segmentor_that_is_wrong_in_silence_is_a_note(code, options, named):
    """Its maps are misplaced, or pixels or labels are not those of its weights or scores."""
    found = findings(SHAPES, *options)
    (note,) = [finding for finding in found if finding.code == code]
    assert note.level == "note" and named in note.text and note.fix


def test_the_preprocessor_beside_the_model_counts():
    cfg = Config.fromfile(SHAPES)
    cfg.data_preprocessor = cfg.model.pop("data_preprocessor")
    assert [finding for finding in check_training(cfg) if finding.level != "ok"] == []


def test_the_page_explains_every_code():
    page = (ROOT / "docs" / "doctor.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "xcit_mm" / "checks").glob("*.py"))
    codes = set(re.findall(r'"(D\d{3})"', sources))
    assert codes | {"D101"} == set(re.findall(r"^### (D\d{3})", page, re.MULTILINE))


def test_data_sets_in_wrappers_are_checked(own_config):
    config = own_config(
        "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=2, "
        "dataset=dict(type='ConcatDataset', "
        "datasets=[dict(type='BaseSegDataset', data_root='nowhere')])))"
    )
    expected = [("D311", "train", "nowhere")]
    assert_named(failures(config), expected)


def checked_test(config: Path, *options: str) -> list[Finding]:
    """Return notes and failures of a test."""
    cfg = Config.fromfile(config)
    cfg.merge_from_dict(dict(option.split("=") for option in options))
    return [finding for finding in check_test(cfg) if finding.level != "ok"]


COCO_TRAINING = ["ann_file=annotations/instances_train2017.json", "data_prefix.img=train2017/"]
MAPS_TRAINING = ["data_prefix.img_path=images/training"]
MAPS_TRAINING += ["data_prefix.seg_map_path=annotations/training"]


def test_validation_and_test_on_training_images_are_a_note():
    options = [f"val_dataloader.dataset.{option}" for option in COCO_TRAINING]
    found = findings(MASK_RCNN, *options, level="note")
    assert ("D319", True) in [(note.code, "3 of 3" in note.text) for note in found]
    options = [f"test_dataloader.dataset.{option}" for option in MAPS_TRAINING]
    assert_named(checked_test(SEMANTIC_FPN, *options), [("D319", "3 of 3", "test split")])


def test_images_without_labels_are_tested():
    """COCO's test-dev has no annotations."""
    edit_json(VAL_JSON, lambda content: content.pop("annotations"))
    assert checked_test(MASK_RCNN) == []


def test_photos_without_segmentation_maps_are_tested():
    """mmseg writes their maps for a server that scores them."""
    cfg = Config.fromfile(SHAPES)
    dataset = cfg.test_dataloader.dataset
    dataset.data_prefix.pop("seg_map_path")
    dataset.pipeline = [step for step in dataset.pipeline if step.type != "LoadAnnotations"]
    assert [finding.level for finding in check_test(cfg)] == ["ok", "note"]
