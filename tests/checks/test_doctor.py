"""tools/doctor.py CONFIG reports every error of a run, and no failure for a correct run."""

import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from doctor_data import (
    ADE,
    COCO,
    HEIGHT,
    MAPS,
    MASK_RCNN,
    SEMANTIC_FPN,
    SHAPES,
    UPERNET,
    VAL_JSON,
    WIDTH,
    assert_named,
    edit_json,
    failures,
    findings,
    oks,
    write_image,
    write_map,
    write_segmentation_maps,
)
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from paths import CONFIGS, ROOT
from processes import run_script

from xcit_mm import XCiT
from xcit_mm.checks.doctor import check_test
from xcit_mm.checks.findings import Finding

pytestmark = pytest.mark.usefixtures("doctors_place")

# A leaf of every recipe: the other leaves differ in the backbone only.
RECIPES = {path.parent.name: path for path in CONFIGS.glob("[!_]*/*_xcit-s12-p16_*.py")}
RETINANET, MASK2FORMER = RECIPES["retinanet"], RECIPES["mask2former"]
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


NARROW, WIDE = [192, 192, 192, 192], [384, 384, 384, 384]
BBOX_HEAD, MASK_HEAD = "roi_head.bbox_head.num_classes", "roi_head.mask_head.num_classes"


def both(code: str, *values: object) -> list[tuple]:
    """Return a finding of the training split and of the validation split."""
    return [(code, split, *values) for split in ("train", "val")]


# An option, and the codes and values of all failures that follow.
WRONG_OPTIONS = [
    (MASK_RCNN, f"model.{MASK_HEAD}=3", [("D303", MASK_HEAD, 3, "train", 80)]),
    (
        SEMANTIC_FPN,
        "model.decode_head.num_classes=149",
        [
            ("D303", "decode_head.num_classes", 149, "train", 150),
            *both("D506", "decode_head", "num_classes=149", "label 149 (60 pixels"),
        ],
    ),
    (
        MASK_RCNN,
        "train_dataloader.dataset.metainfo.classes=(cat,dog)",
        [
            ("D303", BBOX_HEAD, 80, "train", 2),
            ("D303", MASK_HEAD, 80, "train", 2),
            ("D305", "train", "val", "cat and person, dog and bicycle"),
        ],
    ),
    (MASK_RCNN, "train_dataloader.dataset.metainfo.classes=cat", [("D302", "classes='cat'", "train")]),
    (MASK_RCNN, f"model.neck.in_channels={WIDE}", [("D602", "neck.in_channels", WIDE, NARROW)]),
    (MASK_RCNN, "model.backbone.out_indices=(3,7,11)", [("D602", "neck.in_channels", NARROW, NARROW[:3])]),
    (MASK_RCNN, "model.rpn_head.in_channels=128", [("D603", "rpn_head.in_channels", 128, "the neck", [256] * 5)]),
    (MASK_RCNN, "model.neck.num_outs=4", [("D606", "rpn_head", "4, 8, 16, 32, 64", "the neck", "4, 8, 16, 32")]),
    (
        UPERNET,
        f"model.decode_head.in_channels={WIDE}",
        [("D603", "decode_head.in_channels", WIDE, "the backbone", NARROW)],
    ),
    (
        SEMANTIC_FPN,
        "model.decode_head.ignore_index=0",
        [*both("D506", "decode_head", "ignore_index=0", "label 255 (63 pixels")],
    ),
    (
        SHAPES,
        "train_dataloader.dataset.reduce_zero_label=False",
        [("D506", "train", "decode_head", "num_classes=5", "ignore_index=255", "label 5 (1842 pixels")],
    ),
    (SEMANTIC_FPN, "train_dataloader.dataset.data_root=nowhere", [("D311", "train", "nowhere")]),
    (SEMANTIC_FPN, "val_dataloader.dataset.img_suffix=.tif", [("D314", "val", ADE / "images" / "validation")]),
    (
        SEMANTIC_FPN,
        "train_dataloader.dataset.seg_map_suffix=.tif",
        [("D314", "train", "3 of 3", *(MAPS / f"{number}.tif" for number in range(3)))],
    ),
    # The classes, and the files.
    (MASK_RCNN, "val_dataloader.dataset.type=NoDataset", [("", "NoDataset"), ("", "NoDataset")]),
    (MASK_RCNN, f"val_evaluator.ann_file={ADE}", [("", "IsADirectoryError", ADE)]),
    (MASK_RCNN, "load_from=none.pth", [("", "no checkpoint at none.pth")]),
    (MASK_RCNN, "model.backbone.init_cfg.checkpoint=none.pth", [("", "no checkpoint at none.pth")]),
    (MASK_RCNN, "model.backbone.init_cfg.checkpoint=xcit://none", [("", "none", "tools/weights.py")]),
    (MASK_RCNN, "model.backbone.arch=s13", [("", "s13", "n12, t12, t24, s12, s24, m24, l24")]),
    (MASK_RCNN, "default_scope=mmpose", [("", "mmpose", MASK_RCNN, "mmdet, mmseg, mmpretrain")]),
]


