"""Exported detectors detect what mmdet's own predict detects, for batches and images of any size."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.detections import Detections, assert_same
from helpers.golden import fill
from helpers.onnx_files import dimensions, load_standard, metadata
from helpers.paths import ROOT
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor

from xcit_mm.deployment.detectors import ExportableDetector
from xcit_mm.deployment.supported import check_detector

TINY = dict(embed_dim=32, depth=4, num_heads=4, eta=1.0)
NARROW = dict(in_channels=32, fc_out_channels=32, num_classes=4)
MASKS = dict(in_channels=32, conv_out_channels=16, num_convs=1, num_classes=4)
EXTRACTOR = dict(out_channels=32)
TWO_STAGES = dict(
    backbone=dict(_delete_=True, type="XCiT", patch_size=16, arch=TINY, out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[32] * 4, out_channels=32),
    rpn_head=dict(in_channels=32, feat_channels=32),
    roi_head=dict(
        bbox_head=NARROW,
        bbox_roi_extractor=EXTRACTOR,
        mask_roi_extractor=EXTRACTOR,
        mask_head=MASKS,
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=60)),
)
RETINANET = dict(
    backbone=dict(
        _delete_=True,
        type="XCiT",
        patch_size=16,
        arch=TINY,
        out_indices=(1, 2, 3),
        strides=(8, 16, 32),
    ),
    neck=dict(in_channels=[32] * 3, out_channels=32),
    bbox_head=dict(in_channels=32, feat_channels=32, stacked_convs=1, num_classes=4),
)
COCO = f"{ROOT}/configs/{{}}/{{}}_xcit-s12-p16_fpn_"
FOUR_NAMES = ("circle", "square", "triangle", "star")


def small_mask_rcnn(**model: Any) -> Config:
    cfg = Config.fromfile(f"{ROOT}/configs/demo/mask-rcnn_xcit-n12-p16_shapes.py")
    for options in (TWO_STAGES, model):
        cfg.merge_from_dict(dict(model=deepcopy(options)))  # the merge takes `_delete_` away
    return cfg


def faster_rcnn_of_class_agnostic_boxes() -> Config:
    return small_mask_rcnn(
        type="FasterRCNN",
        roi_head=dict(
            bbox_head=dict(reg_class_agnostic=True), mask_roi_extractor=None, mask_head=None
        ),
        test_cfg=dict(rcnn=dict(nms=dict(iou_threshold=0.3), max_per_img=30)),
    )


def class_agnostic_masks_of_large_boxes() -> Config:
    return small_mask_rcnn(
        roi_head=dict(mask_head=dict(class_agnostic=True)),
        test_cfg=dict(rpn=dict(nms_pre=-1, min_bbox_size=24)),
    )


def cascade_mask_rcnn(agnostic: bool = True) -> Config:
    cfg = Config.fromfile(
        f"{COCO.format('cascade_rcnn', 'cascade-mask-rcnn')}amp-ms-crop-3x_coco.py"
    )
    heads = [
        dict(head, **NARROW, reg_class_agnostic=agnostic) for head in cfg.model.roi_head.bbox_head
    ]
    roi_head = TWO_STAGES["roi_head"] | dict(bbox_head=heads, mask_head=MASKS)
    cfg.merge_from_dict(dict(model=deepcopy(TWO_STAGES | dict(roi_head=roi_head))))
    cfg.test_dataloader.dataset.metainfo = dict(classes=FOUR_NAMES)
    return cfg


def retinanet() -> Config:
    cfg = Config.fromfile(f"{COCO.format('retinanet', 'retinanet')}1x_coco.py")
    cfg.merge_from_dict(dict(model=deepcopy(RETINANET)))
    cfg.test_dataloader.dataset.metainfo = dict(classes=FOUR_NAMES)
    return cfg


def synthetic_images(batch: int, height: int, width: int) -> Tensor:
    """Return smooth noise and rectangles in normalised values, (batch, 3, height, width)."""
    generator = torch.Generator().manual_seed(height)
    images = F.interpolate(
        torch.randn(batch, 3, height // 16 + 1, width // 16 + 1, generator=generator),
        (height, width),
        mode="bilinear",
    )
    for number in range(12 * batch):
        y, x = (int(torch.randint(side - 16, (), generator=generator)) for side in (height, width))
        tall, wide = (int(torch.randint(8, 96, (), generator=generator)) for _ in range(2))
        colour = torch.randn(3, 1, 1, generator=generator)
        images[number % batch, :, y : y + tall, x : x + wide] = colour
    return images


def compare_with_mmdet(
    model: Any, run: Callable, shapes: list[tuple[int, int, int]], pixels: float
) -> int:
    """Compare an exported detector, a function of normalised images, with mmdet's own preprocessing
    and `predict`.

    Returns:
        Number of detections.
    """
    from xcit_mm.deployment.run import paste_mask

    test_cfg, count = (
        model.roi_head.test_cfg if hasattr(model, "roi_head") else model.bbox_head.test_cfg,
        0,
    )
    for batch, *size in shapes:
        samples = [
            DetDataSample(metainfo=dict(img_shape=size, ori_shape=size, scale_factor=(1, 1)))
        ] * batch
        images = list(synthetic_images(batch, *size) * 64 + 128)
        data = model.data_preprocessor(dict(inputs=images, data_samples=deepcopy(samples)), False)
        outputs = [
            np.asarray(x) for x in run(data["inputs"][..., : size[0], : size[1]].contiguous())
        ]
        with torch.no_grad():
            predicted = model.predict(data["inputs"], data["data_samples"], rescale=False)
        for number, sample in enumerate(predicted):
            own, truth = (
                [output[outputs[3] == number] for output in outputs],
                sample.pred_instances.numpy(),
            )
            masks = None
            if model.with_mask:
                pasted = [
                    paste_mask(*pair, size, test_cfg.mask_thr_binary)
                    for pair in zip(own[4], own[0], strict=True)
                ]
                masks = np.array(pasted, bool).reshape(-1, *size)
            # With the maximum number, detections of lower scores have been cut off.
            full = len(truth.scores) == test_cfg.max_per_img
            expected = Detections(truth.bboxes, truth.scores, truth.labels, truth.get("masks"))
            cut = float(truth.scores.min()) if full else test_cfg.score_thr
            count += assert_same(Detections(*own[:3], masks), expected, tuple(size), cut, pixels)
    return count


@pytest.mark.forks
@pytest.mark.parametrize(
    "config",
    [
        small_mask_rcnn,
        faster_rcnn_of_class_agnostic_boxes,
        class_agnostic_masks_of_large_boxes,
        cascade_mask_rcnn,
        partial(cascade_mask_rcnn, agnostic=False),
        retinanet,
    ],
)
def test_exportable_detector_equals_mmdet(config):
    cfg = config()
    check_detector(cfg)
    init_default_scope("mmdet")
    cfg.model.backbone.pop("init_cfg", None)
    test_cfg = cfg.model.test_cfg.get("rcnn", cfg.model.test_cfg)
    test_cfg.score_thr = 0.0  # as many detections as allowed
    model = ExportableDetector(fill(MODELS.build(cfg.model)))

    def run(images: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return model(images)

    found = compare_with_mmdet(
        model.model, run, [(1, 320, 480), (2, 203, 330), (1, 96, 161)], pixels=1e-4
    )
    assert found > 4 * model.cfg.max_per_img * 0.85
    assert ("masks" in model.outputs) == model.model.with_mask


def test_mask_rcnn_in_one_file_of_standard_operators(mask_rcnn, mask_rcnn_file):
    check_file(
        *mask_rcnn.load(), mask_rcnn_file, {"RoiAlign", "NonMaxSuppression", "ConvTranspose"}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [cascade_mask_rcnn, retinanet, class_agnostic_masks_of_large_boxes]
)
def test_other_detectors_in_one_file_of_standard_operators(config, write_trained, export):
    trained = write_trained(config())
    check_file(*trained.load(), export(trained), {"TopK", "NonMaxSuppression"})


def check_file(cfg: Config, model: Any, path: Path, operators: set[str]) -> None:
    from onnxruntime import InferenceSession

    assert list(path.parent.iterdir()) == [path]
    file = load_standard(path)
    assert operators <= {node.op_type for node in file.graph.node}
    assert dimensions(file.graph.input) == dict(image=["batch", 3, "height", "width"])
    masks = dict(masks=[28, 28]) if model.with_mask else {}
    outputs = dict(boxes=[4], scores=[], labels=[], images=[])
    assert {
        name: sizes[1:] for name, sizes in dimensions(file.graph.output).items()
    } == outputs | masks
    facts = metadata(file)
    assert facts["task"] == ("instance segmentation" if masks else "object detection")
    assert facts["mask_threshold"] == (0.5 if masks else None)

    session = InferenceSession(path)
    shapes = [(1, 97, 64), (3, 210, 311), (1, 40, 50)]
    found = compare_with_mmdet(
        model, lambda images: session.run(None, {"image": images.numpy()}), shapes, pixels=1e-3
    )
    assert found > 50


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(type="MaskScoringRCNN"), r"model\.type='MaskScoringRCNN'"),
        (
            dict(rpn_head=dict(type="GARPNHead")),
            r"model\.rpn_head\.type='GARPNHead' cannot be exported: only RPN",
        ),
        (dict(roi_head=dict(bbox_head=dict(type="DoubleConvFCBBoxHead"))), "DoubleConvFCBBoxHead"),
        (dict(roi_head=dict(bbox_head=dict(loss_cls=dict(type="SeesawLoss")))), "SeesawLoss"),
        (
            dict(roi_head=dict(bbox_roi_extractor=dict(roi_layer=dict(aligned=False)))),
            "aligned=False",
        ),
        (
            dict(roi_head=dict(shared_head=dict(type="ResLayer"))),
            r"shared_head\.type='ResLayer' .*leave it out",
        ),
        (
            dict(rpn_head=dict(loss_cls=dict(use_sigmoid=False))),
            r"rpn_head\.loss_cls\.use_sigmoid=False",
        ),
        (
            dict(test_cfg=dict(rcnn=dict(nms=dict(type="soft_nms")))),
            r"test_cfg\.rcnn\.nms\.type='soft_nms'",
        ),
        (
            dict(test_cfg=dict(rcnn=dict(nms=dict(class_agnostic=True)))),
            r"nms\.class_agnostic=True",
        ),
        (dict(test_cfg=dict(rcnn=dict(max_per_img=-1))), r"rcnn\.max_per_img=-1 .* such as 100"),
        (
            dict(test_cfg=dict(rcnn=dict(mask_thr_binary=-1))),
            r"rcnn\.mask_thr_binary=-1 .* such as 0\.5",
        ),
        (
            dict(test_cfg=dict(rcnn=dict(nms=None))),
            r"rcnn\.nms is missing: set it, such as nms=dict",
        ),
    ],
)
def test_unsupported_part_is_named(options, message):
    with pytest.raises(ValueError, match=message) as raised:
        check_detector(small_mask_rcnn(**options))
    assert "\n" not in str(raised.value)
