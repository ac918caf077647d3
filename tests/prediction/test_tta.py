"""Test-time augmentation: one view equals plain testing, views agree with each other, --tta works on every config."""

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
from batch_runs import read_records
from demo_runs import SCORES, cfg_options
from detections import assert_equal_detections
from devices import on_each_device
from mmcv.transforms import Compose
from mmdet.models.roi_heads import StandardRoIHead
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import bbox_flip
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner.checkpoint import load_state_dict
from paths import CONFIGS
from pycocotools.mask import decode

from xcit_mm import StrictLoadHook
from xcit_mm.deployment.comparison import to_detections
from xcit_mm.deployment.runtime import Detections
from xcit_mm.models.build import model_from_config
from xcit_mm.prediction.predictor import Predictor
from xcit_mm.prediction.tta import MaskTTAModel
from xcit_mm.utils.configs import raster_bands, read_config

DEMO = CONFIGS / "demo"
# A leaf per recipe. Other leaves differ in the backbone alone.
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
    """Build an untrained model of a demo config, which predicts many boxes of all classes."""
    cfg = Config.fromfile(DEMO / f"{name}.py")
    cfg.merge_from_dict(changes)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    return MODELS.build(cfg.model).eval()


def build_tiny(**changes: object) -> torch.nn.Module:
    """Build the demo's detector with fewer channels."""
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


def view(images: list[np.ndarray], scale: tuple[int, int], flip: bool) -> dict:
    """Preprocess a view of some images in a scale, flipped or not."""
    init_default_scope("mmdet")
    steps = [dict(type="LoadImageFromNDArray"), dict(type="Resize", scale=scale, keep_ratio=True)]
    steps += [dict(type="RandomFlip", prob=float(flip)), dict(type="PackDetInputs")]
    pipeline = Compose(steps)
    return pseudo_collate([pipeline(dict(img=image)) for image in images])


def predict(model: torch.nn.Module, images: list[np.ndarray], *views: tuple) -> list[DetDataSample]:
    """Predict with a TTA model, or with a detector in one view."""
    batches = [view(images, *options) for options in views]
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
    assert len(wanted) > 10 and wanted.masks.any()
    assert found.masks.shape == (len(found), *sample.ori_shape) and found.masks.dtype == torch.bool
    assert_equal_detections([(to_detections(found), to_detections(wanted))], len(wanted))


@on_each_device
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("scale", [(96, 96), (150, 130)])
def test_one_view_equals_plain_testing(detector, image, scale, flip, device):
    image, detector = image[:80], copy.deepcopy(detector).to(device)
    plain = predict(detector, [image], (scale, flip))[0]
    single = predict(MaskTTAModel(detector), [image], (scale, flip))[0]
    assert_same(single, mirrored(plain) if flip else plain)
    assert set(single.pred_instances.keys()) == set(plain.pred_instances.keys())


def test_one_view_of_a_cascade_equals_plain_testing(image, tmp_path):
    (tmp_path / "cascade.py").write_text(
        "_base_ = 'mmdet::_base_/models/cascade-mask-rcnn_r50_fpn.py'\n"
        "arch = dict(embed_dim=32, depth=4, num_heads=4, eta=1.0)\n"
        "model = dict(backbone=dict(_delete_=True, type='XCiT', arch=arch, patch_size=16, out_indices=(0, 1, 2, 3)),\n"
        "             neck=dict(in_channels=[32] * 4),\n"
        "             test_cfg=dict(rpn=dict(max_per_img=50), rcnn=dict(score_thr=0.0, max_per_img=20)))"
    )
    init_default_scope("mmdet")
    torch.manual_seed(0)
    cascade = MODELS.build(Config.fromfile(tmp_path / "cascade.py").model).eval()
    options = ((96, 96), False)
    assert_same(predict(MaskTTAModel(cascade), [image], options)[0], predict(cascade, [image], options)[0])


def test_the_mirror_image_gives_the_mirrored_result(detector, image):
    model = MaskTTAModel(detector)
    views = [((96, 96), False), ((96, 96), True), ((128, 128), False), ((128, 128), True)]
    assert_same(predict(model, [image[:, ::-1]], *views)[0], mirrored(predict(model, [image], *views)[0]))


