"""Exported detectors detect what mmdet's own predict detects."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from golden import fill
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from paths import ROOT
from torch import Tensor

from xcit_mm.deployment import agreement, detectors, evaluation, export
from xcit_mm.deployment.boxes import decode
from xcit_mm.deployment.detectors import Detections
from xcit_mm.deployment.supported import check_detector
from xcit_mm.models.build import model_from_config

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


def cascade_mask_rcnn(agnostic: bool = True) -> Config:
    cfg = Config.fromfile(f"{COCO.format('cascade_rcnn', 'cascade-mask-rcnn')}amp-ms-crop-3x_coco.py")
    stages = [dict(head, **NARROW, reg_class_agnostic=agnostic) for head in cfg.model.roi_head.bbox_head]
    roi_head = TWO_STAGES["roi_head"] | dict(bbox_head=stages, mask_head=MASKS)
    cfg.merge_from_dict(dict(model=deepcopy(TWO_STAGES | dict(roi_head=roi_head))))
    return cfg


def cascade_of_boxes_for_each_class() -> Config:
    return cascade_mask_rcnn(agnostic=False)


def retinanet() -> Config:
    cfg = Config.fromfile(f"{COCO.format('retinanet', 'retinanet')}1x_coco.py")
    cfg.merge_from_dict(dict(model=deepcopy(RETINANET)))
    return cfg


def built(cfg: Config) -> Any:
    """The model of a config with parameters under which scores spread and boxes move."""
    init_default_scope("mmdet")
    cfg.model.backbone.pop("init_cfg", None)
    return fill(MODELS.build(cfg.model))


def in_torch(model: Detections) -> Callable:
    """As a file would be run, but in torch."""

    def read(score_threshold: float | None = None) -> Callable:
        def run(image: Tensor) -> list[Tensor]:
            model.score_threshold[:] = model.cfg.score_thr if score_threshold is None else score_threshold
            with torch.no_grad():
                return list(model(image))

        return run

    return read


@pytest.mark.parametrize(
    "config",
    [
        small_mask_rcnn,
        faster_rcnn_of_class_agnostic_boxes,
        class_agnostic_masks_of_large_boxes,
        cascade_mask_rcnn,
        cascade_of_boxes_for_each_class,
        retinanet,
    ],
)
def test_what_is_traced_detects_what_mmdet_detects(config):
    cfg = config()
    check_detector(cfg)
    model = Detections(built(cfg))
    found = agreement.compare_with_mmdet(model, in_torch(model), 3)
    found.check()
    assert (found.lonely, found.different_pixels) == (0, 0)
    assert found.detections > 2 * 2 * model.cfg.max_per_img * 0.9
    assert found.boxes < 1e-5 and found.scores < 1e-5
    assert (found.pixels > 0) == ("masks" in model.outputs) == model.model.with_mask


def test_in_the_picture_s_own_pixels_as_mmdet_rescales():
    model = Detections(built(small_mask_rcnn()))
    image = agreement.made_picture(3, 120, 150, torch.Generator().manual_seed(1))
    meta = dict(img_shape=(120, 150), ori_shape=(240, 450), scale_factor=(1 / 3, 0.5))
    with torch.no_grad():
        found = agreement.to_instances(list(model(image)), meta, 0.5)
        (sample,) = model.model.predict(model.padded(image), [DetDataSample(metainfo=meta)], rescale=True)
    assert found.masks.shape == (len(found), 240, 450) and len(found) > 20
    compared = agreement.Agreement()
    compared.add(found, sample.pred_instances, (240, 450), 0.05)
    assert (compared.lonely, compared.different_pixels) == (0, 0) and compared.pixels > 1000


def test_boxes_end_with_the_picture_though_masks_were_made_for_the_whole_box():
    meta = dict(ori_shape=(60, 50), scale_factor=(1.0, 1.0))
    grid = torch.zeros(1, 28, 28)
    grid[:, :14, :14] = 1.0
    outputs = [torch.tensor([[10.0, 20, 90, 100]]), torch.ones(1), torch.zeros(1, dtype=torch.long), grid]
    found = agreement.to_instances(outputs, meta, 0.5)
    assert found.bboxes.tolist() == [[10, 20, 50, 60]]
    assert found.masks[0, 21:59, 11:49].all() and not found.masks[0, :20].any() and not found.masks[0, :, :10].any()


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Callable[[Config], tuple[Any, Path]]:
    """Exports the model of a config; returns the model and the file."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)

    def write(cfg: Config) -> tuple[Any, Path]:
        folder = tmp_path_factory.mktemp("model")
        model = built(cfg)
        cfg.dump(folder / "config.py")
        torch.save(dict(state_dict=model.state_dict()), folder / "model.pth")
        out = folder / "out" / "model.onnx"
        out.parent.mkdir()
        export.export_model(str(folder / "config.py"), str(folder / "model.pth"), out)
        return model, out

    return write


