"""Exported detectors detect what mmdet's own detect, in batches and images of any size."""

import shutil
from functools import partial

import numpy as np
import pytest
import torch
from helpers import small_models
from helpers.onnx_files import load_standard, metadata
from helpers.pages import blocks
from helpers.paths import ROOT
from mmengine.config import Config

from xcit_mm.deployment.check import largest_deviation
from xcit_mm.deployment.detectors import ExportableDetector
from xcit_mm.deployment.supported import check_types

run_py = pytest.importorskip("xcit_mm.deployment.run")

PAGE = ROOT / "docs" / "deployment.md"
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
    """On noise, at any score, as an export compares the file."""
    cfg = config()
    check_types(cfg.model)
    model = small_models.build(cfg)
    detector = ExportableDetector(model)
    detector.score_thr.zero_()
    assert ("masks" in detector.outputs) == model.with_mask

    def run(image: torch.Tensor) -> dict[str, np.ndarray]:
        return dict(zip(detector.outputs, map(np.asarray, detector(image)), strict=True))

    with torch.no_grad():
        largest_deviation(run, model, channels=3)  # raises


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


def test_float16_detector_finds_what_float32_finds(mask_rcnn_file, tmp_path, monkeypatch):
    """The recipe of the documentation, on a CPU, which may compute float16 in float32."""
    import onnx

    monkeypatch.chdir(tmp_path)
    shutil.copy(mask_rcnn_file, "model.onnx")
    (recipe,) = (code for _, code in blocks(PAGE) if "half.onnx" in code)
    exec(recipe, {})
    file = load_standard(tmp_path / "half.onnx")
    values = onnx.shape_inference.infer_shapes(file).graph.value_info
    halves = {value.name for value in values if value.type.tensor_type.elem_type == 10}
    assert len(halves) > 100
    # Boxes of many classes are moved too far apart for float16.
    assert not [node for node in file.graph.node if node.name[0] == "/" and {*node.output} & halves]
    image = small_models.synthetic_photo(203, 330)
    # Rounding decides which scores exceed the file's threshold, 0.25.
    expected = run_py.Model(mask_rcnn_file)(image, min_score=0.26)
    actual = run_py.Model("half.onnx")(image)
    distance = np.abs(expected["boxes"][:, None] - actual["boxes"]).max(axis=2)
    is_near = distance.min(axis=1) < 1  # pixel
    assert len(is_near) > 4
    assert is_near.mean() > 0.8


@pytest.mark.parametrize(
    "part, unsupported",
    [
        ("model", "MaskScoringRCNN"),
        ("model.roi_head.mask_head", "GridHead"),
        ("model.test_cfg.rcnn.nms", "soft_nms"),
    ],
)
def test_unsupported_part_is_named(part, unsupported):
    cfg = small_models.cascade_mask_rcnn()
    cfg.merge_from_dict({f"{part}.type": unsupported})
    with pytest.raises(ValueError, match=f"^{part}.type='{unsupported}' cannot be exported"):
        check_types(cfg.model)


def test_an_unsupported_option_of_suppression_is_named():
    cfg = small_models.cascade_mask_rcnn()
    cfg.model.test_cfg.rcnn.nms.class_agnostic = True
    with pytest.raises(ValueError, match=r"^model\.test_cfg\.rcnn\.nms\.class_agnostic cannot be"):
        check_types(cfg.model)
