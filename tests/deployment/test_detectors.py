"""Exported detectors detect what mmdet's own predict detects."""

import json
import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden import fill
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from onnx_files import dimensions, load_standard, metadata
from paths import ROOT
from torch import Tensor, nn

from xcit_mm.deployment import detectors
from xcit_mm.deployment.comparison import DetectionComparison, Drift, compare_detector, to_detections, to_instances
from xcit_mm.deployment.detectors import ExportableDetector, decode
from xcit_mm.deployment.evaluation import check_evaluation, evaluate_files, score_lines
from xcit_mm.deployment.images import preprocess_synthetic, synthetic_image, to_model_input
from xcit_mm.deployment.runtime import Detections, Model, Segmentation, read_image
from xcit_mm.deployment.runtime.results import OPTIONS
from xcit_mm.deployment.supported import check_detector

TINY = dict(embed_dim=32, depth=4, num_heads=4, eta=1.0)
NARROW = dict(in_channels=32, fc_out_channels=32, num_classes=4)
MASKS = dict(in_channels=32, conv_out_channels=16, num_convs=1, num_classes=4)
EXTRACTOR = dict(out_channels=32)
FEW = dict(nms_pre=200, max_per_img=60)
TWO_STAGES = dict(
    backbone=dict(_delete_=True, type="XCiT", patch_size=16, arch=TINY, out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[32] * 4, out_channels=32),
    rpn_head=dict(in_channels=32, feat_channels=32),
    roi_head=dict(bbox_head=NARROW, bbox_roi_extractor=EXTRACTOR, mask_roi_extractor=EXTRACTOR, mask_head=MASKS),
    test_cfg=dict(rpn=FEW),
)
WITHOUT_MASKS = dict(mask_roi_extractor=None, mask_head=None)
RETINANET = dict(
    backbone=dict(_delete_=True, type="XCiT", patch_size=16, arch=TINY, out_indices=(1, 2, 3), strides=(8, 16, 32)),
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
        roi_head=dict(bbox_head=dict(reg_class_agnostic=True), **WITHOUT_MASKS),
        test_cfg=dict(rcnn=dict(nms=dict(iou_threshold=0.3), max_per_img=30)),
    )


def class_agnostic_masks_of_large_boxes() -> Config:
    return small_mask_rcnn(
        backbone=dict(ignore_padding=True),
        rpn_head=dict(type="UnpaddedRPNHead"),
        roi_head=dict(mask_head=dict(class_agnostic=True)),
        test_cfg=dict(rpn=dict(nms_pre=-1, min_bbox_size=24)),
    )


def unpadded_mask_rcnn() -> Config:
    return small_mask_rcnn(backbone=dict(ignore_padding=True))


def cascade_mask_rcnn(agnostic: bool = True) -> Config:
    cfg = Config.fromfile(f"{COCO.format('cascade_rcnn', 'cascade-mask-rcnn')}amp-ms-crop-3x_coco.py")
    stages = [dict(head, **NARROW, reg_class_agnostic=agnostic) for head in cfg.model.roi_head.bbox_head]
    roi_head = TWO_STAGES["roi_head"] | dict(bbox_head=stages, mask_head=MASKS)
    cfg.merge_from_dict(dict(model=deepcopy(TWO_STAGES | dict(roi_head=roi_head))))
    cfg.test_dataloader.dataset.metainfo = dict(classes=FOUR_NAMES)
    return cfg


def cascade_of_boxes_for_each_class() -> Config:
    return cascade_mask_rcnn(agnostic=False)


def retinanet() -> Config:
    cfg = Config.fromfile(f"{COCO.format('retinanet', 'retinanet')}1x_coco.py")
    cfg.merge_from_dict(dict(model=deepcopy(RETINANET)))
    cfg.test_dataloader.dataset.metainfo = dict(classes=FOUR_NAMES)
    return cfg


