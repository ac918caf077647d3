"""A class is its name: rows of heads are moved to the numbers that their classes have in a model,
and a checkpoint of other classes is refused.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import small_models
from helpers.paths import CONFIGS
from helpers.tiny_recipes import tiny
from helpers.weight_files import MINI, load_in_runner, same
from mmengine.config import Config
from torch import nn

from xcit_mm import XCiTClassifier
from xcit_mm.deployment import export_model
from xcit_mm.prediction import Predictor
from xcit_mm.weights.matching import CheckpointMismatch

OBJECTS = ("circle", "square", "triangle", "star")
LABELS = ("background", *OBJECTS)


def mask2former(leaf: str, head: str, count: str, classes: int) -> Config:
    cfg = tiny(CONFIGS / f"mask2former/mask2former_xcit-s12-p16_{leaf}.py", Path())
    cfg.model[head].update({count: classes, "num_queries": 20})
    cfg.model[head].loss_cls.class_weight = [1.0] * classes + [0.1]
    if "panoptic_fusion_head" in cfg.model:
        cfg.model.panoptic_fusion_head.update({count: classes})
        cfg.model.test_cfg.max_per_image = 10
    return cfg


def segformer() -> Config:
    cfg = tiny(CONFIGS / "segformer/segformer_xcit-s12-p16_8xb2-160k_ade20k-512x512.py", Path())
    cfg.model.decode_head.num_classes = len(LABELS)
    return cfg


MODELS: dict[str, Callable[[], Config]] = {
    "Mask R-CNN": small_models.mask_rcnn,
    "Cascade": small_models.cascade_mask_rcnn,
    "Cascade with boxes by class": lambda: small_models.cascade_mask_rcnn(agnostic=False),
    "RetinaNet": small_models.retinanet,
    "Mask2Former": lambda: mask2former(
        "8xb2-lsj-50e_coco", "panoptic_head", "num_things_classes", 4
    ),
    "Semantic FPN": small_models.semantic_fpn,
    "UperNet": small_models.upernet,
    "Mask2Former of mmseg": lambda: mask2former(
        "8xb2-160k_ade20k-512x512", "decode_head", "num_classes", 5
    ),
    "SegFormer": segformer,
}


def saved(model: torch.nn.Module, classes: Sequence[str] | None) -> dict[str, Any]:
    """Return the checkpoint of a training on classes."""
    return dict(state_dict=model.state_dict(), meta=dict(dataset_meta=dict(classes=classes)))


def predict(model: torch.nn.Module, cfg: Config, classes: Sequence[str]) -> np.ndarray:
    """Return the names of objects by descending score, or of pixels."""
    cfg.test_dataloader.dataset.metainfo = dict(classes=classes)
    photo = small_models.synthetic_photo(96, 128)
    prediction = Predictor(model.eval(), cfg)(photo)
    labels = prediction.labels if prediction.segmentation is None else prediction.segmentation
    return np.array(classes)[labels]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_predicts_the_same_names_after_classes_change_their_order(name):
    cfg = MODELS[name]()
    classes = OBJECTS if cfg.default_scope == "mmdet" else LABELS
    model = small_models.build(cfg)
    expected = predict(model, cfg, classes)
    assert expected.size
    rotated = classes[1:] + classes[:1]  # every class gets another number
    other = small_models.build(cfg)
    load_in_runner(other, saved(model, classes), classes=rotated)
    assert (predict(other, cfg, rotated) == expected).all()


def rows(model: torch.nn.Module, head: str) -> dict[str, torch.Tensor]:
    state = model.get_submodule(head).state_dict()
    return {key: value.clone() for key, value in state.items()}


@pytest.mark.parametrize(
    "classes, line",
    [
        (
            ("star", "hexagon", "circle"),
            "keep 2 of 3 classes by name (star, circle); new: hexagon",
        ),
        (
            ("star", "Square", "fir", "oak"),
            "new: Square, fir, oak; almost the same: square and Square",
        ),
        (
            ("fir", "oak", "elm", "ash"),
            "keep 0 of 4 classes by name; new: fir, oak, elm and 1 more",
        ),
    ],
)
def test_rows_of_the_same_names_move_and_new_classes_keep_their_values(classes, line, capsys):
    def build(count: int) -> torch.nn.Module:
        head = dict(num_classes=count)
        return small_models.build(
            small_models.mask_rcnn(roi_head=dict(bbox_head=head, mask_head=head))
        )

    model = build(4)
    other = build(len(classes))
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    old = rows(model, "roi_head")
    initial = rows(other, "roi_head")
    load_in_runner(other, saved(model, OBJECTS), classes=classes, strict_heads=False)
    new = rows(other, "roi_head")
    assert line in capsys.readouterr().out
    for layer, size in (
        ("bbox_head.fc_cls", 1),
        ("bbox_head.fc_reg", 4),
        ("mask_head.conv_logits", 1),
    ):
        key = f"{layer}.weight"
        for number, name in enumerate(classes):
            expected = initial[key].split(size)[number]
            if name in OBJECTS:
                expected = old[key].split(size)[OBJECTS.index(name)]
            assert torch.equal(new[key].split(size)[number], expected)
    background = old if set(classes) & set(OBJECTS) else initial
    key = "bbox_head.fc_cls.weight"
    assert torch.equal(new[key][-1], background[key][-1])


def classifier(count: int, has_own_head: bool) -> nn.Module:
    """A classifier of mmpretrain, whose head is in the backbone or a linear head of its own."""
    model = nn.Module()
    model.backbone = XCiTClassifier(MINI, num_classes=0 if has_own_head else count)
    if has_own_head:
        model.head = nn.ModuleDict(dict(fc=nn.Linear(16, count)))
        model.head.num_classes = count
    return model


@pytest.mark.parametrize("has_own_head", [False, True])
@pytest.mark.parametrize("classes", [OBJECTS[::-1], ("star", "hexagon", "circle")])
def test_rows_of_a_classifier_move_by_name(classes, has_own_head):
    model = classifier(4, has_own_head)
    other = classifier(len(classes), has_own_head)
    is_strict = len(classes) == 4
    load_in_runner(other, saved(model, OBJECTS), classes=classes, strict_heads=is_strict)
    old = model.head.fc if has_own_head else model.backbone.head
    new = other.head.fc if has_own_head else other.backbone.head
    assert torch.equal(new.weight[[0, -1]], old.weight[[3, 0]])


@pytest.mark.parametrize("meta", ["mmcv 1", "RTMDet", "config beside the file", "nothing"])
def test_names_are_found_where_a_checkpoint_has_them(meta, tmp_path, capsys):
    cfg = small_models.semantic_fpn()
    cfg.test_dataloader.dataset.metainfo = dict(classes=LABELS)
    model = small_models.build(cfg)
    if meta == "config beside the file":
        cfg.dump(tmp_path / "own.py")
    content = saved(model, None)
    if meta == "mmcv 1":
        content["meta"] = dict(CLASSES=LABELS)
    if meta == "RTMDet":
        content["meta"] = dict(dataset_meta=dict(CLASSES=LABELS))
    torch.save(dict(state_dict={}), tmp_path / "epoch_1.pth")
    other = small_models.build(cfg)
    load_from = str(tmp_path / "epoch_1.pth")
    load_in_runner(other, content, classes=LABELS[::-1], load_from=load_from, strict_heads=False)
    bias = model.decode_head.conv_seg.bias
    expected = bias if meta == "nothing" else bias.flip(0)
    assert torch.equal(other.decode_head.conv_seg.bias, expected)
    assert ("does not name its classes" in capsys.readouterr().out) == (meta == "nothing")


@pytest.mark.parametrize("named", [("background", "road"), ("road",)])
@pytest.mark.parametrize("classes", [("background", "road"), ("road", "background")])
@pytest.mark.parametrize("channels", [1, 2])
def test_a_segmentor_with_a_threshold_keeps_its_classes(channels, named, classes):
    cfg = small_models.semantic_fpn(decode_head=dict(num_classes=2, out_channels=1, threshold=0.5))
    model = small_models.build(cfg)
    model.decode_head.conv_seg.bias.data.fill_(0.1)
    expected = predict(model, cfg, ("background", "road"))
    assert len(set(expected.flat)) == 2
    head = dict(num_classes=2, out_channels=channels, threshold=0.5)
    cfg = small_models.semantic_fpn(decode_head=head)
    other = small_models.build(cfg)
    load_in_runner(other, saved(model, named), classes=classes, strict_heads=False)
    assert (predict(other, cfg, classes) == expected).all()


def test_averaged_weights_start_with_the_moved_rows():
    cfg = small_models.semantic_fpn()
    model = small_models.build(cfg)
    content = saved(model, LABELS)
    content["state_dict"] = {f"module.{key}": value for key, value in content["state_dict"].items()}
    options = dict(classes=LABELS[::-1], hooks=[dict(type="EMAHook")])
    runner = load_in_runner(small_models.build(cfg), content, **options)
    (hook,) = (hook for hook in runner.hooks if type(hook).__name__ == "EMAHook")
    averaged = hook.ema_model.module
    assert torch.equal(averaged.decode_head.conv_seg.bias, model.decode_head.conv_seg.bias.flip(0))
    assert same(averaged.backbone.state_dict(), model.backbone.state_dict())


@pytest.mark.parametrize(
    "classes, options, message",
    [
        (("road", *LABELS[1:]), dict(), "keep 4 of 5 .* new: road; to fine-tune: strict"),
        (LABELS[::-1], dict(resume=True), "in another order: 0 is background, not star"),
        (LABELS[1:], dict(resume=True), "background instead of no others"),
        (("a", "A", *LABELS[2:]), dict(resume=True), "in another order: 0 is A, not a"),
    ],
)
def test_a_checkpoint_of_other_classes_is_refused(classes, options, message):
    model = small_models.build(small_models.semantic_fpn())
    learned = ("A", "a", *LABELS[2:]) if "a" in classes else LABELS
    with pytest.raises(CheckpointMismatch, match=message):
        load_in_runner(model, saved(model, learned), classes=classes, **options)


def write_checkpoint(model: tuple[str, str], folder: Path, classes: Sequence[str]) -> Path:
    content = torch.load(model[1]) | dict(meta=dict(dataset_meta=dict(classes=classes)))
    torch.save(content, folder / "trained.pth")
    return folder / "trained.pth"


def test_predictions_and_exports_of_other_classes_are_refused(models, tmp_path):
    checkpoint = write_checkpoint(models["seg"], tmp_path, ("road", *LABELS[1:]))
    refusal = "trained.pth has learned other classes than the config: road instead of background;"
    with pytest.raises(ValueError, match=refusal):
        Predictor.from_config(models["seg"][0], checkpoint)
    with pytest.raises(ValueError, match=refusal):
        export_model(models["seg"][0], checkpoint, tmp_path / "model.onnx")


@pytest.mark.parametrize(
    "metainfo",
    [
        dict(palette=[[0, 0, 0]] * 5),
        dict(classes="names.txt"),
        dict(classes=["Background", *LABELS[1:]]),
    ],
    ids=["palette alone", "a file", "upper case"],
)
def test_the_same_names_predict_however_a_config_writes_them(
    metainfo, models, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("\n".join(LABELS))
    cfg = Config.fromfile(models["seg"][0])
    cfg.test_dataloader.dataset.metainfo.update(metainfo)
    cfg.dump("own.py")
    Predictor.from_config("own.py", write_checkpoint(models["seg"], tmp_path, LABELS))
    line = "names a class background, the config Background"
    assert (line in capsys.readouterr().err) == ("Background" in metainfo.get("classes", ()))
