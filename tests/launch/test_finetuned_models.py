"""`train --from` takes the heads that the model zoo publishes, and models with other backbones."""

import shutil
from pathlib import Path

import pytest
import torch
from helpers.doctor_data import edit_json
from helpers.paths import CONFIGS
from helpers.tiny_recipes import first_batch, tiny
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.launch import write_finetuning_config

DETECTORS = {
    "mask_rcnn/mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco": "bbox segm",
    "cascade_rcnn/cascade-mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco": "bbox segm",
    "retinanet/retinanet_xcit-s12-p16_fpn_1x_coco": "bbox",
    "mask2former/mask2former_xcit-s12-p16_8xb2-lsj-50e_coco": "bbox segm",
}
SEGMENTORS = [
    "semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512",
    "upernet/upernet_xcit-s12-p16_8xb2-160k_ade20k-512x512",
    "segformer/segformer_xcit-s12-p16_8xb2-160k_ade20k-512x512",
    "mask2former/mask2former_xcit-s12-p16_8xb2-160k_ade20k-512x512",
]


def save(cfg: Config, work: Path) -> Path:
    """Save a work folder with random weights."""
    work.mkdir()
    cfg.dump(work / "mine.py")
    init_default_scope(cfg.default_scope)
    state = MODELS.build(cfg.model).state_dict()
    torch.save(dict(state_dict=state), work / "iter_1.pth")
    return work


def compute_losses(config: Path) -> dict[str, torch.Tensor]:
    """Return the losses of the first batch of a config, without weights."""
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    batch = first_batch(cfg.train_dataloader)
    model = MODELS.build(cfg.model).train()
    return model(**model.data_preprocessor(batch, training=True), mode="loss")


def check_losses(config: Path) -> None:
    losses = compute_losses(config)
    parts = [
        part for loss in losses.values() for part in (loss if isinstance(loss, list) else [loss])
    ]
    assert parts and all(torch.isfinite(part).all() for part in parts)


@pytest.mark.parametrize("leaf", DETECTORS)
def test_every_published_detector_trains_on_own_classes_and_empty_photos(leaf, shapes, folder):
    data = folder / "data"
    shutil.copytree(shapes, data)

    def remove(content: dict) -> None:
        content["categories"] = content["categories"][:3]
        first = content["images"][0]["id"]
        kept = [a for a in content["annotations"] if a["category_id"] <= 3]
        content["annotations"] = [a for a in kept if a["image_id"] != first]

    for path in (data / "annotations").glob("*.json"):
        edit_json(path, remove)
    work = save(tiny(CONFIGS / f"{leaf}.py", shapes), folder / "work")
    line = write_finetuning_config(str(work), data, folder / "own.py")
    assert "8 photos, 1 without objects, " in line or "8 photos, 2 without objects, " in line
    cfg = Config.fromfile(folder / "own.py")
    assert " ".join(cfg.test_evaluator.metric) == DETECTORS[leaf]
    check_losses(folder / "own.py")


@pytest.mark.parametrize("leaf", SEGMENTORS)
def test_every_published_segmentor_trains_on_own_classes(leaf, shapes, folder):
    work = save(tiny(CONFIGS / f"{leaf}.py", shapes), folder / "work")
    write_finetuning_config(str(work), shapes, folder / "own.py")
    cfg = Config.fromfile(folder / "own.py")
    assert cfg.model.decode_head.num_classes == len(cfg.metainfo.classes)
    check_losses(folder / "own.py")


OTHER_BACKBONE = """
_base_ = "{}"
model = dict(
    {}backbone=dict(_delete_=True, type="mmdet.ResNet", depth=18, norm_eval=False, style="pytorch"),
    {}
)
"""


@pytest.mark.parametrize(
    "base, changes",
    [
        pytest.param(
            "mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py",
            "neck=dict(in_channels=[64, 128, 256, 512])",
            marks=pytest.mark.slow,
        ),
        (
            "mmdet::retinanet/retinanet_r50_fpn_1x_coco.py",
            "neck=dict(in_channels=[64, 128, 256, 512])",
        ),
        (
            "mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py",
            "pretrained=None, neck=dict(in_channels=[64, 128, 256, 512])",
        ),
    ],
)
def test_a_config_of_the_library_with_another_backbone_trains(base, changes, shapes, folder):
    (folder / "base.py").write_text(OTHER_BACKBONE.format(base, "", changes))
    cfg = Config.fromfile(folder / "base.py")
    work = save(cfg, folder / "work")
    write_finetuning_config(str(work), shapes, folder / "own.py")
    assert "LayerDecay" not in (folder / "own.py").read_text()
    train_steps = [step.type for step in Config.fromfile(folder / "own.py").train_pipeline]
    assert "RandomResize" in train_steps and "Resize" not in train_steps
    check_losses(folder / "own.py")


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(default_scope="mmpretrain"), "--from takes detectors and segmentors"),
        (
            {"model.roi_head.bbox_head": dict(type="BBoxHead"), "model.roi_head.mask_head": None},
            "is a MaskRCNN without num_classes",
        ),
        (
            {"train_dataloader.dataset": dict(type="MultiImageMixDataset", dataset=dict(type="A"))},
            "has MultiImageMixDataset, --from takes one data set",
        ),
    ],
)
def test_a_model_that_cannot_be_taken_is_named(changes, message, trained, data, folder):
    cfg = Config.fromfile(trained / "mine.py")
    for key, value in changes.items():
        part, _, last = f"cfg.{key}".rpartition(".")
        node = cfg
        for name in part.split(".")[1:]:
            node = node[name]
        node[last] = value
    cfg.dump(trained / "mine.py")
    with pytest.raises(ValueError, match=message):
        write_finetuning_config(str(trained), data, folder / "own.py")