@pytest.mark.parametrize("config, option, expected", WRONG_OPTIONS, ids=[option for _, option, _ in WRONG_OPTIONS])
def test_wrong_option_is_the_only_failure(config, option, expected):
    assert_named(failures(config, option.replace(" ", "")), expected)


@pytest.mark.parametrize(
    "config, options, expected",
    [
        (
            RETINANET,
            ["model.neck.start_level=1"],  # as in mmdet's own RetinaNet
            [("D606", "bbox_head", "8, 16, 32, 64, 128", "the neck", "16, 32, 64, 128, 256")],
        ),
        (
            MASK_RCNN,
            ["model.backbone.strides=(8,16,32)", "model.neck.in_channels=[192,192,192]"],
            [("D606", "rpn_head", "4, 8, 16, 32, 64", "the neck", "8, 16, 32, 64, 128")]
            + [
                ("D606", f"roi_head.{kind}_roi_extractor", "4, 8, 16, 32", "the neck", "8, 16, 32, 64, 128")
                for kind in ("bbox", "mask")
            ],
        ),
        (
            MASK2FORMER,
            ["model.panoptic_head.pixel_decoder.strides=(8,16,32,64)"],
            [("D606", "panoptic_head.pixel_decoder", "8, 16, 32, 64", "the backbone", "4, 8, 16, 32")],
        ),
    ],
    ids=["start_level", "Mask R-CNN", "Mask2Former"],
)
def test_wrong_strides_are_failures(config, options, expected):
    assert_named(failures(config, *options), expected)


MAP_BREAKS = {
    "label of no class": (
        lambda: write_map(MAPS / "0.png", [1, 200]),
        ("D506", "decode_head", "num_classes=150", "ignore_index=255", "label 199 (1536 pixels"),
    ),
    "colours": (lambda: write_image(MAPS / "0.png"), ("D505", MAPS / "0.png", "3 channels")),
    "no map": ((MAPS / "1.png").unlink, ("D314", "1 of 3", MAPS / "1.png")),
    "broken map": (
        lambda: (MAPS / "1.png").write_bytes(b"no image"),
        ("D315", MAPS / "1.png", "UnidentifiedImageError"),
    ),
}


@pytest.mark.parametrize("name", MAP_BREAKS)
def test_wrong_segmentation_map_is_the_only_failure(name):
    spoil, expected = MAP_BREAKS[name]
    spoil()
    assert_named(failures(SEMANTIC_FPN), [(*expected, "train")])


def test_labels_from_0_with_reduce_zero_label_lack_the_last_class():
    """A rare last class, as in LoveDA and Potsdam, looks the same in a sample."""
    write_segmentation_maps(Path("data/shapes"), [0, 1, 2, 3, 4])
    found = [finding for finding in findings(SHAPES, level="note") if finding.code.startswith("D5")]
    assert_named(found, [("D513", split, "star") for split in ("train", "val")])
    assert all("reduce_zero_label" in finding.fix for finding in found)


def test_other_names_of_the_same_classes_are_a_note():
    labels = ["val_dataloader.dataset.metainfo.classes=(ground,disc,square,triangle,star)"]
    assert failures(SHAPES, *labels) == []
    assert_named(failures(SHAPES, labels[0].replace("ground,disc", "circle,background")), [("D305", "train", "val")])