def built(cfg: Config) -> Any:
    """Build the model of a config with parameters under which scores spread and boxes move."""
    init_default_scope("mmdet")
    cfg.model.backbone.pop("init_cfg", None)
    return fill(MODELS.build(cfg.model))


@pytest.fixture(scope="module")
def detector_model() -> Any:
    return built(small_mask_rcnn())


def in_torch(model: ExportableDetector) -> Callable:
    """Run a detector in torch as its file would be run."""

    def run(image: Tensor, **options: float) -> list[Tensor]:
        given = [torch.full_like(default, options.get(name, default.item())) for name, default in model.options.items()]
        with torch.no_grad():
            return list(model(image, *given))

    return run


@pytest.mark.parametrize(
    "config",
    [
        small_mask_rcnn,
        faster_rcnn_of_class_agnostic_boxes,
        class_agnostic_masks_of_large_boxes,
        unpadded_mask_rcnn,
        cascade_mask_rcnn,
        cascade_of_boxes_for_each_class,
        retinanet,
    ],
)
def test_exportable_detector_equals_mmdet(config):
    cfg = config()
    check_detector(cfg)
    model = ExportableDetector(built(cfg))
    found = compare_detector(cfg, model.model, in_torch(model), 3)
    assert found.lines().keys() == set(model.outputs) - {"images"}
    assert found.unmatched == 0 and found.different_pixels <= 1e-4 * found.pixels
    assert found.detections > 2 * model.cfg.max_per_img * 0.9 + 2 * 2 * 20
    assert found.boxes < 1e-5 and found.scores < 1e-5
    assert (found.pixels > 0) == ("masks" in model.outputs) == model.model.with_mask