def test_mask_rcnn_in_one_file_of_standard_operators(mask_rcnn, mask_rcnn_file):
    model = model_from_config(Config.fromfile(mask_rcnn.config), mask_rcnn.checkpoint)
    check_file(model, mask_rcnn_file, {"RoiAlign", "NonMaxSuppression", "ConvTranspose"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "config, slow_kinds",
    [(cascade_mask_rcnn, {"RoiAlign", "NonMaxSuppression"}), (retinanet, {"TopK", "NonMaxSuppression"})],
)
def test_other_detectors_in_one_file_of_standard_operators(config, slow_kinds, exported):
    check_file(*exported(config()), slow_kinds)


def check_file(model: Any, path: Path, slow_kinds: set[str]) -> None:
    import onnx
    from onnxruntime import InferenceSession

    assert list(path.parent.iterdir()) == [path]
    file = onnx.load(path)
    onnx.checker.check_model(file, full_check=True)
    assert [(one.domain, one.version) for one in file.opset_import] == [("", 18)] and not file.functions
    kinds = {node.op_type for node in file.graph.node}
    assert slow_kinds <= kinds and not kinds & {"If", "Loop", "Scan", "Einsum"}
    dims = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in [*file.graph.input, *file.graph.output]
    }
    masks = dict(masks=["detections", 28, 28]) if model.with_mask else {}
    assert dims == dict(
        image=[1, 3, "height", "width"], boxes=["detections", 4], scores=["detections"], labels=["detections"], **masks
    )
    told = {one.key: one.value for one in file.metadata_props}
    assert told["task"] == ("instance segmentation" if masks else "object detection")
    assert json.loads(told["test_cfg"])["rcnn" if masks else "nms"]

    session = InferenceSession(path)
    for height, width in [(97, 64), (210, 311), (33, 47)]:
        image = agreement.made_picture(3, height, width, torch.Generator().manual_seed(2))
        outputs = [torch.from_numpy(one) for one in session.run(None, {"image": image.numpy()})]
        meta = dict(img_shape=(height, width), ori_shape=(height, width), scale_factor=(1.0, 1.0))
        with torch.no_grad():
            (sample,) = model.predict(Detections(model).padded(image), [DetDataSample(metainfo=meta)], rescale=False)
        found, compared = agreement.to_instances(outputs, meta, 0.5), agreement.Agreement()
        compared.add(found, sample.pred_instances, (height, width), 0.05)
        compared.check()
        assert compared.lonely == 0 and compared.detections > 20


@pytest.mark.slow
def test_no_proposal_at_all_gives_no_detection(exported):
    with pytest.raises(RuntimeError, match="detects nothing in generated pictures, whatever its score: not written"):
        exported(small_mask_rcnn(test_cfg=dict(rpn=dict(min_bbox_size=10_000))))


def detected(count: int = 50) -> InstanceData:
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(count, 2, generator=generator) * 60
    return InstanceData(
        bboxes=torch.cat([corner, corner + 20], 1),
        scores=torch.linspace(0.9, 0.1, count),
        labels=torch.arange(count) % 4,
        masks=torch.rand(count, 80, 80, generator=generator) > 0.5,
    )


@pytest.mark.parametrize(
    "chosen, field, change, message",
    [
        (slice(None), None, None, None),
        (torch.arange(50).flip(0), None, None, None),
        (slice(49), None, None, None),  # the last is at the cut
        (slice(1, None), None, None, None),  # one in fifty may be a near tie
        (slice(5, None), None, None, "5 of 95 detections"),
        (slice(0), None, None, "49 of 49 detections"),
        (slice(None), "bboxes", lambda boxes: boxes + 0.1, "98 of 98 detections"),
        (slice(None), "scores", lambda scores: scores + 0.01, "99 of 99 detections"),
        (slice(None), "labels", lambda labels: labels.roll(1), "98 of 98 detections"),
        (slice(None), "masks", lambda masks: masks.roll(1, 2), r"differ from torch's in 6\d\.\d% of pixels"),
    ],
)
def test_what_counts_as_agreement(chosen, field, change, message):
    found, compared = detected()[chosen], agreement.Agreement()
    if field:
        found[field] = change(found[field])
    compared.add(found, detected(), (80, 80), cut=0.1)
    if message is None:
        compared.check()
    else:
        with pytest.raises(RuntimeError, match=message):
            compared.check()


@pytest.mark.slow
def test_a_file_that_detects_otherwise_is_not_written(exported, monkeypatch):
    monkeypatch.setattr(detectors, "decode", lambda *args: decode(*args) * 1.01)
    with pytest.raises(RuntimeError, match="detections of the exported model and torch have no counterpart"):
        exported(faster_rcnn_of_class_agnostic_boxes())