MASKS = """
model = dict(decode_head=dict(num_classes=2))
metainfo = dict(classes=("ground", "shape"), palette=[(0, 0, 0), (9, 9, 9)])
train_dataloader = dict(dataset=dict(metainfo=metainfo, reduce_zero_label=False))
val_dataloader = dict(dataset=dict(metainfo=metainfo, reduce_zero_label=False))
"""
SHAPES_MAPS = Path("data/shapes/annotations/training")


@pytest.mark.parametrize("last_label, codes", [(255, ["D513"]), (1, [])])
def test_masks_of_0_and_255_do_not_train_whatever_their_number(own_config, last_label, codes):
    config = own_config(MASKS)
    write_segmentation_maps(Path("data/shapes"), [0, 255])
    for kind, suffix in (("images", "jpg"), ("annotations", "png")):
        folder = Path("data/shapes", kind, "training")
        first = sorted(folder.iterdir())[0]
        for number in range(60):  # more than the doctor's sample
            shutil.copy(first, folder / f"copy{number:02}.{suffix}")
    write_map(SHAPES_MAPS / "copy30.png", [last_label])
    assert [finding.code for finding in failures(config)] == codes


def test_class_may_be_in_another_data_set_of_the_split(own_config):
    root = Path("data/shapes")
    write_segmentation_maps(root, [0, 1])
    write_segmentation_maps(Path("data/empty"), [0])
    both = "both = [dict(type='BaseSegDataset', data_root=root, img_suffix='.jpg', metainfo=metainfo, data_prefix="
    both += "dict(img_path='images/training', seg_map_path='annotations/training'), pipeline=_base_.train_pipeline)"
    both += " for root in ('data/shapes', 'data/empty')]\n"
    both += "train_dataloader = dict(dataset=dict(_delete_=True, type='ConcatDataset', datasets=both))"
    assert failures(own_config(f"{MASKS}\n{both}")) == []


