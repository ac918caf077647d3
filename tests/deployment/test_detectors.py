"""Exported detectors detect what mmdet's own detect, in batches and images of any size."""

import re
from functools import partial

import numpy as np
import pytest
import torch
from helpers import small_models
from helpers.detections import Detections, assert_same
from helpers.onnx_files import load_standard, metadata
from mmdet.structures import DetDataSample
from mmengine.config import Config

from xcit_mm.deployment.detectors import ExportableDetector
from xcit_mm.deployment.supported import check_types

run_py = pytest.importorskip("xcit_mm.deployment.run")

WITHOUT_MASKS = dict(mask_roi_extractor=None, mask_head=None)


def class_agnostic_masks_of_large_boxes() -> Config:
    return small_models.mask_rcnn(
        roi_head=dict(mask_head=dict(class_agnostic=True)),
        test_cfg=dict(rpn=dict(nms_pre=-1, min_bbox_size=24)),
    )


@pytest.mark.forks
@pytest.mark.parametrize(
    "config",
    [
        small_models.mask_rcnn,
        partial(small_models.mask_rcnn, type="FasterRCNN", roi_head=WITHOUT_MASKS),
        class_agnostic_masks_of_large_boxes,
        small_models.cascade_mask_rcnn,
        partial(small_models.cascade_mask_rcnn, agnostic=False),
        small_models.retinanet,
    ],
)
def test_exportable_detector_equals_mmdet(config):
    """An export compares the file with this module."""
    cfg = config()
    check_types(cfg.model)
    test_cfg = cfg.model.test_cfg.get("rcnn", cfg.model.test_cfg)
    test_cfg.score_thr = 0.0  # as many detections as allowed
    model = small_models.build(cfg)
    detector = ExportableDetector(model)
    batch = 2
    size = 203, 330
    meta = dict(img_shape=size, ori_shape=size, scale_factor=(1, 1))
    samples = [DetDataSample(metainfo=meta) for _ in range(batch)]
    images = list(small_models.synthetic_images(batch, *size) * 64 + 128)
    data = model.data_preprocessor(dict(inputs=images, data_samples=samples), False)
    with torch.no_grad():
        outputs = detector(data["inputs"][..., : size[0], : size[1]].contiguous())
        predicted = model.predict(data["inputs"], data["data_samples"], rescale=False)
    boxes, scores, labels, numbers, *masks = map(np.asarray, outputs)
    count = 0
    for number, sample in enumerate(predicted):
        is_own = numbers == number
        pasted = None
        if masks:
            pairs = zip(masks[0][is_own], boxes[is_own], strict=True)
            pasted = np.zeros((is_own.sum(), *size), bool)
            for index, (mask, box) in enumerate(pairs):
                pasted[index] = run_py.paste_mask(mask, box, size, test_cfg.mask_thr_binary)
        actual = Detections(boxes[is_own], scores[is_own], labels[is_own], pasted)
        truth = sample.pred_instances.numpy()
        expected = Detections(truth.bboxes, truth.scores, truth.labels, truth.get("masks"))
        # With the maximum number, detections of lower scores have been cut off.
        is_full = len(truth.scores) == test_cfg.max_per_img
        cut = float(truth.scores.min()) if is_full else 0.0
        count += assert_same(actual, expected, size, cut, pixels=1e-4)
    assert count > 0.85 * batch * test_cfg.max_per_img
    assert ("masks" in detector.outputs) == model.with_mask


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        small_models.cascade_mask_rcnn,
        small_models.retinanet,
        class_agnostic_masks_of_large_boxes,
        partial(small_models.semantic_fpn, decode_head=dict(num_classes=150)),
    ],
)
def test_other_models_have_standard_operators_and_agree_with_torch(recipe, write_trained, export):
    file = load_standard(export(write_trained(recipe())))  # the export compares it with torch
    assert [output.name for output in file.graph.output] == metadata(file)["outputs"]


def test_float16_detector_finds_what_float32_finds(mask_rcnn_file, tmp_path):
    """The recipe of the documentation, on a CPU."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    half = convert_float_to_float16(onnx.load(mask_rcnn_file), keep_io_types=True)
    onnx.save(half, tmp_path / "half.onnx")
    image = small_models.synthetic_photo(203, 330)
    # Rounding decides which scores exceed the file's threshold, 0.25.
    expected = run_py.Model(mask_rcnn_file)(image, min_score=0.26)
    actual = run_py.Model(tmp_path / "half.onnx")(image)
    distance = np.abs(expected["boxes"][:, None] - actual["boxes"]).max(axis=2)
    is_near = distance.min(axis=1) < 1  # pixel
    assert len(is_near) > 4
    assert is_near.mean() > 0.8


@pytest.mark.parametrize(
    "part, options, named",
    [
        ("", dict(type="MaskScoringRCNN"), "model.type='MaskScoringRCNN'"),
        ("roi_head", dict(shared_head=dict(type="ResLayer")), "shared_head.type='ResLayer'"),
        ("test_cfg.rcnn.nms", dict(type="soft_nms"), "test_cfg.rcnn.nms.type='soft_nms'"),
    ],
)
def test_unsupported_part_is_named(part, options, named):
    cfg = small_models.mask_rcnn()
    prefix = f"model.{part}.".replace("..", ".")
    cfg.merge_from_dict({f"{prefix}{name}": value for name, value in options.items()})
    with pytest.raises(ValueError, match=re.escape(named)) as raised:
        check_types(cfg.model)
    assert "\n" not in str(raised.value)
