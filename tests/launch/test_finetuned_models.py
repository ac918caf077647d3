"""`finetune` takes the heads that the model zoo publishes, and models with other backbones."""

import re
from collections.abc import Callable

import pytest
import torch
from helpers.doctor_data import edit_json
from helpers.exports import shapes_options
from helpers.paths import CONFIGS
from helpers.small_models import first_batch, tiny
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

DETECTORS = [
    "mask_rcnn/mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco",
    "cascade_rcnn/cascade-mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco",
    "retinanet/retinanet_xcit-s12-p16_fpn_1x_coco",
    "mask2former/mask2former_xcit-s12-p16_8xb2-lsj-50e_coco",
]
SEGMENTORS = [
    "semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512",
    "upernet/upernet_xcit-s12-p16_8xb2-160k_ade20k-512x512",
    "segformer/segformer_xcit-s12-p16_8xb2-160k_ade20k-512x512",
    "mask2former/mask2former_xcit-s12-p16_8xb2-160k_ade20k-512x512",
]


@pytest.fixture
def finetune(folder, start, capsys) -> Callable[[Config, list], tuple[str, Config]]:
    """Returns what is printed on a fine-tuning of a model with random weights, and its config. The
    losses of the first batch must be finite.
    """

    def run(cfg: Config, data: list) -> tuple[str, Config]:
        work = folder / "work"
        work.mkdir()
        cfg.dump(work / "mine.py")
        init_default_scope(cfg.default_scope)
        torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), work / "iter_1.pth")
        own = start("finetune", work, *data)
        own.train_dataloader.update(num_workers=0, persistent_workers=False)
        batch = first_batch(own.train_dataloader)
        model = MODELS.build(own.model).train()
        losses = model(**model.data_preprocessor(batch, training=True), mode="loss")
        total, _ = model.parse_losses(losses)
        assert torch.isfinite(total)
        return capsys.readouterr().err, own

    return run


@pytest.mark.parametrize("leaf", DETECTORS)
def test_every_published_detector_trains_on_own_classes_and_empty_photos(
    leaf, shapes, data, finetune
):
    def empty_first(coco: dict) -> None:
        first = coco["images"][0]["id"]
        coco["annotations"] = [part for part in coco["annotations"] if part["image_id"] != first]

    edit_json(data / "annotations" / "instances_training.json", empty_first)
    printed, cfg = finetune(tiny(CONFIGS / f"{leaf}.py", shapes), shapes_options(data))
    assert re.search("8 images, [12] without objects, ", printed)
    assert cfg.test_evaluator.metric[1:] == ([] if "retinanet" in leaf else ["segm"])


@pytest.mark.parametrize("leaf", SEGMENTORS)
def test_every_published_segmentor_trains_on_own_classes(leaf, shapes, maps, folder, finetune):
    _, cfg = finetune(tiny(CONFIGS / f"{leaf}.py", shapes), [maps])
    assert cfg.metainfo.classes[1:] == ("ground", "circle", "square", "triangle", "star")
    assert cfg.model.decode_head.num_classes == 6
    assert not cfg.train_dataloader.dataset.get("reduce_zero_label")
    assert not (folder / "maps-coco").exists()  # maps stay where they are


RESNET = """
_base_ = "mmdet::retinanet/retinanet_r50_fpn_1x_coco.py"
backbone = dict(_delete_=True, type="ResNet", depth=18, norm_eval=False, style="pytorch")
model = dict(backbone=backbone, neck=dict(in_channels=[64, 128, 256, 512]))
"""


def test_a_config_of_the_library_with_another_backbone_trains(shapes, folder, finetune):
    (folder / "base.py").write_text(RESNET)
    _, cfg = finetune(Config.fromfile(folder / "base.py"), shapes_options(shapes))
    assert cfg.optim_wrapper.constructor == "DefaultOptimWrapperConstructor"
    assert cfg.model.backbone.init_cfg is None  # the checkpoint replaces its weights


@pytest.mark.parametrize("optimizer, rate", [("SGD", 1e-4), ("AdamW", 0.02)])
def test_adamw_does_not_get_the_rate_of_sgd(optimizer, rate, shapes, folder, start):
    optim_wrapper = f"optim_wrapper = dict(optimizer=dict(type={optimizer!r}, lr=0.02))"
    (folder / "base.py").write_text(RESNET + optim_wrapper)
    cfg = start("finetune", "base.py", *shapes_options(shapes), "--skip-checks")
    assert (cfg.optim_wrapper.optimizer.type, cfg.optim_wrapper.optimizer.lr) == ("AdamW", rate)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(default_scope="mmpretrain"), "only detectors and segmentors whose"),
        (
            dict(train_dataloader=dict(dataset=dict(_delete_=True, type="Repeat", dataset={}))),
            "its Repeat wraps data sets: remove it",
        ),
        (
            dict(
                model=dict(roi_head=dict(bbox_head=dict(_delete_=True, type="A"), mask_head=None))
            ),
            "has no head with num_classes",
        ),
        (
            dict(model=dict(roi_head=None, panoptic_head=dict(type="A"))),
            "needs masks: leave boxes out",
        ),
    ],
)
def test_a_model_that_cannot_be_taken_is_named(changes, message, trained, own_data, refused):
    cfg = Config.fromfile(trained / "mine.py")
    cfg.merge_from_dict(changes)
    cfg.dump(trained / "mine.py")
    assert message in refused("finetune", trained, *own_data, "--boxes")