def test_a_repeated_view_changes_nothing(detector, image):
    options = ((96, 96), False)
    model = MaskTTAModel(detector)
    assert_same(predict(model, [image], options, options)[0], predict(model, [image], options)[0])


@pytest.mark.parametrize("second, drawn", [(0.3, True), (0.0, False)])
def test_masks_are_thresholded_means_of_the_unflipped_views(detector, image, second, drawn):
    """The left half of every object has probability 0.8 in a view and `second` in a flipped view."""
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


def test_results_do_not_depend_on_the_other_images_of_a_batch(detector, image):
    model = MaskTTAModel(detector)
    images = [image, image[::-1]]
    views = [((96, 96), False), ((96, 96), True), ((128, 128), False)]
    for sample, single in zip(predict(model, images, *views), images, strict=True):
        assert_same(sample, predict(model, [single], *views)[0])


def test_without_objects_masks_are_empty(image):
    model = MaskTTAModel(build_tiny(**{"test_cfg.rcnn.score_thr": 1.1}))
    found = predict(model, [image], ((96, 96), False), ((96, 96), True))[0].pred_instances
    assert len(found) == 0
    assert found.masks.shape == (0, 96, 96)


def test_boxes_are_the_same_without_a_mask_head(detector, image):
    boxes_only = build_tiny(**{"type": "FasterRCNN", "roi_head.mask_head": None})
    load_state_dict(boxes_only, detector.state_dict())
    views = [((96, 96), False), ((128, 128), True)]
    found = predict(MaskTTAModel(boxes_only), [image], *views)[0].pred_instances
    wanted = predict(MaskTTAModel(detector), [image], *views)[0].pred_instances
    assert "masks" not in found
    assert_equal_detections([(to_detections(found), to_detections(wanted)._replace(masks=None))], len(wanted))


def test_missing_flips_and_unsupported_heads_raise(detector, image):
    model = MaskTTAModel(detector)
    batch = view([image], (96, 96), False)
    del batch["data_samples"][0].flip
    with pytest.raises(ValueError, match="the views lack flip: TestTimeAug needs"):
        model.test_step({key: [value] for key, value in batch.items()})

    class PointHead(StandardRoIHead):
        def predict_mask(self, *args, **kwargs):
            """Predicts masks in another way."""

    other = build_tiny()
    other.roi_head.__class__ = PointHead
    with pytest.raises(ValueError, match="MaskRCNN predicts masks by PointHead"):
        MaskTTAModel(other)


@pytest.mark.parametrize("name", SCORES)
def test_weights_load_strictly_through_the_wrapper(name):
    model = build(name)
    cfg = Config.fromfile(DEMO / f"{name}.py")
    wrapped = MODELS.build(dict(**cfg.tta_model, module=model))
    state = {key: value + 1 for key, value in model.state_dict().items()}
    runner, checkpoint = SimpleNamespace(model=wrapped, _train_loop=None, _resume=False), dict(state_dict=dict(state))
    StrictLoadHook().after_load_checkpoint(runner, checkpoint)
    load_state_dict(wrapped, checkpoint["state_dict"])
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    del state["neck.fpn_convs.0.conv.weight"]
    with pytest.raises(ValueError, match=r"neck\.fpn_convs\.0\.conv\.weight"):
        StrictLoadHook().after_load_checkpoint(runner, dict(state_dict=state))


