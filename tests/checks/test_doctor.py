"""tools/doctor.py CONFIG reports every error of a run, and no failure for a correct run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import doctor
import numpy as np
import pytest
import torch
from doctor_data import (
    ADE,
    HEIGHT,
    MAPS,
    MASK_RCNN,
    SEMANTIC_FPN,
    SHAPES,
    UPERNET,
    WIDTH,
    assert_named,
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
from torch import nn

from xcit_mm import XCiT
from xcit_mm.checks.data import check_classes
from xcit_mm.checks.doctor import check_training
from xcit_mm.checks.model import build_model, check_channels

pytestmark = pytest.mark.usefixtures("doctors_place")

# A leaf of every recipe: the other leaves differ in the backbone only.
RECIPES = {path.parent.name: path for path in CONFIGS.glob("[!_]*/*_xcit-s12-p16_*.py")}
RETINANET, MASK2FORMER = RECIPES["retinanet"], RECIPES["mask2former"]
FEATURE_MAPS = dict(
    retinanet="the neck gives 5 maps of 256 channels at strides 8, 16, 32, 64, 128",
    mask_rcnn="the neck gives 5 maps of 256 channels at strides 4, 8, 16, 32, 64",
    cascade_rcnn="the neck gives 5 maps of 256 channels at strides 4, 8, 16, 32, 64",
    mask2former="the backbone gives 4 maps of 384 channels at strides 4, 8, 16, 32",
)


@pytest.mark.parametrize("recipe", [*RECIPES, "demo"])
def test_shipped_configs_have_no_failures(recipe, monkeypatch):
    monkeypatch.setattr("xcit_mm.checks.machine.fast_dtype", lambda device: "float32")
    config = RECIPES.get(recipe, SHAPES)
    found = findings(config)
    assert [finding for finding in found if finding.level == "FAIL"] == []
    assert ("D206" in [finding.code for finding in found]) == ("_amp-" in config.name)
    if recipe in FEATURE_MAPS:
        assert f"{FEATURE_MAPS[recipe]}, as the heads expect" in [finding.text for finding in found]


NARROW, WIDE = [192, 192, 192, 192], [384, 384, 384, 384]
LABELS = ("decode_head.ignore_index={}", "data_preprocessor.seg_pad_val={}", "val_evaluator.ignore_index={}")
BBOX_HEAD, MASK_HEAD = "roi_head.bbox_head.num_classes", "roi_head.mask_head.num_classes"


def ignored(*labels: int) -> tuple[str, ...]:
    """Return the finding of labels that differ between decode head, preprocessor and evaluator."""
    return ("D509", *(place.format(label) for place, label in zip(LABELS, labels, strict=True)))


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
        UPERNET,
        "model.auxiliary_head.num_classes=148",
        [
            ("D303", "auxiliary_head.num_classes", 148, "train", 150),
            *both("D506", "auxiliary_head", "num_classes=148", "label 148 (60 pixels), label 149 (60 pixels"),
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
    (MASK_RCNN, "model.neck.num_outs=4", [("D605", "rpn_head", 5, "the neck", 4)]),
    (
        UPERNET,
        f"model.decode_head.in_channels={WIDE}",
        [("D603", "decode_head.in_channels", WIDE, "the backbone", NARROW)],
    ),
    (
        UPERNET,
        "model.auxiliary_head.in_channels=384",
        [("D603", "auxiliary_head.in_channels", 384, "the backbone", NARROW)],
    ),
    (
        UPERNET,
        "model.backbone.out_indices=(3,7,11)",
        [("D603", "decode_head.in_channels", NARROW, "the backbone", NARROW[:3])],
    ),
    (UPERNET, "train_dataloader.batch_size=1", [("D608", "decode_head.psp_modules.0")]),
    (
        SEMANTIC_FPN,
        "model.decode_head.ignore_index=0",
        [*both("D506", "decode_head", "ignore_index=0", "label 255 (63 pixels"), ignored(0, 255, 255)],
    ),
    (SEMANTIC_FPN, "model.data_preprocessor.seg_pad_val=0", [ignored(255, 0, 255)]),
    (SEMANTIC_FPN, "train_dataloader.dataset.reduce_zero_label=False", [("D503", "train", "reduce_zero_label=False")]),
    (
        SHAPES,
        "train_dataloader.dataset.reduce_zero_label=False",
        [("D506", "train", "decode_head", "num_classes=5", "ignore_index=255", "label 5 (1842 pixels")],
    ),
    (SEMANTIC_FPN, "train_dataloader.dataset.data_root=nowhere", [("D311", "train", "nowhere")]),
    (SEMANTIC_FPN, "val_dataloader.dataset.img_suffix=.tif", [("D501", "val", ADE / "images" / "validation")]),
    (
        SEMANTIC_FPN,
        "train_dataloader.dataset.seg_map_suffix=.tif",
        [("D502", "train", "3 of 3", *(MAPS / f"{number}.tif" for number in range(3)))],
    ),
    # The classes, and the files.
    (MASK_RCNN, "val_dataloader.dataset.type=NoDataset", [("D390", "NoDataset"), ("D391", "NoDataset")]),
    (MASK_RCNN, f"val_evaluator.ann_file={ADE}", [("D391", "IsADirectoryError", ADE)]),
    (MASK_RCNN, "load_from=none.pth", [("D703", "load_from", "none.pth")]),
    (MASK_RCNN, "model.backbone.init_cfg.checkpoint=none.pth", [("D703", "init_cfg", "none.pth")]),
    (MASK_RCNN, "model.backbone.init_cfg.checkpoint=xcit://none", [("D790", "none", "tools/weights.py")]),
    (MASK_RCNN, "model.backbone.arch=s13", [("D601", "s13", "n12, t12, t24, s12, s24, m24, l24")]),
    (MASK_RCNN, "default_scope=mmpose", [("D201", "mmpose", MASK_RCNN, "mmdet, mmseg, mmpretrain")]),
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
            RETINANET,
            ["model.backbone.strides=(4,8,16,32)", "model.neck.in_channels=[384,384,384,384]"],
            [("D606", "bbox_head", "8, 16, 32, 64, 128", "the neck", "4, 8, 16, 32, 64")],
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
    ids=["start_level", "finest map", "Mask R-CNN", "Mask2Former"],
)
def test_wrong_strides_are_failures(config, options, expected):
    assert_named(failures(config, *options), expected)


def test_fix_of_wrong_strides_works():
    (finding,) = failures(RETINANET, "model.neck.start_level=1")
    assert finding.fix == "--cfg-options model.neck.start_level=0, or strides=[16, 32, 64, 128, 256] in bbox_head"
    assert failures(RETINANET, "model.neck.start_level=1", "model.neck.start_level=0") == []


def test_neck_without_feature_maps_is_a_note():
    class Pooling(nn.Module):
        def forward(self, maps: list[torch.Tensor]) -> list[torch.Tensor]:
            return [feature_map.mean((2, 3)) for feature_map in maps]

    cfg = Config.fromfile(SHAPES)
    init_default_scope(cfg.default_scope)
    model = build_model(cfg)
    model.neck = Pooling()
    (finding,) = check_channels(cfg, model)
    assert finding.level == "note"
    assert finding.code == "D604" and "(ValueError: it gives [(1, 128), " in finding.text


MAP_BREAKS = {
    "label of no class": (
        lambda: write_map(MAPS / "0.png", [1, 200]),
        ("D506", "decode_head", "num_classes=150", "ignore_index=255", "label 199 (1536 pixels"),
    ),
    "colours": (lambda: write_image(MAPS / "0.png"), ("D505", MAPS / "0.png", "3 channels")),
    "no map": ((MAPS / "1.png").unlink, ("D502", "1 of 3", MAPS / "1.png")),
    "broken map": (
        lambda: (MAPS / "1.png").write_bytes(b"no image"),
        ("D504", MAPS / "1.png", "UnidentifiedImageError"),
    ),
}


@pytest.mark.parametrize("name", MAP_BREAKS)
def test_wrong_segmentation_map_is_the_only_failure(name):
    spoil, expected = MAP_BREAKS[name]
    spoil()
    assert_named(failures(SEMANTIC_FPN), [(*expected, "train")])


def test_labels_from_0_with_reduce_zero_label_are_a_note():
    """A rare last class, as in LoveDA and Potsdam, looks the same in a sample."""
    write_segmentation_maps(Path("data/shapes"), [0, 1, 2, 3, 4])
    found = [finding for finding in findings(SHAPES, level="note") if finding.code.startswith("D5")]
    assert_named(found, [("D507", split, "decode_head", "reduce_zero_label=True") for split in ("train", "val")])
    assert all("reduce_zero_label=False" in finding.fix for finding in found)
    assert failures(SHAPES) == []
    check_training(Config.fromfile(SHAPES))


def test_head_of_boundaries_is_not_compared_with_the_classes(own_config):
    head = "dict(type='STDCHead', in_channels=128, channels=32, num_convs=1, concat_input=False, num_classes=2, "
    head += "out_channels=1, in_index=0, loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=True))"
    assert failures(own_config(f"model = dict(auxiliary_head={head})")) == []


def test_masks_without_classes_need_no_number_of_classes():
    assert failures(MASK_RCNN, f"model.{MASK_HEAD}=1", "model.roi_head.mask_head.class_agnostic=True") == []


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


def test_masks_of_0_and_255_do_not_train(own_config):
    config = own_config(MASKS)
    write_segmentation_maps(Path("data/shapes"), [0, 255])
    assert_named(failures(config), [("D513", "train", "3 of 3", "shape", "4608 pixels of label 255")])
    with pytest.raises(ValueError, match=r"^D513 train"):
        check_training(Config.fromfile(config))
    write_segmentation_maps(Path("data/shapes"), [0, 1, 255])
    assert "D513" not in [finding.code for finding in findings(config)]


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


def test_class_without_pixels_is_a_note():
    write_segmentation_maps(Path("data/shapes"), [1, 2, 4, 5])
    found = [finding for finding in findings(SHAPES, level="note") if finding.code == "D513"]
    assert_named(found, [("D513", split, "square") for split in ("train", "val")])


@pytest.mark.parametrize("size", [(HEIGHT // 2, WIDTH // 2), (HEIGHT * 2, WIDTH * 2), (WIDTH, HEIGHT)])
def test_maps_of_another_size_than_their_images_are_a_failure(size, own_config):
    file = SHAPES_MAPS / "0.png"
    cv2.imwrite(str(file), np.resize(np.array([1, 2, 3, 4, 5], np.uint8), size))
    assert_named(failures(SHAPES), [("D511", "train", file, size, (HEIGHT, WIDTH))])
    steps = "[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), "
    steps += "dict(type='Resize', scale=(64, 64)), dict(type='PackSegInputs')]"
    assert failures(own_config(f"train_dataloader = dict(dataset=dict(pipeline={steps}))")) == []


@pytest.mark.parametrize("label, codes", [(256, ["D512"]), (65535, []), (3, [])])
def test_labels_of_16_bits_that_8_bits_change_are_a_failure(label, codes):
    given = np.resize(np.array([1, 2, 3, 4, 5, label], np.uint16), (HEIGHT, WIDTH))
    cv2.imwrite(str(SHAPES_MAPS / "0.png"), given)
    assert [finding.code for finding in failures(SHAPES)] == codes


def test_maps_that_another_step_corrects_are_not_a_failure(own_config):
    from mmengine.registry import TRANSFORMS

    @TRANSFORMS.register_module(force=True)
    def Halve():
        return lambda results: {**results, "gt_seg_map": results["gt_seg_map"] // 40}

    write_segmentation_maps(Path("data/shapes"), [1, 41, 81, 121, 161])
    assert [finding.code for finding in failures(SHAPES)] == ["D506", "D506"]
    steps = "[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='Halve'), "
    steps += "dict(type='PackSegInputs')]"
    own = [f"{split}_dataloader = dict(dataset=dict(pipeline={steps}))" for split in ("train", "val")]
    assert failures(own_config("\n".join(own))) == []


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


@pytest.mark.parametrize("given", ["abc", "0", "-1"])
def test_invalid_world_size_is_a_failure(given, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", given)
    assert_named(failures(SHAPES), [("D203", f"WORLD_SIZE={given}")])


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


def test_two_processes_without_a_gpu_are_a_note(monkeypatch):
    monkeypatch.setattr("xcit_mm.checks.machine.get_device", lambda: "cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "D220" in [finding.code for finding in findings(SEMANTIC_FPN, level="note")]
    assert failures(SEMANTIC_FPN) == []


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
    assert_named(failures(config), [("D302", "classes=None", "train"), ("D311", "train", "nowhere")])


@pytest.mark.parametrize("given", ["None", "dict(_delete_=True, imports=[])", "dict(imports=['json'])"])
def test_config_without_import_of_xcit_mm_is_a_failure(own_config, given):
    assert_named(failures(own_config(f"custom_imports = {given}")), [("D202", "XCiT")])


def test_config_may_import_a_module_that_imports_xcit_mm(own_config, tmp_path, monkeypatch):
    (tmp_path / "own_project.py").write_text("import xcit_mm\n")
    (tmp_path / "xcit_mm.py").touch()  # a new process imports this file, which is faster than the package
    monkeypatch.syspath_prepend(tmp_path)
    assert failures(own_config("custom_imports = dict(imports=['own_project'])")) == []


def test_config_without_parts_of_xcit_mm_needs_no_import(tmp_path):
    config = tmp_path / "config.py"
    config.write_text("default_scope = 'mmseg'\nmodel = dict(type='EncoderDecoder')\n")
    assert "D202" not in [finding.code for finding in failures(config)]


def test_notes_are_not_failures(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "")  # scripts may pass on an unset variable
    monkeypatch.setattr("xcit_mm.checks.machine.fast_dtype", lambda device: "float32")
    notes = findings(MASK_RCNN, "custom_hooks=[]", level="note")
    weights = ("D702", "init_cfg xcit://xcit_tiny_12_p16_384_dist")
    assert_named(notes, [weights, ("D701",), ("D204", "2 images", "1 process", "16 images"), ("D206",)])
    assert failures(MASK_RCNN, "custom_hooks=[]") == []


def test_command_continues_after_a_failure_and_exits_with_1(tmp_path):
    options = ["model.neck.in_channels=[384]", "train_dataloader.dataset.data_root=nowhere"]
    run = run_script(ROOT / "tools" / "doctor.py", str(SEMANTIC_FPN), "--cfg-options", *options, cwd=tmp_path)
    assert run.returncode == 1, run.stderr
    lines = run.stdout.splitlines()
    assert [line[:9] for line in lines if line.startswith("FAIL")] == ["FAIL D311", "FAIL D602"]
    assert all(re.match(r"(ok {9}|(note|FAIL) D\d{3}  )\S", line) for line in lines)


def run_doctor(monkeypatch, capsys, *checks: tuple[str, Callable[[], str], str]) -> tuple[int, list[str]]:
    """Run the doctor without a config, and return its exit code and lines."""
    monkeypatch.setattr("sys.argv", ["doctor.py"])
    if checks:
        monkeypatch.setattr(doctor, "CHECKS", checks)
    code = doctor.main()
    return code, capsys.readouterr().out.splitlines()


def test_correct_installation_has_no_findings(monkeypatch, capsys):
    code, found = run_doctor(monkeypatch, capsys)
    assert (code, len(found)) == (0, len(doctor.CHECKS))
    assert all(line.startswith("ok         ") for line in found)
    assert "ok         no GPU, training runs on CPU" in found


@pytest.fixture
def library(tmp_path, monkeypatch) -> str:
    """A library that prints while it is imported, with a version of NVIDIA's containers."""
    (tmp_path / "talkative.py").write_text("print('hello')\n__version__ = '2.1.0a0+32f93b1'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "talkative", raising=False)
    return "talkative"


@pytest.mark.parametrize("minimum, suits", [("2.1", True), ("2.1.1", False), ("2.10", False)])
def test_old_version_is_a_failure_and_output_of_libraries_stays_out(library, monkeypatch, capsys, minimum, suits):
    code, (line,) = run_doctor(monkeypatch, capsys, ("D100", doctor.version(library, minimum), "pip install it"))
    assert code == (not suits)
    if suits:
        assert line == "ok         talkative 2.1.0a0+32f93b1"
    else:
        assert re.match(
            rf"FAIL D100  ImportError: talkative 2.1.0a0\+32f93b1 .*>= {minimum} -- fix: pip install it$", line
        )


def test_missing_optional_library_is_a_note(monkeypatch, capsys):
    check = doctor.version("not_installed", missing="no detection")
    code, (line,) = run_doctor(monkeypatch, capsys, ("D100", check, "pip install it"))
    assert code == 0 and line.startswith("note D100  not_installed ") and line.endswith(": no detection")


def test_closed_output_ends_the_doctor_without_a_traceback(monkeypatch):
    there, here = os.pipe()
    os.close(there)  # as `| head -1` does
    with os.fdopen(here, "w") as nobody:
        monkeypatch.setattr("sys.argv", ["doctor.py"])
        monkeypatch.setattr("sys.stdout", nobody)
        monkeypatch.setattr(doctor, "CHECKS", (("D100", lambda: "all is well", ""),))
        with pytest.raises(SystemExit) as end:
            doctor.main()
    assert end.value.code == 141


def test_missing_system_library_has_the_same_fix_in_every_line(monkeypatch, capsys):
    def broken() -> str:
        raise ImportError("libGL.so.1: cannot open shared object file")

    code, lines = run_doctor(monkeypatch, capsys, ("D100", broken, doctor.OPENCV), ("D100", broken, doctor.ONE_MMCV))
    assert code == 1
    assert lines == [f"FAIL D100  ImportError: libGL.so.1: cannot open shared object file -- fix: {doctor.OPENCV}"] * 2


def test_mix_of_both_stacks_is_a_failure(tmp_path, monkeypatch, capsys):
    name = "mmengine" if doctor.forks(doctor.stack()) else "onedl-mmengine"
    folder = tmp_path / f"{name.replace('-', '_')}-0.10.7.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.10.7\n")
    (folder / "top_level.txt").write_text("mmengine\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, (line,) = run_doctor(monkeypatch, capsys, ("D101", doctor.one_stack, "one of them"))
    assert (code, line[:11]) == (1, "FAIL D101  ")
    assert line.endswith(" -- fix: one of them") and f" {name} " in line.replace(",", " ")


def test_doctor_runs_without_mmengine():
    code = "import sys; sys.modules['mmengine'] = None; import doctor; sys.exit(doctor.main())"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT / "tools", capture_output=True, text=True
    )
    assert run.returncode == 1
    assert "FAIL D102  ModuleNotFoundError: " in run.stdout and "Traceback" not in run.stderr