def test_scores_of_a_file_are_those_of_the_images_it_has_seen(shapes):
    cfg = small_mask_rcnn()
    dataset = cfg.test_dataloader.dataset
    dataset.data_root = str(shapes)
    cfg.test_evaluator.ann_file = f"{shapes}/annotations/instances_validation.json"
    for step in dataset.pipeline:
        if step.type == "Resize":
            step.scale = (150, 150)  # which mmdet pads to 160
    evaluation.check_evaluation(cfg, "model", 2)
    model = built(cfg)
    seen: list[tuple[int, ...]] = []
    truth = iter(ground_truth(Path(cfg.test_evaluator.ann_file)))

    def oracle(image: Tensor) -> list[Tensor]:
        seen.append(tuple(image.shape))
        boxes, labels = next(truth)
        grid = torch.ones(len(boxes), 28, 28)
        return [boxes * 150 / 96, torch.ones(len(boxes)), labels, grid]

    count, scores = evaluation.evaluate_files(cfg, model, [oracle], 2)
    assert count == 2
    assert seen == [(1, 3, 150, 150)] * 2
    of_torch, of_file = scores["coco/bbox_mAP"]
    assert of_file > 0.99 > 0.5 > of_torch
    model_file = in_torch(Detections(model))()
    for of_torch, of_file in evaluation.evaluate_files(cfg, model, [model_file], 3)[1].values():
        assert of_torch == pytest.approx(of_file, abs=1e-3)


def ground_truth(path: Path) -> list[tuple[Tensor, Tensor]]:
    """Boxes and labels of each image of a COCO json."""
    content = json.loads(path.read_text())
    found = []
    for image in content["images"]:
        own = [one for one in content["annotations"] if one["image_id"] == image["id"]]
        boxes = torch.tensor([one["bbox"] for one in own], dtype=torch.float)
        boxes[:, 2:] += boxes[:, :2]
        found.append((boxes, torch.tensor([one["category_id"] for one in own]) - content["categories"][0]["id"]))
    return found


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(type="MaskScoringRCNN"), r"model\.type='MaskScoringRCNN'"),
        (
            dict(rpn_head=dict(type="GARPNHead")),
            r"model\.rpn_head\.type='GARPNHead' cannot be exported: one of RPNHead",
        ),
        (dict(roi_head=dict(type="PointRendRoIHead")), "PointRendRoIHead"),
        (dict(roi_head=dict(bbox_head=dict(type="DoubleConvFCBBoxHead"))), "DoubleConvFCBBoxHead"),
        (dict(roi_head=dict(bbox_head=dict(loss_cls=dict(type="SeesawLoss")))), "SeesawLoss"),
        (dict(roi_head=dict(mask_head=dict(type="CoarseMaskHead"))), "CoarseMaskHead"),
        (dict(roi_head=dict(mask_roi_extractor=dict(type="GenericRoIExtractor"))), "GenericRoIExtractor"),
        (dict(roi_head=dict(bbox_roi_extractor=dict(roi_layer=dict(type="RoIPool")))), "RoIPool"),
        (dict(roi_head=dict(bbox_roi_extractor=dict(roi_layer=dict(aligned=False)))), "aligned=False"),
        (dict(roi_head=dict(shared_head=dict(type="ResLayer"))), r"shared_head\.type='ResLayer' .*leave it out"),
        (dict(rpn_head=dict(loss_cls=dict(use_sigmoid=False))), r"rpn_head\.loss_cls\.use_sigmoid=False"),
        (dict(test_cfg=dict(rcnn=dict(nms=dict(type="soft_nms")))), r"test_cfg\.rcnn\.nms\.type='soft_nms'"),
        (dict(test_cfg=dict(rcnn=dict(nms=dict(class_agnostic=True)))), r"nms\.class_agnostic=True"),
    ],
)
def test_what_is_not_known_is_refused_by_name(options, message):
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
    ],
)
def test_what_test_cfg_leaves_open_is_refused_by_name(config, where, value, message):
    cfg = config()
    cfg.merge_from_dict({f"model.test_cfg.{where}": value})
    with pytest.raises(ValueError, match=message) as raised:
        check_detector(cfg)
    assert "\n" not in str(raised.value)


def test_nothing_to_evaluate_is_told_before_the_work(shapes):
    cfg = small_mask_rcnn()
    with pytest.raises(FileNotFoundError, match=r"^D311 .* no/such"):
        cfg.test_dataloader.dataset.data_root = "no/such"
        evaluation.check_evaluation(cfg, "model", 1)
    cfg.test_dataloader.dataset.data_root = str(shapes)
    for part, count, message in [("backbone", 1, "has no score"), ("model", 0, "--evaluate 0: at least one image")]:
        with pytest.raises(ValueError, match=message):
            evaluation.check_evaluation(cfg, part, count)
    cfg.test_evaluator = None
    with pytest.raises(ValueError, match="no test_evaluator"):
        evaluation.check_evaluation(cfg, "model", 1)
