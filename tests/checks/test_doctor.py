"""tools/doctor.py CONFIG names what is wrong with a run, and nothing on a correct one."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import doctor
import pytest
import torch
from doctor_data import (
    ADE,
    MAPS,
    MASK_RCNN,
    SEMANTIC_FPN,
    SHAPES,
    UPERNET,
    failures,
    lines,
    write_image,
    write_map,
    write_segmentation_maps,
)
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from paths import CONFIGS
from torch import nn

from xcit_mm import XCiT
from xcit_mm.checks.data import check_classes
from xcit_mm.checks.model import build_model, check_channels
from xcit_mm.checks.start import check_training

pytestmark = pytest.mark.usefixtures("doctors_place")

SHIPPED = sorted(path for task in ("mask_rcnn", "semantic_fpn", "upernet") for path in (CONFIGS / task).glob("*.py"))
CASCADE = CONFIGS / "cascade_rcnn" / "cascade-mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
MASK2FORMER = CONFIGS / "mask2former" / "mask2former_xcit-s12-p16_8xb2-lsj-50e_coco.py"
RETINANET = CONFIGS / "retinanet" / "retinanet_xcit-s12-p16_fpn_1x_coco.py"


@pytest.mark.parametrize("config", SHIPPED, ids=lambda path: path.stem)
def test_shipped_configs_are_not_complained_of(config):
    assert failures(config) == []


def test_demo_config_is_not_complained_of():
    assert failures(SHAPES) == []


WRONG_OPTIONS = [
    (
        MASK_RCNN,
        "model.roi_head.bbox_head.num_classes=3",
        ["roi_head.bbox_head.num_classes is 3, the train data set has 80 classes"],
    ),
    (
        MASK_RCNN,
        "model.roi_head.mask_head.num_classes=3",
        ["roi_head.mask_head.num_classes is 3, the train data set has 80 classes"],
    ),
    (
        SEMANTIC_FPN,
        "model.decode_head.num_classes=149",
        ["decode_head.num_classes is 149, the train data set has 150 classes"]
        + [
            f"{split}: decode_head has num_classes=149 and ignore_index=255, the segmentation maps hold "
            "label 149 (60 pixels)"
            for split in ("train", "val")
        ],
    ),
    (
        UPERNET,
        "model.auxiliary_head.num_classes=148",
        ["auxiliary_head.num_classes is 148, the train data set has 150 classes"]
        + [
            f"{split}: auxiliary_head has num_classes=148 and ignore_index=255, the segmentation maps hold "
            "label 148 (60 pixels), label 149 (60 pixels)"
            for split in ("train", "val")
        ],
    ),
    (
        MASK_RCNN,
        "train_dataloader.dataset.metainfo.classes=(cat,dog)",
        [
            "roi_head.bbox_head.num_classes is 80, the train data set has 2 classes",
            "roi_head.mask_head.num_classes is 80, the train data set has 2 classes",
            "the train and val data sets have different classes: cat and person, dog and bicycle",
        ],
    ),
    (MASK_RCNN, "train_dataloader.dataset.metainfo.classes=cat", ["classes='cat' in the train data set"]),
    (
        MASK_RCNN,
        "model.neck.in_channels=[384,384,384,384]",
        ["neck.in_channels is [384, 384, 384, 384], the backbone gives [192, 192, 192, 192]"],
    ),
    (
        MASK_RCNN,
        "model.backbone.out_indices=(3,7,11)",
        ["neck.in_channels is [192, 192, 192, 192], the backbone gives [192, 192, 192]"],
    ),
    (
        MASK_RCNN,
        "model.rpn_head.in_channels=128",
        ["rpn_head.in_channels is 128, the neck gives [256, 256, 256, 256, 256]"],
    ),
    (MASK_RCNN, "model.neck.num_outs=4", ["rpn_head has anchors for 5 maps, the neck gives 4"]),
    (
        UPERNET,
        "model.decode_head.in_channels=[384,384,384,384]",
        ["decode_head.in_channels is [384, 384, 384, 384], the backbone gives [192, 192, 192, 192]"],
    ),
    (
        UPERNET,
        "model.auxiliary_head.in_channels=384",
        ["auxiliary_head.in_channels is 384, the backbone gives [192, 192, 192, 192]"],
    ),
    (
        UPERNET,
        "model.backbone.out_indices=(3,7,11)",
        ["decode_head.in_channels is [192, 192, 192, 192], the backbone gives [192, 192, 192]"],
    ),
    (
        UPERNET,
        "train_dataloader.batch_size=1",
        ["BatchNorm in decode_head.psp_modules.0 follows pooling to 1x1: one image gives it one value a channel"],
    ),
    (
        SEMANTIC_FPN,
        "model.decode_head.ignore_index=0",
        [
            f"{split}: decode_head has num_classes=150 and ignore_index=0, the segmentation maps hold "
            "label 255 (63 pixels)"
            for split in ("train", "val")
        ]
        + [
            "unlabelled pixels have different labels: decode_head.ignore_index=0, data_preprocessor.seg_pad_val=255, "
            "val_evaluator.ignore_index=255"
        ],
    ),
    (
        SEMANTIC_FPN,
        "model.data_preprocessor.seg_pad_val=0",
        [
            "unlabelled pixels have different labels: decode_head.ignore_index=255, data_preprocessor.seg_pad_val=0, "
            "val_evaluator.ignore_index=255"
        ],
    ),
    (
        SEMANTIC_FPN,
        "train_dataloader.dataset.reduce_zero_label=False",
        ["train: reduce_zero_label=False in the data set, not in its LoadAnnotations"],
    ),
    (
        SHAPES,
        "train_dataloader.dataset.reduce_zero_label=False",
        ["train: decode_head has num_classes=5 and ignore_index=255, the segmentation maps hold label 5 (1842 pixels)"],
    ),
    (SEMANTIC_FPN, "train_dataloader.dataset.data_root=nowhere", ["the train data are not at nowhere"]),
    (SEMANTIC_FPN, "val_dataloader.dataset.img_suffix=.tif", [f"val: no *.tif in {ADE}/images/validation"]),
    (
        SEMANTIC_FPN,
        "train_dataloader.dataset.seg_map_suffix=.tif",
        [
            "train: 3 of 3 images have no segmentation map: "
            + ", ".join(f"{MAPS}/{number}.tif" for number in range(3)),
        ],
    ),
    (
        MASK_RCNN,
        "val_dataloader.dataset.type=NoDataset",
        # Its classes, and its files.
        ["ValueError: no data set of type NoDataset is registered: correct it, or name its module in custom_imports"]
        * 2,
    ),
    (MASK_RCNN, f"val_evaluator.ann_file={ADE}", [f"IsADirectoryError: [Errno 21] Is a directory: '{ADE}'"]),
    (MASK_RCNN, "load_from=none.pth", ["load_from: no checkpoint at none.pth"]),
    (MASK_RCNN, "model.backbone.init_cfg.checkpoint=none.pth", ["init_cfg: no checkpoint at none.pth"]),
    (
        MASK_RCNN,
        "model.backbone.init_cfg.checkpoint=xcit://none",
        ["ValueError: 'none' is not a published name: run python tools/weights.py list"],
    ),
    (
        MASK_RCNN,
        "model.backbone.arch=s13",
        [
            "the model cannot be built: ValueError: unknown arch 's13': "
            "choose one of n12, t12, t24, s12, s24, m24, l24, or pass a dict"
        ],
    ),
    (
        MASK_RCNN,
        "default_scope=mmpose",
        [f"ValueError: default_scope='mmpose' in {MASK_RCNN}: must be one of mmdet, mmseg, mmpretrain"],
    ),
]


@pytest.mark.parametrize("config, option, expected", WRONG_OPTIONS, ids=[option for _, option, _ in WRONG_OPTIONS])
def test_wrong_options_are_named(config, option, expected):
    assert failures(config, option) == expected


@pytest.mark.parametrize(
    "config, maps",
    [
        (RETINANET, "the neck gives 5 maps of 256 channels at strides 8, 16, 32, 64, 128"),
        (MASK_RCNN, "the neck gives 5 maps of 256 channels at strides 4, 8, 16, 32, 64"),
        (CASCADE, "the neck gives 5 maps of 256 channels at strides 4, 8, 16, 32, 64"),
        (MASK2FORMER, "the backbone gives 4 maps of 384 channels at strides 4, 8, 16, 32"),
    ],
    ids=lambda value: getattr(value, "stem", ""),
)
def test_strides_of_shipped_detectors_fit(config, maps):
    assert f"ok    {maps}, as the heads expect" in lines(config)


@pytest.mark.parametrize(
    "config, options, expected",
    [
        (
            RETINANET,
            ["model.neck.start_level=1"],  # as in mmdet's own RetinaNet
            ["bbox_head expects maps of strides 8, 16, 32, 64, 128, the neck gives 16, 32, 64, 128, 256"],
        ),
        (
            RETINANET,
            ["model.backbone.strides=(4,8,16,32)", "model.neck.in_channels=[384,384,384,384]"],
            ["bbox_head expects maps of strides 8, 16, 32, 64, 128, the neck gives 4, 8, 16, 32, 64"],
        ),
        (
            MASK_RCNN,
            ["model.backbone.strides=(8,16,32)", "model.neck.in_channels=[192,192,192]"],
            ["rpn_head expects maps of strides 4, 8, 16, 32, 64, the neck gives 8, 16, 32, 64, 128"]
            + [
                f"roi_head.{kind}_roi_extractor expects maps of strides 4, 8, 16, 32, the neck gives 8, 16, 32, 64, 128"
                for kind in ("bbox", "mask")
            ],
        ),
        (
            MASK2FORMER,
            ["model.panoptic_head.pixel_decoder.strides=(8,16,32,64)"],
            ["panoptic_head.pixel_decoder expects maps of strides 8, 16, 32, 64, the backbone gives 4, 8, 16, 32"],
        ),
    ],
    ids=["start_level", "finest map", "Mask R-CNN", "Mask2Former"],
)
def test_maps_of_other_strides_are_named(config, options, expected):
    assert failures(config, *options) == expected


def test_what_mends_the_strides_is_said():
    (line,) = [line for line in lines(RETINANET, "model.neck.start_level=1") if line.startswith("FAIL")]
    fix = "--cfg-options model.neck.start_level=0, or strides=[16, 32, 64, 128, 256] in bbox_head"
    assert line.partition(" -- fix: ")[2] == fix
    assert failures(RETINANET, "model.neck.start_level=1", "model.neck.start_level=0") == []


def test_a_neck_that_gives_no_maps_is_no_failure():
    class Pooling(nn.Module):
        def forward(self, maps: list[torch.Tensor]) -> list[torch.Tensor]:
            return [one.mean((2, 3)) for one in maps]

    cfg = Config.fromfile(SHAPES)
    init_default_scope(cfg.default_scope)
    model = build_model(cfg)
    model.neck = Pooling()
    (finding,) = check_channels(cfg, model)
    assert finding.level == "note"
    assert finding.text.startswith("the maps that this neck gives are not known (ValueError: it gives [(1, 128), ")


MAP_BREAKS = {
    "label of no class": (
        lambda: write_map(MAPS / "0.png", [1, 200]),
        "decode_head has num_classes=150 and ignore_index=255, the segmentation maps hold label 199 (1536 pixels)",
    ),
    "colours": (
        lambda: write_image(MAPS / "0.png"),
        f"{MAPS}/0.png has 3 channels: colours instead of labels",
    ),
    "no map": ((MAPS / "1.png").unlink, f"1 of 3 images have no segmentation map: {MAPS}/1.png"),
    "broken map": (
        lambda: (MAPS / "1.png").write_bytes(b"no image"),
        f"{MAPS}/1.png cannot be read (UnidentifiedImageError: cannot identify image file",
    ),
}


@pytest.mark.parametrize("name", MAP_BREAKS)
def test_wrong_segmentation_maps_are_named(name):
    spoil, expected = MAP_BREAKS[name]
    spoil()
    (found,) = failures(SEMANTIC_FPN)
    assert found.partition(" <_io")[0] == f"train: {expected}"


def test_labels_from_0_under_reduce_zero_label_are_guessed_and_not_refused():
    """They look like a sample in which the last class is rare, as LoveDA and Potsdam have one."""
    write_segmentation_maps(Path("data/shapes"), [0, 1, 2, 3, 4])
    text = (
        "decode_head: all classes but the last have pixels in a sample, and reduce_zero_label=True ignores label 0 "
        "-- fix: reduce_zero_label=False in the data set if labels count from 0"
    )
    found = lines(SHAPES)
    assert [line for line in found if "in a sample, and" in line] == [f"note  train: {text}", f"note  val: {text}"]
    assert not any(line.startswith("FAIL") for line in found)
    check_training(Config.fromfile(SHAPES))


ONE_CLASS = """
model = dict(decode_head=dict(num_classes=1, threshold=0.5, loss_decode=dict(use_sigmoid=True)))
train_dataloader = dict(dataset=dict(metainfo=dict(classes=("shape",), palette=[(9, 9, 9)]), reduce_zero_label=False))
val_dataloader = dict(dataset=dict(metainfo=dict(classes=("shape",), palette=[(9, 9, 9)]), reduce_zero_label=False))
"""


def test_a_segmentor_of_one_class_knows_the_labels_0_and_1(own_config):
    config = own_config(ONE_CLASS)
    write_segmentation_maps(Path("data/shapes"), [0, 1])
    assert failures(config) == []
    assert any(line.startswith("note  train: of one class IoUMetric scores how many pixels") for line in lines(config))
    write_segmentation_maps(Path("data/shapes"), [0, 1, 2])
    message = "{}: decode_head has num_classes=1 and ignore_index=255, the segmentation maps hold label 2 (3072 pixels)"
    assert failures(config) == [message.format("train"), message.format("val")]


@pytest.mark.parametrize("given", ["abc", "0", "-1"])
def test_a_world_size_that_is_none_is_named(given, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", given)
    assert failures(SHAPES) == [f"WORLD_SIZE={given} is no number of processes"]


def test_weights_of_another_patch_size_are_named():
    torch.save(dict(model=XCiT("t12", 8).state_dict()), "p8.pth")
    message = "init_cfg p8.pth does not fit: the file is t12/p8, the config asks for t12/p16"
    assert failures(MASK_RCNN, "model.backbone.init_cfg.checkpoint=p8.pth") == [message]


def test_fitting_weights_are_ok_and_a_backbone_is_no_detector():
    torch.save(dict(model=XCiT("t12", 16).state_dict()), "p16.pth")
    assert "ok    init_cfg p16.pth is there and fits" in lines(MASK_RCNN, "model.backbone.init_cfg.checkpoint=p16.pth")
    message = "it is a backbone: give it to the backbone's init_cfg instead"
    assert failures(MASK_RCNN, "load_from=p16.pth") == [
        f"load_from p16.pth does not fit: the checkpoint does not fit the model: {message}"
    ]


def test_whole_model_of_other_classes_is_named():
    cfg = Config.fromfile(SHAPES)
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), "whole.pth")
    assert "ok    load_from whole.pth is there and fits" in lines(SHAPES, "load_from=whole.pth")
    found = failures(SHAPES, "load_from=whole.pth", "model.decode_head.num_classes=7")
    assert len(found) == 2
    assert found[0] == "decode_head.num_classes is 7, the train data set has 5 classes"
    assert "decode_head.conv_seg.weight of (5, 128, 1, 1), not (7, 128, 1, 1)" in found[1]


def test_sync_bn_on_processes_without_cuda_is_named(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = "backbone and decode_head use SyncBN, which needs CUDA on 2 processes"
    assert failures(SEMANTIC_FPN) == [message]
    fix = ["model.backbone.norm_cfg.type=BN", "model.decode_head.norm_cfg.type=BN"]
    assert failures(SEMANTIC_FPN, *fix) == []


@pytest.fixture
def own_config(tmp_path) -> Callable[[str], Path]:
    """Writes a config that is derived from the one of the shapes."""

    def write(text: str) -> Path:
        path = tmp_path / "config.py"
        path.write_text(f"_base_ = {str(SHAPES)!r}\n{text}\n")
        return path

    return write


def test_data_sets_inside_wrappers_are_looked_at(own_config):
    config = own_config(
        "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=2, "
        "dataset=dict(type='ConcatDataset', datasets=[dict(type='BaseSegDataset', data_root='nowhere')])))"
    )
    assert failures(config) == ["classes=None in the train data set", "the train data are not at nowhere"]


NOT_IMPORTED = "custom_imports does not have xcit_mm: all but the tools here say that XCiT is not in the registry"


@pytest.mark.parametrize("given", ["None", "dict(_delete_=True, imports=[])", "dict(imports=['json'])"])
def test_a_config_that_does_not_import_xcit_mm_is_named(own_config, given):
    assert failures(own_config(f"custom_imports = {given}")) == [NOT_IMPORTED]


def test_a_config_may_import_xcit_mm_by_a_module_of_its_own(own_config, tmp_path, monkeypatch):
    (tmp_path / "own_project.py").write_text("import xcit_mm\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert failures(own_config("custom_imports = dict(imports=['own_project'])")) == []


def test_a_config_without_parts_of_xcit_mm_need_not_import_it(tmp_path):
    config = tmp_path / "config.py"
    config.write_text("default_scope = 'mmseg'\nmodel = dict(type='EncoderDecoder')\n")
    assert NOT_IMPORTED not in failures(config)


def test_what_is_no_failure_is_a_note(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "")  # as scripts leave it that pass on a variable they were not given
    found = lines(MASK_RCNN, "custom_hooks=[]")
    notes = [line for line in found if line.startswith("note")]
    assert any("2 images a step over 1 process(es), the learning rate is for 16 -- fix" in line for line in notes)
    assert any("without StrictLoadHook" in line for line in notes)
    assert any("xcit://xcit_tiny_12_p16_384_dist is not in" in line for line in notes)
    assert any("mixed precision needs a GPU" in line for line in notes)
    assert not any(line.startswith("FAIL") for line in found)


def test_command_goes_on_after_a_failure_and_exits_with_1(tool):
    options = ["model.neck.in_channels=[384]", "train_dataloader.dataset.data_root=nowhere"]
    run = tool("doctor", SEMANTIC_FPN, "--cfg-options", *options)
    assert run.returncode == 1, run.stderr
    found = run.stdout.splitlines()
    assert [line.partition(" -- fix: ")[0] for line in found if line.startswith("FAIL")] == [
        "FAIL  the train data are not at nowhere",
        "FAIL  neck.in_channels is [384], the backbone gives [192, 192, 192, 192]",
    ]
    assert all(line[:6] in ("ok    ", "note  ", "FAIL  ") for line in found)


def run_doctor(monkeypatch, capsys, *checks: tuple[Callable[[], str], str]) -> tuple[int, list[str]]:
    """Exit code and lines of the doctor without a config, with its own checks unless others are given."""
    monkeypatch.setattr("sys.argv", ["doctor.py"])
    if checks:
        monkeypatch.setattr(doctor, "CHECKS", checks)
    code = doctor.main()
    return code, capsys.readouterr().out.splitlines()


def test_without_a_config_the_installation_is_checked(monkeypatch, capsys):
    code, found = run_doctor(monkeypatch, capsys)
    assert (code, len(found)) == (0, len(doctor.CHECKS))
    assert all(line.startswith("ok    ") for line in found)
    assert "ok    no GPU, training runs on CPU" in found


@pytest.fixture
def library(tmp_path, monkeypatch) -> str:
    """A library that talks while it is imported, of a version as NVIDIA's containers have them."""
    (tmp_path / "talkative.py").write_text("print('hello')\n__version__ = '2.1.0a0+32f93b1'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "talkative", raising=False)
    return "talkative"


@pytest.mark.parametrize(
    "least, code, line",
    [
        ("2.1", 0, "ok    talkative 2.1.0a0+32f93b1"),
        (
            "2.1.1",
            1,
            "FAIL  ImportError: talkative 2.1.0a0+32f93b1 is installed, >= 2.1.1 is needed -- fix: pip install it",
        ),
        (
            "2.10",
            1,
            "FAIL  ImportError: talkative 2.1.0a0+32f93b1 is installed, >= 2.10 is needed -- fix: pip install it",
        ),
    ],
)
def test_versions_are_compared_and_libraries_print_beside_the_lines(library, monkeypatch, capsys, least, code, line):
    assert run_doctor(monkeypatch, capsys, (doctor.version(library, least), "pip install it")) == (code, [line])


def test_a_reader_that_leaves_early_is_no_error(monkeypatch):
    there, here = os.pipe()
    os.close(there)  # as `| head -1` does, sooner or later
    with os.fdopen(here, "w") as nobody:
        monkeypatch.setattr("sys.argv", ["doctor.py"])
        monkeypatch.setattr("sys.stdout", nobody)
        monkeypatch.setattr(doctor, "CHECKS", ((lambda: "all is well", ""),))
        with pytest.raises(SystemExit) as end:
            doctor.main()
    assert end.value.code == 141


def test_a_library_of_the_system_that_is_missing_has_one_fix(monkeypatch, capsys):
    def broken() -> str:
        raise ImportError("libGL.so.1: cannot open shared object file")

    code, lines = run_doctor(monkeypatch, capsys, (broken, doctor.OPENCV), (broken, doctor.COMPILED_MMCV))
    assert code == 1
    assert lines == [f"FAIL  ImportError: libGL.so.1: cannot open shared object file -- fix: {doctor.OPENCV}"] * 2


def test_a_mix_of_both_stacks_is_named(tmp_path, monkeypatch, capsys):
    """What pip leaves of an mmengine of the other stack."""
    name = "mmengine" if doctor.forks(doctor.stack()) else "onedl-mmengine"
    folder = tmp_path / f"{name.replace('-', '_')}-0.10.7.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.10.7\n")
    (folder / "top_level.txt").write_text("mmengine\n")
    monkeypatch.syspath_prepend(tmp_path)
    code, (line,) = run_doctor(monkeypatch, capsys, (doctor.one_stack, "one of them"))
    assert (code, line[:6]) == (1, "FAIL  ")
    assert line.endswith("of its OneDL forks: a mix -- fix: one of them") and f" {name} " in line.replace(",", " ")


@pytest.mark.skipif(bool(doctor.forks(doctor.stack())), reason="the forks ask for no version of mmcv")
@pytest.mark.parametrize("library", ["mmdet", "mmseg"])
def test_an_mmcv_that_does_not_suit_is_named_by_the_library(library, monkeypatch, capsys):
    monkeypatch.setattr("mmcv.__version__", "2.2.0")
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    code, (line,) = run_doctor(monkeypatch, capsys, (doctor.version(library), "reinstall"))
    assert code == 1
    assert line.startswith("FAIL  AssertionError: MMCV==2.2.0 is used but incompatible. Please install mmcv>=2.0.0rc4")


def test_classes_of_mmpretrain_are_not_missed():
    loader = dict(dataset=dict(type="CustomDataset", data_root="data/folders"))
    (finding,) = check_classes(Config(dict(default_scope="mmpretrain", train_dataloader=loader)), {})
    assert finding.level == "note"