def test_two_mmcv_in_one_folder_are_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "stack", lambda: ["mmcv", "mmcv-lite", "mmdet"])
    code, (line,) = run_doctor(monkeypatch, capsys, ("D101", doctor.one_stack, "one of them"))
    assert code == 1 and "mmcv and mmcv-lite are both installed" in line and "pip uninstall mmcv mmcv-lite" in line


@pytest.mark.skipif(bool(doctor.forks(doctor.stack())), reason="the forks do not check the version of mmcv")
@pytest.mark.parametrize("library", ["mmdet", "mmseg"])
def test_incompatible_mmcv_is_a_failure_of_the_library(library, monkeypatch, capsys):
    monkeypatch.setattr("mmcv.__version__", "2.2.0")
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    code, (line,) = run_doctor(monkeypatch, capsys, ("D100", doctor.version(library), "reinstall"))
    assert code == 1
    assert line.startswith(
        "FAIL D100  AssertionError: MMCV==2.2.0 is used but incompatible. Please install mmcv>=2.0.0rc4"
    )


def test_classes_of_mmpretrain_are_a_note():
    loader = dict(dataset=dict(type="CustomDataset", data_root="data/folders"))
    (finding,) = check_classes(Config(dict(default_scope="mmpretrain", train_dataloader=loader)), {})
    assert (finding.level, finding.code) == ("note", "D301")
