"""Test-time augmentation: one view is plain testing, several agree with each other, --tta works on every config."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import cv2
import mmengine
import numpy as np
import pytest
import torch
from demo_runs import SCORES, cfg_options
from devices import on_each_device
from mmcv.transforms import Compose
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_flip, bbox_overlaps
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner.checkpoint import load_state_dict
from paths import CONFIGS
from pycocotools.mask import decode

from xcit_mm import StrictLoadHook
from xcit_mm.models.build import model_from_config
from xcit_mm.prediction.predictor import Predictor
from xcit_mm.prediction.tta import MaskTTAModel
from xcit_mm.utils.configs import raster_bands, read_config

DEMO = CONFIGS / "demo"
# One of each recipe: the other leaves differ in the backbone alone.
RECIPES = [*sorted(CONFIGS.glob("*/*t12-p16*.py")), *sorted(DEMO.glob("*p16_*.py"))]

TINY = {
    "backbone.arch": dict(_delete_=True, embed_dim=32, depth=4, num_heads=4, eta=1.0),
    "backbone.out_indices": (0, 1, 2, 3),
    "neck": dict(in_channels=[32] * 4, out_channels=32),
    "rpn_head": dict(in_channels=32, feat_channels=32),
    "roi_head.bbox_roi_extractor.out_channels": 32,
    "roi_head.bbox_head": dict(in_channels=32, fc_out_channels=64),
    "roi_head.mask_roi_extractor.out_channels": 32,
    "roi_head.mask_head": dict(in_channels=32, conv_out_channels=32, num_convs=1),
    "test_cfg.rcnn.max_per_img": 50,
}


def build(name: str = "mask-rcnn_xcit-n12-p16_shapes", **changes: object) -> torch.nn.Module:
    """An untrained model of a demo config, which finds many boxes of all classes."""
    cfg = Config.fromfile(DEMO / f"{name}.py")
    cfg.merge_from_dict(changes)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    return MODELS.build(cfg.model).eval()


def build_tiny(**changes: object) -> torch.nn.Module:
    """The detector of the demo, narrower."""
    return build(**{f"model.{name}": value for name, value in (TINY | changes).items()})


@pytest.fixture(scope="module")
def detector() -> torch.nn.Module:
    return build_tiny()


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def image(shapes) -> np.ndarray:
    """(96, 96, 3) uint8."""
    return cv2.imread(str(shapes / "images" / "validation" / "00000.jpg"))


def pipeline(*views: tuple[tuple[int, int], bool]) -> list[Compose]:
    """Views of a given scale, flipped or not."""
    init_default_scope("mmdet")
    return [
        Compose(
            [
                dict(type="LoadImageFromNDArray"),
                dict(type="Resize", scale=scale, keep_ratio=True),
                dict(type="RandomFlip", prob=float(flip)),
                dict(type="PackDetInputs"),
            ]
        )
        for scale, flip in views
    ]


def predict(model: torch.nn.Module, images: list[np.ndarray], *views: tuple) -> list[DetDataSample]:
    """Predictions of a TTA model, or of a detector in one view."""
    batches = [pseudo_collate([view(dict(img=image)) for image in images]) for view in pipeline(*views)]
    if isinstance(model, MaskTTAModel):
        return model.test_step({key: [batch[key] for batch in batches] for key in batches[0]})
    return model.test_step(batches[0])


def mirrored(sample: DetDataSample) -> DetDataSample:
    instances = sample.pred_instances.clone()
    instances.bboxes = bbox_flip(instances.bboxes, sample.ori_shape)
    instances.masks = instances.masks.flip(-1)
    return DetDataSample(pred_instances=instances, metainfo=sample.metainfo)


def assert_same(sample: DetDataSample, expected: DetDataSample) -> None:
    found, wanted = sample.pred_instances, expected.pred_instances
    assert len(found) == len(wanted) > 10
    torch.testing.assert_close(found.bboxes, wanted.bboxes, atol=1e-3, rtol=0)
    torch.testing.assert_close(found.scores, wanted.scores)
    assert torch.equal(found.labels, wanted.labels)
    assert found.masks.shape == wanted.masks.shape == (len(found), *sample.ori_shape)
    assert found.masks.dtype == torch.bool
    assert wanted.masks.any()
    assert (found.masks != wanted.masks).sum() < 1e-4 * wanted.masks.numel()


@on_each_device
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("scale", [(96, 96), (150, 130)])
def test_one_view_is_plain_testing(detector, image, scale, flip, device):
    image, detector = image[:80], copy.deepcopy(detector).to(device)
    plain = predict(detector, [image], (scale, flip))[0]
    view = predict(MaskTTAModel(detector), [image], (scale, flip))[0]
    assert_same(view, mirrored(plain) if flip else plain)
    assert set(view.pred_instances.keys()) == set(plain.pred_instances.keys())


def test_a_cascade_s_one_view_is_plain_testing(image, tmp_path):
    (tmp_path / "cascade.py").write_text(
        "_base_ = 'mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py'\n"
        "model = dict(backbone=dict(_delete_=True, type='XCiT', arch='n12', patch_size=16),\n"
        "             neck=dict(in_channels=[128] * 4),\n"
        "             test_cfg=dict(rpn=dict(max_per_img=50), rcnn=dict(score_thr=0.0, max_per_img=20)))"
    )
    init_default_scope("mmdet")
    torch.manual_seed(0)
    cascade = MODELS.build(Config.fromfile(tmp_path / "cascade.py").model).eval()
    view = ((96, 96), False)
    assert_same(predict(MaskTTAModel(cascade), [image], view)[0], predict(cascade, [image], view)[0])


def test_the_mirror_image_gives_the_mirrored_result(detector, image):
    model = MaskTTAModel(detector)
    views = [((96, 96), False), ((96, 96), True), ((128, 128), False), ((128, 128), True)]
    assert_same(predict(model, [image[:, ::-1]], *views)[0], mirrored(predict(model, [image], *views)[0]))


def test_a_symmetric_image_gives_a_symmetric_result(detector, image):
    symmetric = np.concatenate([image, image[:, ::-1]], axis=1)
    model = MaskTTAModel(detector, tta_cfg=dict(nms=dict(type="nms", iou_threshold=0.5), max_per_img=1000))
    sample = predict(model, [symmetric], ((192, 96), False), ((192, 96), True))[0]
    found, other = sample.pred_instances, mirrored(sample).pred_instances
    overlaps = bbox_overlaps(found.bboxes, other.bboxes)
    overlaps[found.labels[:, None] != other.labels] = 0
    best, partner = overlaps.max(dim=1)
    # Of a box across the axis and its mirror image NMS keeps one, which may suppress others.
    exact = best > 0.999
    assert exact.sum() > 20
    torch.testing.assert_close(found.scores[exact], other.scores[partner[exact]])
    assert (found.masks[exact] != other.masks[partner[exact]]).sum() < 1e-4 * found.masks[exact].numel()


def test_a_view_seen_twice_changes_nothing(detector, image):
    view = ((96, 96), False)
    model = MaskTTAModel(detector)
    assert_same(predict(model, [image], view, view)[0], predict(model, [image], view)[0])


@pytest.mark.parametrize("second, drawn", [(0.3, True), (0.0, False)])
def test_masks_are_the_mean_of_the_unflipped_views(detector, image, second, drawn):
    """The left half of every object has probability 0.8 in one view and `second` in a flipped one."""
    model = MaskTTAModel(detector)
    calls = iter([(slice(None, 14), 0.8), (slice(14, None), second)])

    def answer(module, inputs, output):
        side, probability = next(calls)
        masks = torch.zeros_like(output)
        masks[..., side] = probability
        return masks.logit()

    hook = detector.roi_head.mask_head.register_forward_hook(answer)
    sample = predict(model, [image], ((96, 96), False), ((96, 96), True))[0]
    hook.remove()
    found = sample.pred_instances
    sides = found.bboxes[:, 2:] - found.bboxes[:, :2]
    found = found[sides.min(dim=1).values >= 12]
    assert len(found) > 10
    for (x1, y1, x2, y2), mask in zip(found.bboxes, found.masks, strict=True):
        middle = (x1 + x2) / 2
        columns = torch.arange(mask.shape[1])
        rows = slice(int(y1) + 2, int(y2) - 2)
        assert mask[rows][:, (columns > x1 + 2) & (columns < middle - 2)].all() == drawn
        assert not mask[:, columns > middle + 2].any()


def test_images_of_a_batch_are_independent(detector, image):
    model = MaskTTAModel(detector)
    images = [image, image[::-1]]
    views = [((96, 96), False), ((96, 96), True), ((128, 128), False)]
    for together, alone in zip(predict(model, images, *views), images, strict=True):
        assert_same(together, predict(model, [alone], *views)[0])


def test_nothing_found_has_no_masks(image):
    model = MaskTTAModel(build_tiny(**{"test_cfg.rcnn.score_thr": 1.1}))
    found = predict(model, [image], ((96, 96), False), ((96, 96), True))[0].pred_instances
    assert len(found) == 0
    assert found.masks.shape == (0, 96, 96)


def test_without_a_mask_head_boxes_are_the_same(detector, image):
    boxes_only = build_tiny(**{"type": "FasterRCNN", "roi_head.mask_head": None})
    load_state_dict(boxes_only, detector.state_dict())
    views = [((96, 96), False), ((128, 128), True)]
    found = predict(MaskTTAModel(boxes_only), [image], *views)[0].pred_instances
    wanted = predict(MaskTTAModel(detector), [image], *views)[0].pred_instances
    assert "masks" not in found
    torch.testing.assert_close(found.bboxes, wanted.bboxes, atol=1e-3, rtol=0)
    torch.testing.assert_close(found.scores, wanted.scores)


def test_errors_say_what_to_do(detector, image):
    model = MaskTTAModel(detector)
    batch = pseudo_collate([pipeline(((96, 96), False))[0](dict(img=image))])
    del batch["data_samples"][0].flip
    with pytest.raises(ValueError, match="the views lack flip: TestTimeAug needs a Resize and a RandomFlip"):
        model.test_step({key: [value] for key, value in batch.items()})

    class PointHead(StandardRoIHead):
        def predict_mask(self, *args, **kwargs):
            """Another way to draw masks."""

    other = build_tiny()
    other.roi_head.__class__ = PointHead
    with pytest.raises(ValueError, match=r"MaskRCNN predicts masks by PointHead: .* test without it"):
        MaskTTAModel(other)


@pytest.mark.parametrize("name", SCORES)
def test_weights_load_through_the_wrapper_whole_or_not_at_all(name):
    model = build(name)
    cfg = Config.fromfile(DEMO / f"{name}.py")
    wrapped = MODELS.build(dict(**cfg.tta_model, module=model))
    state = {key: value + 1 for key, value in model.state_dict().items()}
    runner, checkpoint = SimpleNamespace(model=wrapped, _train_loop=None, _resume=False), dict(state_dict=dict(state))
    StrictLoadHook().after_load_checkpoint(runner, checkpoint)
    load_state_dict(wrapped, checkpoint["state_dict"])
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    del state["neck.fpn_convs.0.conv.weight"]
    with pytest.raises(ValueError, match=r"it lacks neck.fpn_convs.0.conv.weight"):
        StrictLoadHook().after_load_checkpoint(runner, dict(state_dict=state))


@pytest.mark.parametrize("config", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_has_views(config, shapes, tmp_path):
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    with torch.device("meta"):
        MODELS.build(dict(**cfg.tta_model, module=cfg.model))
    number = "00000"
    image = shapes / "images" / "validation" / f"{number}.jpg"
    if raster_bands(cfg):
        rasterio = pytest.importorskip("rasterio")
        with rasterio.open(image) as three:
            bands = three.read([1, 2, 3, 1])
        image = tmp_path / "four.tif"
        with rasterio.open(image, "w", "GTiff", *bands.shape[:0:-1], len(bands), dtype="uint8") as file:
            file.write(bands)
    record = dict(
        img_path=str(image),
        img_id=0,
        instances=[],
        seg_map_path=str(shapes / "annotations" / "validation" / f"{number}.png"),
        reduce_zero_label=False,
        seg_fields=[],
    )
    views = Compose(cfg.tta_pipeline)(record)
    samples = views["data_samples"]
    assert [sample.flip for sample in samples] == [False, True] * (len(samples) // 2)
    assert len({sample.img_shape for sample in samples}) == len(samples) // 2
    assert (len(samples) == 2) == (config.parent == DEMO)
    assert all(
        tuple(image.shape[1:]) == sample.img_shape for image, sample in zip(views["inputs"], samples, strict=True)
    )


def run_tta(tool: Callable, model: tuple[str, str], shapes: Path, out: Path) -> None:
    """tools/test.py --tta on the validation images."""
    name = next(name for name in SCORES if name.startswith("mask") == (out.suffix == ".pkl"))
    run = tool("test", *model, "--tta", "--work-dir", "work", "--out", out, *cfg_options(name, shapes, 1))
    assert run.returncode == 0, run.stderr[-2000:]
    assert "Cannot find" not in run.stdout + run.stderr
    assert SCORES[name] in json.loads(next((tool.cwd / "work").glob("2*/2*.json")).read_text())


def test_the_tool_merges_boxes_and_masks_of_both_views(models, shapes, tool, tmp_path):
    run_tta(tool, models["det"], shapes, tmp_path / "out.pkl")
    detector = model_from_config(read_config(models["det"][0], []), models["det"][1])
    results = mmengine.load(tmp_path / "out.pkl")
    assert len({result["img_path"] for result in results}) == 4
    for result in results[::3]:
        pixels = cv2.imread(result["img_path"])
        both, one = (
            predict(model, [pixels], *views)[0].pred_instances
            for model, views in (
                (MaskTTAModel(detector), [((160, 160), False), ((160, 160), True)]),
                (detector, [((160, 160), False)]),
            )
        )
        found = result["pred_instances"]
        assert len(found["bboxes"]) == len(both) == 20
        torch.testing.assert_close(found["bboxes"], both.bboxes, atol=1e-2, rtol=0)
        torch.testing.assert_close(found["scores"], both.scores)
        assert torch.equal(found["labels"], both.labels)
        masks = torch.from_numpy(decode(found["masks"])).permute(2, 0, 1).bool()
        assert masks.any() and (masks != both.masks).sum() < 1e-3 * masks.numel()
        assert not torch.allclose(found["bboxes"], one.bboxes, atol=1)  # of one view


def test_the_tool_averages_segmentation_maps_of_both_views(models, shapes, tool, tmp_path):
    run_tta(tool, models["seg"], shapes, tmp_path / "out")
    segmentor = Predictor(*models["seg"])
    paths = sorted((shapes / "images" / "validation").iterdir())
    for path in paths:
        pixels = cv2.imread(str(path))
        one = segmentor(pixels).seg_logits.data.softmax(dim=0)
        other = segmentor(pixels[:, ::-1].copy()).seg_logits.data.softmax(dim=0).flip(2)
        # As ADE's files: 0 is no class.
        found = torch.from_numpy(cv2.imread(str(tmp_path / "out" / f"{path.stem}.png"), -1)) - 1
        assert (found == (one + other).argmax(dim=0)).float().mean() > 0.999
        assert (found == one.argmax(dim=0)).float().mean() < 0.999
    assert len(paths) == 4


def test_importing_the_package_is_enough_and_brings_no_mmdet():
    code = "import sys, xcit_mm; from mmengine.registry import MODELS; "
    code += "assert MODELS.get('MaskTTAModel') and not {'mmdet', 'mmseg', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=CONFIGS.parent)