@pytest.mark.parametrize("config", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_has_flipped_views_of_the_right_sizes(config, shapes, tmp_path):
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    with torch.device("meta"):
        MODELS.build(dict(**cfg.tta_model, module=cfg.model))
    image = shapes / "images" / "validation" / "00000.jpg"
    if raster_bands(cfg):
        rasterio = pytest.importorskip("rasterio")
        image = tmp_path / "four.tif"
        with rasterio.open(image, "w", "GTiff", 96, 96, 4, transform=rasterio.Affine.scale(2), dtype="uint8") as file:
            file.write(np.zeros((4, 96, 96), np.uint8))
    record = dict(
        img_path=str(image),
        img_id=0,
        instances=[],
        seg_map_path=str(shapes / "annotations" / "validation" / "00000.png"),
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
    """Run tools/test.py --tta on the validation images."""
    name = next(name for name in SCORES if name.startswith("mask") == (out.suffix == ".pkl"))
    run = tool("test", *model, "--tta", "--work-dir", "work", "--out", out, *cfg_options(name, shapes, 1))
    assert run.returncode == 0, run.stderr[-2000:]
    assert "Cannot find" not in run.stdout + run.stderr
    assert SCORES[name] in json.loads(next((tool.cwd / "work").glob("2*/2*.json")).read_text())


@pytest.mark.slow
def test_command_merges_boxes_and_masks_of_both_views(models, shapes, tool, tmp_path):
    run_tta(tool, models["det"], shapes, tmp_path / "out.pkl")
    detector = model_from_config(read_config(models["det"][0], []), models["det"][1])
    results = mmengine.load(tmp_path / "out.pkl")
    assert len({result["img_path"] for result in results}) == 4
    for result in results[::3]:
        pixels = cv2.imread(result["img_path"])
        views = ((160, 160), False), ((160, 160), True)
        both = predict(MaskTTAModel(detector), [pixels], *views)[0].pred_instances
        single = predict(detector, [pixels], views[0])[0].pred_instances
        found = result["pred_instances"]
        masks = decode(found["masks"]).transpose(2, 0, 1).astype(bool)
        stored = Detections(*(found[name].numpy() for name in ("bboxes", "scores", "labels")), masks)
        assert_equal_detections([(stored, to_detections(both))], 20)
        assert masks.any() and not torch.allclose(found["bboxes"], single.bboxes, atol=1)


@pytest.mark.slow
def test_command_averages_segmentation_maps_of_both_views(models, shapes, tool, tmp_path):
    run_tta(tool, models["seg"], shapes, tmp_path / "out")
    segmentor = Predictor(*models["seg"])
    paths = sorted((shapes / "images" / "validation").iterdir())
    for path in paths:
        pixels = cv2.imread(str(path))
        single = segmentor.predict_sample(pixels).seg_logits.data.softmax(dim=0)
        flipped = segmentor.predict_sample(pixels[:, ::-1].copy()).seg_logits.data.softmax(dim=0).flip(2)
        # 0 is no class, as in ADE's files.
        found = torch.from_numpy(cv2.imread(str(tmp_path / "out" / f"{path.stem}.png"), -1)) - 1
        assert (found == (single + flipped).argmax(dim=0)).float().mean() > 0.999
        assert (found == single.argmax(dim=0)).float().mean() < 0.999
    assert len(paths) == 4


@pytest.mark.parametrize("kind", ["det", "seg"])
def test_infer_predicts_the_views_of_tools_test(kind, models, shapes, call, tmp_path):
    """The views are the image and its mirror image. Images of two sizes are predicted in batches of equal views."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number, path in enumerate(sorted((shapes / "images" / "validation").iterdir())):
        cv2.imwrite(str(folder / f"{number}.png"), cv2.imread(str(path))[: 96 - 16 * (number % 2)])
    options = ("--tta", "--batch-size", 2, "--no-visualizations", "--out", tmp_path / "out")
    code, _, errors = call("infer", folder, *models[kind], *options)
    assert code == 0, errors
    records = read_records(tmp_path / "out")
    assert len(records) == 4
    for record in records:
        pixels = cv2.imread(record.path)
        if kind == "det":
            model = MaskTTAModel(model_from_config(read_config(models["det"][0], []), models["det"][1]))
            both = predict(model, [pixels], ((160, 160), False), ((160, 160), True))[0].pred_instances
            assert np.allclose(record.boxes, both.bboxes, atol=1e-2) and np.allclose(record.scores, both.scores)
        else:
            segmentor = Predictor(*models["seg"])
            single, flipped = (
                segmentor.predict_sample(array.copy()).seg_logits.data.softmax(0) for array in (pixels, pixels[:, ::-1])
            )
            found = cv2.imread(str(tmp_path / "out" / "labels" / f"{Path(record.path).stem}.png"), -1)
            assert (found == (single + flipped.flip(2)).argmax(0).numpy()).mean() > 0.999
            assert (found == single.argmax(0).numpy()).mean() < 0.999


def test_import_registers_the_model_without_importing_mmdet():
    code = "import sys, xcit_mm; from mmengine.registry import MODELS; "
    code += "assert MODELS.get('MaskTTAModel') and not {'mmdet', 'mmseg', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=CONFIGS.parent)