class CropToImage(nn.Module):
    """Crop of a map for each level to the image, of which each map is the upper left corner."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, image: Tensor) -> list[Tensor]:
        return self.head.crop_to_image([image] * self.head.prior_generator.num_levels, image.shape[2:])


def test_proposals_in_a_file_are_from_all_cells_of_an_image(tmp_path):
    """ONNX does not round a negative quotient as Python does."""
    from onnxruntime import InferenceSession

    crop = CropToImage(built(class_agnostic_masks_of_large_boxes()).rpn_head).eval()
    sizes = ({2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC},)
    torch.onnx.export(crop, (torch.zeros(1, 1, 96, 160),), tmp_path / "crop.onnx", dynamo=True, dynamic_shapes=sizes)
    session = InferenceSession(tmp_path / "crop.onnx")
    for size in [(203, 330), (320, 480), (64, 128), (1, 63)]:
        maps = session.run(None, {"image": np.zeros((1, 1, *size), np.float32)})
        assert [m.shape[2:] for m in maps] == [tuple(math.ceil(side / y) for side in size) for y in (4, 8, 16, 32, 64)]


def test_outputs_of_a_fixed_size_are_padded(detector_model):
    image = synthetic_image(3, 96, 128, torch.Generator().manual_seed(1))
    detected, padded = (ExportableDetector(detector_model, is_padded) for is_padded in (False, True))
    for model in (detected, padded):
        model.options["max_per_img"][:] = 30
    with torch.no_grad():
        for name, expected, found in zip(detected.outputs, detected(image), padded(image), strict=True):
            assert len(expected) == 30 and len(found) == 100
            assert torch.equal(found[:30], expected), name
            assert (found[30:] == (-1 if name == "labels" else 0)).all(), name


@pytest.mark.slow
def test_file_of_a_fixed_size_has_no_variable_dimension(mask_rcnn, mask_rcnn_file, call, shapes, tmp_path):
    out = tmp_path / "fixed.onnx"
    code, _, _ = call("export", *mask_rcnn, "--out", out, "--size", "160x192")
    file = load_standard(out)
    assert code == 0 and dimensions(file.graph.input) == dict(image=[1, 3, 160, 192])
    found = dimensions(file.graph.output)
    assert found.pop("boxes") == [60, 4] and found.pop("masks") == [60, 28, 28]
    assert found == dict(scores=[60], labels=[60], images=[60])
    image = read_image(next((shapes / "images" / "validation").iterdir()))  # is resized to 150x150 and padded
    sure = Model(out)(image)
    assert 0 < len(sure.scores) <= 60 and sure.labels.min() >= 0


def test_detections_are_rescaled_to_the_original_image_as_in_mmdet(detector_model):
    model = ExportableDetector(detector_model)
    cfg = small_mask_rcnn()
    data = preprocess_synthetic(cfg, detector_model, synthetic_image(3, 120, 150, torch.Generator().manual_seed(1)))
    meta = dict(img_shape=(120, 150), ori_shape=(240, 450), scale_factor=(1 / 3, 0.5))
    with torch.no_grad():
        found = to_detections(to_instances(model.model, list(model(to_model_input(data, cfg))), meta))
        (sample,) = model.model.predict(data["inputs"], [DetDataSample(metainfo=meta)], rescale=True)
    assert found.masks.shape == (len(found.scores), 240, 450) and len(found.scores) > 20
    comparison = DetectionComparison()
    comparison.add(found, to_detections(sample.pred_instances), (240, 450), 0.05)
    assert comparison.unmatched == 0 and comparison.pixels > 1000
    assert comparison.different_pixels <= 1e-4 * comparison.pixels


def test_boxes_are_clipped_to_the_image_after_their_masks_are_pasted(detector_model):
    grid = torch.zeros(1, 28, 28)
    grid[:, :14, :14] = 1.0
    outputs = [torch.tensor([[10.0, 20, 90, 100]]), torch.ones(1), *torch.zeros(2, 1, dtype=torch.long), grid]
    found = to_instances(detector_model, outputs, dict(ori_shape=(60, 50), scale_factor=(1.0, 1.0)))
    assert found.bboxes.tolist() == [[10, 20, 50, 60]]
    assert found.masks[0, 21:59, 11:49].all() and not found.masks[0, :20].any() and not found.masks[0, :, :10].any()


def test_mask_rcnn_in_one_file_of_standard_operators(mask_rcnn, mask_rcnn_file):
    check_file(*mask_rcnn.load(), mask_rcnn_file, {"RoiAlign", "NonMaxSuppression", "ConvTranspose"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "config, slow_kinds",
    [
        (cascade_mask_rcnn, {"RoiAlign", "NonMaxSuppression"}),
        (retinanet, {"TopK", "NonMaxSuppression"}),
        (class_agnostic_masks_of_large_boxes, {"RoiAlign", "NonMaxSuppression"}),
        (unpadded_mask_rcnn, {"RoiAlign", "NonMaxSuppression"}),
    ],
)
def test_other_detectors_in_one_file_of_standard_operators(config, slow_kinds, write_trained, export_float32):
    trained = write_trained(config())
    check_file(*trained.load(), export_float32(trained), slow_kinds)


def check_file(cfg: Config, model: Any, path: Path, slow_kinds: set[str]) -> None:
    from onnxruntime import InferenceSession

    assert list(path.parent.iterdir()) == [path]
    file = load_standard(path)
    assert slow_kinds <= {node.op_type for node in file.graph.node}
    options = {name: [1] for name in OPTIONS}
    assert dimensions(file.graph.input) == dict(image=["batch", 3, "height", "width"]) | options
    masks = dict(masks=["detections", 28, 28]) if model.with_mask else {}
    outputs = dict(boxes=["detections", 4], scores=["detections"], labels=["detections"]) | masks
    outputs["images"] = ["detections"]
    assert dimensions(file.graph.output) == outputs
    facts = metadata(file)
    assert facts["task"] == ("instance segmentation" if masks else "object detection")
    assert json.loads(facts["test_cfg"])["rcnn" if masks else "nms"]

    session, comparison = InferenceSession(path), DetectionComparison()
    for batch, *size in [(1, 97, 64), (3, 210, 311), (1, 33, 47)]:
        generator = torch.Generator().manual_seed(2)
        data = preprocess_synthetic(cfg, model, torch.cat([synthetic_image(3, *size, generator) for _ in range(batch)]))
        outputs = [torch.from_numpy(x) for x in session.run(None, {"image": to_model_input(data, cfg).numpy()})]
        with torch.no_grad():
            samples = model.predict(data["inputs"], data["data_samples"], rescale=False)
        for number, sample in enumerate(samples):
            own = [output[outputs[3] == number] for output in outputs]
            found = to_detections(to_instances(model, own, sample.metainfo))
            expected = to_detections(sample.pred_instances)
            cut = expected.scores.min() if len(expected.scores) == 60 else 0.05  # where the limit has cut others off
            comparison.add(found, expected, tuple(size), cut)
    comparison.lines()
    assert comparison.unmatched == 0 and comparison.detections > 100


@pytest.mark.slow
def test_detector_without_any_proposal_is_not_written(write_trained, export_float32):
    with pytest.raises(RuntimeError, match="detects nothing in synthetic images"):
        export_float32(write_trained(small_mask_rcnn(test_cfg=dict(rpn=dict(min_bbox_size=10_000)))))


@pytest.mark.slow
def test_detector_with_other_boxes_is_not_written(write_trained, export_float32, monkeypatch):
    monkeypatch.setattr(detectors, "decode", lambda *args: decode(*args) * 1.01)
    with pytest.raises(RuntimeError, match="detections of the exported model and torch have no match"):
        export_float32(write_trained(faster_rcnn_of_class_agnostic_boxes()))


def fifty_detections() -> Detections:
    random = np.random.default_rng(0)
    corner = random.random((50, 2), np.float32) * 60
    masks = random.random((50, 80, 80)) > 0.5
    boxes, scores = np.concatenate([corner, corner + 20], 1), np.linspace(0.9, 0.1, 50, dtype=np.float32)
    return Detections(boxes, scores, np.arange(50) % 4, masks)


@pytest.mark.parametrize(
    "chosen, field, change, message",
    [
        (slice(None), None, None, None),
        (np.arange(50)[::-1], None, None, None),
        (slice(49), None, None, None),  # the last is at the cut
        (slice(1, None), None, None, None),  # one in fifty may be a near tie
        (slice(5, None), None, None, "5 of 95 detections"),
        (slice(0), None, None, "49 of 49 detections"),
        (slice(None), "boxes", lambda boxes: boxes + 0.1, "98 of 98 detections"),
        (slice(None), "scores", lambda scores: scores + 0.01, "99 of 99 detections"),
        (slice(None), "labels", lambda labels: np.roll(labels, 1), "98 of 98 detections"),
        (slice(None), "masks", lambda masks: np.roll(masks, 1, 2), r"differ from torch's in 6\d\.\d% of pixels"),
    ],
)
def test_detections_agree_up_to_rounding_and_near_ties(chosen, field, change, message):
    expected, comparison = fifty_detections(), DetectionComparison()
    found = Detections(*(values[chosen] for values in expected))
    if field:
        found = found._replace(**{field: change(getattr(found, field))})
    comparison.add(found, expected, (80, 80), cut=0.1)
    if message is None:
        comparison.lines()
    else:
        with pytest.raises(RuntimeError, match=message):
            comparison.lines()


def test_drift_counts_detections_without_a_match_and_pixels():
    boxes = np.array([[0, 0, 10, 10], [20, 0, 40, 10], [50, 0, 60, 10], [70, 0, 80, 10]], np.float32)
    scores = np.array([0.9, 0.8, 0.7, 0.1], np.float32)
    expected = Detections(boxes, scores, np.array([0, 1, 1, 0]), None)
    shift = np.float32([[0, 0, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0], [9, 0, 9, 0]])
    # The third changes its class, the fourth has a low score.
    found = Detections(boxes + shift, scores, np.array([0, 1, 0, 0]), None)
    empty = Detections(*(values[:0] for values in expected[:3]), None)
    for pair, drift in [
        ((found, expected), Drift(6, 2, 3.0)),
        ((empty, expected), Drift(3, 3, 0.0)),
        ((empty, empty), Drift(0, 0, 0.0)),
        ((Segmentation(np.eye(4)), Segmentation(np.zeros((4, 4)))), Drift(16, 4, None)),
    ]:
        counted = Drift()
        counted.add(*pair)
        assert counted == drift


def test_scores_of_a_file_are_those_of_the_evaluated_images(mask_rcnn):
    cfg, model = mask_rcnn.load()  # enlarges images to 150 pixels, which mmdet pads to 160
    check_evaluation(cfg, "model", 2)
    seen: list[tuple[int, ...]] = []
    truth = iter(ground_truth(Path(cfg.test_evaluator.ann_file)))

    def oracle(image: Tensor) -> list[Tensor]:
        seen.append(tuple(image.shape))
        boxes, labels = next(truth)
        scores, masks = torch.ones(len(boxes)), torch.ones(len(boxes), 28, 28)
        return [boxes * 150 / 96, scores, labels, torch.zeros_like(labels), masks]

    count, scores = evaluate_files(cfg, model, dict(oracle=oracle), 2)
    assert count == 2 and seen == [(1, 3, 150, 150)] * 2
    assert scores["coco/bbox_mAP"]["oracle"] > 0.99 > 0.5 > scores["coco/bbox_mAP"]["torch"]
    run = in_torch(ExportableDetector(model))
    for values in evaluate_files(cfg, model, dict(file=run), 3)[1].values():
        assert values["torch"] == pytest.approx(values["file"], abs=1e-3)


def test_file_that_scores_otherwise_than_torch_is_reported():
    scores = {
        "coco/bbox_mAP": dict(torch=0.487, float32=0.467),
        "coco/bbox_mAP_50": dict(torch=0.7, float32=0.8),
        "coco/segm_mAP": dict(torch=0.487, float32=0.489),
        "mIoU": dict(torch=40.0, float32=40.3),
    }
    boxes, _, masks, regions = lines = score_lines(scores)
    assert boxes.endswith("-2.00 points, WARNING: more than 0.2") and "+0.30 points" in regions
    assert (
        sum("WARNING" in line for line in lines) == 2 and masks == "coco/segm_mAP 0.4890 (torch: 0.4870): +0.20 points"
    )


def ground_truth(path: Path) -> list[tuple[Tensor, Tensor]]:
    """Read boxes and labels of each image of a COCO json."""
    content = json.loads(path.read_text())
    found = []
    for image in content["images"]:
        own = [entry for entry in content["annotations"] if entry["image_id"] == image["id"]]
        boxes = torch.tensor([entry["bbox"] for entry in own], dtype=torch.float)
        boxes[:, 2:] += boxes[:, :2]
        found.append((boxes, torch.tensor([entry["category_id"] for entry in own]) - content["categories"][0]["id"]))
    return found


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(type="MaskScoringRCNN"), r"model\.type='MaskScoringRCNN'"),
        (dict(rpn_head=dict(type="GARPNHead")), r"model\.rpn_head\.type='GARPNHead' cannot be exported: only RPN"),
        (dict(roi_head=dict(type="PointRendRoIHead")), "PointRendRoIHead"),
        (dict(roi_head=dict(bbox_head=dict(type="DoubleConvFCBBoxHead"))), "DoubleConvFCBBoxHead"),
        (dict(roi_head=dict(bbox_head=dict(loss_cls=dict(type="SeesawLoss")))), "SeesawLoss"),
        (dict(roi_head=dict(mask_head=dict(type="CoarseMaskHead"))), "CoarseMaskHead"),
        (dict(roi_head=dict(mask_roi_extractor=dict(type="GenericRoIExtractor"))), "GenericRoIExtractor"),
        (dict(roi_head=dict(bbox_roi_extractor=dict(roi_layer=dict(type="RoIPool")))), "RoIPool"),
        (dict(roi_head=dict(bbox_roi_extractor=dict(roi_layer=dict(aligned=False)))), "aligned=False"),
        (dict(roi_head=dict(shared_head=dict(type="ResLayer"))), r"shared_head\.type='ResLayer' .*leave it out"),
        (dict(rpn_head=dict(loss_cls=dict(use_sigmoid=False))), r"rpn_head\.loss_cls\.use_sigmoid=False"),
        (dict(rpn_head=dict(loss_cls=dict(_delete_=True, type="CrossEntropyLoss"))), r"loss_cls\.use_sigmoid=False"),
        (dict(rpn_head=dict(bbox_coder=dict(clip_border=False))), r"rpn_head\.bbox_coder\.clip_border=False"),
        (dict(test_cfg=dict(rcnn=dict(nms=dict(type="soft_nms")))), r"test_cfg\.rcnn\.nms\.type='soft_nms'"),
        (dict(test_cfg=dict(rcnn=dict(nms=dict(class_agnostic=True)))), r"nms\.class_agnostic=True"),
    ],
)
def test_unsupported_part_is_named(options, message):
    with pytest.raises(ValueError, match=message) as raised:
        check_detector(small_mask_rcnn(**options))
    assert "\n" not in str(raised.value) and "--part backbone" in str(raised.value)


@pytest.mark.parametrize(
    "config, where, value, message",
    [
        (small_mask_rcnn, "rcnn.max_per_img", -1, r"rcnn\.max_per_img=-1 .* such as 100"),
        (small_mask_rcnn, "rpn.max_per_img", 0, r"rpn\.max_per_img=0 "),
        (retinanet, "max_per_img", -1, r"model\.test_cfg\.max_per_img=-1 "),
        (small_mask_rcnn, "rcnn.mask_thr_binary", -1, r"rcnn\.mask_thr_binary=-1 .* such as 0\.5"),
        (small_mask_rcnn, "rcnn.mask_thr_binary", 0, r"rcnn\.mask_thr_binary=0 .* such as 0\.5"),
        (small_mask_rcnn, "rcnn.nms", None, r"rcnn\.nms is missing: set it, such as nms=dict"),
        (small_mask_rcnn, "rpn", None, r"test_cfg\.rpn\.nms is missing"),
    ],
)
def test_unlimited_test_cfg_is_named(config, where, value, message):
    cfg = config()
    cfg.merge_from_dict({f"model.test_cfg.{where}": value})
    with pytest.raises(ValueError, match=message) as raised:
        check_detector(cfg)
    assert "\n" not in str(raised.value)
    cfg.model.test_cfg = None
    with pytest.raises(ValueError, match=r"model\.test_cfg[a-z.]*\.nms is missing"):
        check_detector(cfg)


def test_impossible_evaluation_is_rejected_before_the_export(shapes):
    cfg = small_mask_rcnn()
    with pytest.raises(FileNotFoundError, match=r"^D311 .* no/such"):
        cfg.test_dataloader.dataset.data_root = "no/such"
        check_evaluation(cfg, "model", 1)
    cfg.test_dataloader.dataset.data_root = str(shapes)
    for part, count, message in [("backbone", 1, "has no score"), ("model", 0, "--evaluate 0: at least one image")]:
        with pytest.raises(ValueError, match=message):
            check_evaluation(cfg, part, count)
    cfg.test_evaluator = None
    with pytest.raises(ValueError, match="no test_evaluator"):
        check_evaluation(cfg, "model", 1)