@pytest.mark.parametrize("size", [(HEIGHT // 2, WIDTH // 2), (HEIGHT * 2, WIDTH * 2), (WIDTH, HEIGHT)])
def test_maps_of_another_size_than_their_images_are_a_failure(size, own_config):
    file = SHAPES_MAPS / "0.png"
    cv2.imwrite(str(file), np.resize(np.array([1, 2, 3, 4, 5], np.uint8), size))
    assert_named(failures(SHAPES), [("D511", "train", file, size, (HEIGHT, WIDTH))])
    steps = "[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), "
    steps += "dict(type='Resize', scale=(64, 64)), dict(type='PackSegInputs')]"
    assert failures(own_config(f"train_dataloader = dict(dataset=dict(pipeline={steps}))")) == []


@pytest.mark.parametrize("label, codes", [(256, ["D506"]), (65535, []), (3, [])])
def test_labels_of_16_bits_that_8_bits_change_are_a_failure(label, codes):
    given = np.resize(np.array([1, 2, 3, 4, 5, label], np.uint16), (HEIGHT, WIDTH))
    cv2.imwrite(str(SHAPES_MAPS / "0.png"), given)
    assert [finding.code for finding in failures(SHAPES)] == codes


ONE_CLASS = """
model = dict(decode_head=dict(num_classes=1, threshold=0.5, loss_decode=dict(use_sigmoid=True)))
train_dataloader = dict(dataset=dict(metainfo=dict(classes=("shape",), palette=[(9, 9, 9)]), reduce_zero_label=False))
val_dataloader = dict(dataset=dict(metainfo=dict(classes=("shape",), palette=[(9, 9, 9)]), reduce_zero_label=False))
"""


def test_segmentor_of_one_class_has_the_labels_0_and_1(own_config):
    config = own_config(ONE_CLASS)
    write_segmentation_maps(Path("data/shapes"), [0, 1])
    assert failures(config) == []
    assert "D304" in [finding.code for finding in findings(config, level="note")]
    write_segmentation_maps(Path("data/shapes"), [0, 1, 2])
    label = ("decode_head", "num_classes=1", "ignore_index=255", "label 2 (3072 pixels")
    assert_named(failures(config), [("D506", "train", *label), ("D506", "val", *label)])


def test_weights_are_compared_with_the_model():
    torch.save(dict(model=XCiT("t12", 8).state_dict()), "p8.pth")
    found = failures(MASK_RCNN, "model.backbone.init_cfg.checkpoint=p8.pth")
    assert_named(found, [("D704", "init_cfg p8.pth", "t12/p8", "t12/p16")])
    torch.save(dict(model=XCiT("t12", 16).state_dict()), "p16.pth")
    assert "init_cfg p16.pth fits" in oks(MASK_RCNN, "model.backbone.init_cfg.checkpoint=p16.pth")
    message = "it is a backbone: give it to the backbone's init_cfg instead"
    assert_named(failures(MASK_RCNN, "load_from=p16.pth"), [("D704", "load_from p16.pth", message)])


def test_weights_of_other_classes_are_a_failure():
    cfg = Config.fromfile(SHAPES)
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), "whole.pth")
    assert "load_from whole.pth fits" in oks(SHAPES, "load_from=whole.pth")
    found = failures(SHAPES, "load_from=whole.pth", "model.decode_head.num_classes=7")
    shapes = "decode_head.conv_seg.weight of (5, 128, 1, 1), not (7, 128, 1, 1)"
    assert_named(found, [("D303", "decode_head.num_classes", 7, "train", 5), ("D704", "load_from whole.pth", shapes)])


@pytest.fixture
def own_config(tmp_path) -> Callable[[str], Path]:
    """Return a function that writes a config on top of the config of the shapes."""

    def write(text: str) -> Path:
        path = tmp_path / "config.py"
        path.write_text(f"_base_ = {str(SHAPES)!r}\n{text}\n")
        return path

    return write


def test_data_sets_in_wrappers_are_checked(own_config):
    config = own_config(
        "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=2, "
        "dataset=dict(type='ConcatDataset', datasets=[dict(type='BaseSegDataset', data_root='nowhere')])))"
    )
    assert_named(failures(config), [("D311", "train", "nowhere"), ("D302", "classes=None", "train")])


@pytest.mark.parametrize("given", ["None", "dict(_delete_=True, imports=[])", "dict(imports=['json'])"])
def test_config_without_import_of_xcit_mm_is_a_failure(own_config, given):
    assert_named(failures(own_config(f"custom_imports = {given}")), [("D202", "XCiT")])


def test_config_may_import_a_module_that_imports_xcit_mm(own_config, tmp_path, monkeypatch):
    (tmp_path / "own_project.py").write_text("import xcit_mm\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert failures(own_config("custom_imports = dict(imports=['own_project'])")) == []


def test_notes_are_not_failures(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "")  # scripts may pass on an unset variable
    notes = findings(MASK_RCNN, "custom_hooks=[]", level="note")
    assert_named(notes, [("D204", "2 images", "1 process", "16 images"), ("D701",)])
    assert failures(MASK_RCNN, "custom_hooks=[]") == []


def test_command_continues_after_a_failure_and_exits_with_1(tmp_path):
    options = ["model.neck.in_channels=[384]", "train_dataloader.dataset.data_root=nowhere"]
    run = run_script(ROOT / "tools" / "doctor.py", str(SEMANTIC_FPN), "--cfg-options", *options, cwd=tmp_path)
    assert run.returncode == 1, run.stderr
    lines = run.stdout.splitlines()
    assert [line[:9] for line in lines if line.startswith("FAIL")] == ["FAIL D311", "FAIL D602"]
    assert all(re.match(r"(ok {9}|(note|FAIL) (D\d{3}| {4})  )\S", line) for line in lines)


def set_palette(palette: object) -> str:
    return f"train_dataloader = dict(dataset=dict(metainfo=dict(palette={palette!r})))"


@pytest.mark.parametrize(
    "palette, codes", [([[9, 9, 9]] * 80, ["D306"]), ([(9, 9, 9)] * 2, ["D306"]), ([(9, 9, 9)] * 80, [])]
)
def test_palette_that_cannot_be_drawn_is_a_failure(palette, codes, tmp_path):
    """mmdet's visualizer takes a list of tuples, and test --show-dir ends in 'Invalid type for color'."""
    config = tmp_path / "config.py"
    config.write_text(f"_base_ = {str(MASK_RCNN)!r}\n{set_palette(palette)}\n")
    assert [finding.code for finding in failures(config)] == codes


def test_map_of_other_channels_outside_the_sample_is_a_failure(own_config):
    for kind, suffix in (("images", "jpg"), ("annotations", "png")):
        folder = Path("data/shapes", kind, "training")
        for number in range(200):
            shutil.copy(folder / f"0.{suffix}", folder / f"copy{number:03}.{suffix}")
    write_image(SHAPES_MAPS / "copy117.png")
    assert_named(failures(SHAPES), [("D505", "train", SHAPES_MAPS / "copy117.png", "3 channels")])


def test_mask2former_of_mmseg_in_windows_is_refused_by_name():
    config = CONFIGS / "mask2former" / "mask2former_xcit-s12-p16_8xb2-160k_ade20k-512x512.py"
    (found, *_) = failures(config, "model.test_cfg.mode=slide")
    assert "Mask2FormerHead of mmseg predicts whole images only" in found.text and "D311" not in found.code


@pytest.mark.parametrize(
    "config, options, part",
    [
        (UPERNET, ["model.decode_head.in_index=(2,3)", "model.decode_head.in_channels=[192,192]"], "fpn1.0"),
        (RETINANET, ["model.backbone.strides=None", "model.backbone.out_indices=None"], "fpn1.0"),
    ],
)
def test_levels_without_gradient_stop_a_distributed_run_before_it_starts(config, options, part, monkeypatch):
    if config is RETINANET:
        options = [
            "model.backbone.strides=(4,8,16,32)",
            "model.neck.in_channels=[384,384,384,384]",
            "model.neck.start_level=1",
        ]
    assert "D609" not in [finding.code for finding in failures(config, *options)]
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = [finding for finding in failures(config, *options) if finding.code == "D609"]
    assert_named(found, [("D609", part)])
    assert "D609" not in [finding.code for finding in failures(config, *options, "find_unused_parameters=True")]


@pytest.mark.parametrize(
    "config, changes",
    [
        (MASK_RCNN, ["ann_file=annotations/instances_train2017.json", "data_prefix.img=train2017/"]),
        (SEMANTIC_FPN, ["data_prefix.img_path=images/training", "data_prefix.seg_map_path=annotations/training"]),
    ],
)
def test_validation_and_test_on_training_images_are_a_note(config, changes):
    options = [f"val_dataloader.dataset.{change}" for change in changes]
    found = [finding for finding in findings(config, *options, level="note") if finding.code == "D319"]
    assert_named(found, [("D319", "3 of 3")])
    assert "D319" not in [finding.code for finding in findings(config)]
    cfg = Config.fromfile(config)
    cfg.merge_from_dict(
        {option.partition("=")[0].replace("val_", "test_"): option.partition("=")[2] for option in options}
    )
    assert_named(noted(check_test(cfg)), [("D319", "3 of 3", "test split")])


def noted(found: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.level != "ok"]


def test_drawings_of_one_name_are_a_note():
    """mmdet's hook writes DIR/NAME.jpg whatever the folder of the image is."""
    cfg = Config.fromfile(MASK_RCNN)
    cfg.test_dataloader.dataset.data_prefix.img = ""
    for name in ("a", "b"):
        write_image(COCO / name / "0.jpg")
    edit_json(
        VAL_JSON,
        lambda c: [
            image.update(file_name=n) for image, n in zip(c["images"], ("a/0.jpg", "b/0.jpg", "c.jpg"), strict=True)
        ],
    )
    assert_named(noted(check_test(cfg, drawn=True)), [("D320", "1 of 3", "0.jpg")])
    assert noted(check_test(cfg)) == []


def test_optimizer_and_colours_of_another_recipe_are_notes():
    options = ["optim_wrapper.optimizer.type=SGD", "model.data_preprocessor.bgr_to_rgb=False"]
    found = findings(SHAPES, *options, "load_from=xcit://sem_fpn_xcit_tiny_12_p16", level="note")
    assert {"D205", "D216"} <= {finding.code for finding in found}


def test_every_code_is_on_the_page_and_the_page_is_short():
    page = (ROOT / "docs" / "doctor.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "xcit_mm" / "checks").glob("*.py")) + '"D101"'
    codes = set(re.findall(r'"(D\d{3})"', sources))
    assert codes == set(re.findall(r"^### (D\d{3})", page, re.MULTILINE))
    assert len(page.split()) <= 1200
