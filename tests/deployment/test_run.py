"""`run.py` alone returns what mmdet and mmseg predict, from photos of any kind."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import mmcv
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from detections import Comparison, Detections
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmengine.config import Config, ConfigDict
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS, init_default_scope
from paths import CONFIGS
from PIL import Image

from xcit_mm.deployment.metadata import resize_rule
from xcit_mm.prediction import Predictor
from xcit_mm.utils.configs import channel_order, data_preprocessor

onnx = pytest.importorskip("onnx")
run = pytest.importorskip("xcit_mm.deployment.run")
MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
FPN = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"
# As sitecustomize, it hides these libraries from run.py.
BLOCKER = """
import sys
class Hider:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "mmcv", "mmengine", "mmdet", "mmseg", "PIL", "xcit_mm", "pycocotools"):
            raise ModuleNotFoundError(f"{name} is hidden")
sys.meta_path.insert(0, Hider())
"""


def smooth_image(height: int, width: int) -> np.ndarray:
    grid = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return mmcv.imresize(grid, (width, height))


@pytest.fixture
def raw_detections() -> dict[str, np.ndarray]:
    """Outputs of a detector for an image of 100x150 pixels, padded to 128x160; some boxes exceed the image."""
    boxes = [[10.2, 8.7, 60.1, 70.9], [-5, -8, 30, 25], [100, 60, 170, 120], [40.5, 40.5, 41, 41], [150, 90, 158, 130]]
    grids = torch.from_numpy(np.random.default_rng(0).random((len(boxes), 1, 7, 7), dtype=np.float32))
    masks = F.interpolate(grids, (28, 28), mode="bicubic").clamp(0, 1)
    return dict(
        boxes=np.array(boxes, np.float32),
        scores=np.array([0.9, 0.8, 0.7, 0.6, 0.2], np.float32),
        labels=np.array([0, 1, 1, 0, 1]),
        masks=masks[:, 0].numpy(),
    )


@pytest.fixture
def detector(tmp_path, raw_detections) -> Callable[..., Path]:
    """Write a file with the inputs and metadata of a detector, which returns `raw_detections` for every image."""
    helper, types = onnx.helper, onnx.TensorProto

    def write(**facts: object) -> Path:
        outputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), ["n", *values.shape[1:]])
            for name, values in raw_detections.items()
        ]
        graph = helper.make_graph(
            [helper.make_node("Identity", [f"constant_{name}"], [name]) for name in raw_detections],
            "detector",
            [helper.make_tensor_value_info("image", types.FLOAT, ["batch", 3, "height", "width"])],
            outputs,
            [onnx.numpy_helper.from_array(values, f"constant_{name}") for name, values in raw_detections.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        defaults = dict(
            outputs=list(raw_detections), classes=["circle", "square"], unsupported=None, channel_order="RGB",
            mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], mask_threshold=0.5, min_side=1,
            resize=dict(scale=[160, 100], keep_ratio=True), pad_divisor=1, pad_value=0,
        )  # fmt: skip
        helper.set_model_props(model, {name: json.dumps(value) for name, value in (defaults | facts).items()})
        onnx.save(model, tmp_path / "detector.onnx")
        return tmp_path / "detector.onnx"

    return write


def test_masks_and_boxes_are_mmdet_s(raw_detections, detector):
    found = run.Model(detector())(smooth_image(300, 450))
    boxes = torch.from_numpy(raw_detections["boxes"].copy())
    masks = FCNMaskHead(num_classes=2)._predict_by_feat_single(
        torch.from_numpy(raw_detections["masks"]).logit()[:, None].repeat(1, 2, 1, 1),
        boxes,
        torch.from_numpy(raw_detections["labels"]),
        dict(scale_factor=(1 / 3, 1 / 3), ori_shape=(300, 450)),
        Config(dict(mask_thr_binary=0.5)),
        rescale=True,
    )
    assert found["masks"].shape == (5, 300, 450) and found["masks"].dtype == bool
    assert (found["masks"] != masks.numpy()).sum() <= 2 and masks.sum() > 10000  # pixels of just the threshold
    np.testing.assert_allclose(found["boxes"], boxes.numpy().clip(0, [450, 300, 450, 300]), rtol=1e-5, atol=1e-4)
    assert np.array_equal(found["scores"], raw_detections["scores"])
    assert np.array_equal(found["labels"], raw_detections["labels"])


def test_image_without_objects_stays_as_it_is(raw_detections, detector):
    for name, values in raw_detections.items():
        raw_detections[name] = values[:0]
    model, image = run.Model(detector()), smooth_image(60, 90)
    found = model(image)
    assert found["boxes"].shape == (0, 4) and found["masks"].shape == (0, 60, 90)
    assert np.array_equal(run.draw(image, found, model.classes), image)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("count, threshold", [(3, None), (300, None), (1, 0.3)])
def test_resized_maps_are_torch_s(align_corners, count, threshold, detector):
    logits = torch.randn(1, count, 13, 21, generator=torch.Generator().manual_seed(0))
    whole = F.interpolate(logits, (40, 33), mode="bilinear", align_corners=align_corners)
    expected = whole.argmax(1)[0] if count > 1 else (whole.sigmoid() > threshold)[0, 0]
    model = run.Model(detector(align_corners=align_corners, threshold=threshold))
    assert np.array_equal(model.to_classes(logits[0].numpy(), (40, 33)), expected.numpy())


@pytest.mark.parametrize(
    "path, options",
    [
        (MASK_RCNN, {}),
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.1.keep_ratio": False}),
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.1.scale": 224}),
        (FPN, {}),
        (FPN, {"model.data_preprocessor.test_cfg": dict(size_divisor=48)}),
    ],
)
def test_preprocessed_image_is_the_library_s(path, options, detector):
    cfg = Config.fromfile(path)
    cfg.merge_from_dict(options)
    init_default_scope(cfg.default_scope)
    pipeline = [step for step in cfg.test_dataloader.dataset.pipeline if "Load" not in step["type"]]
    pipeline[-1] = dict(type=pipeline[-1]["type"], meta_keys=())
    prepare, preprocessor = Compose(pipeline), MODELS.build(cfg.model.data_preprocessor)
    given = data_preprocessor(cfg)
    divisor = 1 if path == MASK_RCNN else (given.get("test_cfg") or {}).get("size_divisor", 1)
    facts = dict(mean=given.get("mean"), std=given.get("std"), channel_order=channel_order(cfg), pad_divisor=divisor)
    model = run.Model(detector(resize=resize_rule(cfg), **facts))
    # The width of the last image is resized to a number that ends in .5 before rounding.
    for height, width in [(37, 53), (480, 640), (901, 450), (1088, 1717)]:
        image = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
        data = prepare(dict(img=image, ori_shape=(height, width), img_shape=(height, width)))
        size = tuple(data["inputs"].shape[1:])
        expected = preprocessor(pseudo_collate([data]), False)["inputs"].numpy()
        if path == MASK_RCNN:  # a detector's file pads
            expected = expected[..., : size[0], : size[1]]
        found, resized = model.preprocess(image)
        assert resized == size and found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "path, place, value, named",
    [
        (MASK_RCNN, "test_dataloader.dataset.pipeline.1.type", "ResizeShortestEdge", "ResizeShortestEdge"),
        (MASK_RCNN, "test_dataloader.dataset.pipeline.1.interpolation", "bicubic", "interpolation='bicubic'"),
        (MASK_RCNN, "model.data_preprocessor.type", "ImgDataPreprocessor", "ImgDataPreprocessor"),
        (FPN, "model.data_preprocessor.test_cfg", dict(size=(512, 512)), "size=(512, 512)"),
        (FPN, "model.test_cfg", dict(mode="slide"), "test_cfg.mode='slide'"),
        (CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes-4band.py", None, None, "LoadRasterFromFile"),
    ],
)
def test_preprocessing_that_the_script_lacks_is_named(path, place, value, named, detector):
    cfg = Config.fromfile(path)
    if place:  # merging would keep options of another type of step
        *parents, last = place.split(".")
        part: Any = cfg._cfg_dict
        for parent in parents:
            part = part[int(parent)] if isinstance(part, list) else part[parent]
        part[int(last) if isinstance(part, list) else last] = ConfigDict(value) if isinstance(value, dict) else value
    with pytest.raises(ValueError) as raised:
        resize_rule(cfg)
    assert named in str(raised.value)
    with pytest.raises(ValueError, match=re.escape(named)):
        run.Model(detector(unsupported=str(raised.value)))


def test_photos_are_read_as_by_the_predictor(models, tmp_path):
    pixels, exif = smooth_image(40, 60), Image.Exif()
    exif[0x0112] = 6  # an upright camera
    Image.fromarray(pixels).save(tmp_path / "upright.jpg", exif=exif, quality=95)
    Image.fromarray(pixels).convert("CMYK").save(tmp_path / "cmyk.jpg")
    Image.fromarray(pixels).convert("P").save(tmp_path / "palette.png")
    Image.fromarray(pixels).convert("L").save(tmp_path / "grey.png")
    Image.fromarray(np.dstack([pixels, pixels[..., 0]])).save(tmp_path / "transparent.png")
    cv2.imwrite(str(tmp_path / "deep.png"), pixels.astype(np.uint16) * 257)
    predictor = Predictor(*models["seg"], device="cpu")
    for path in sorted(tmp_path.glob("*.*g")):
        image = run.read_image(path)
        assert image.shape == ((60, 40, 3) if path.stem == "upright" else (40, 60, 3))
        assert np.array_equal(image, predictor.preprocess.read(path)), path
    cv2.imwrite(str(tmp_path / "dark.png"), pixels.astype(np.uint16))
    for read in (run.read_image, predictor.preprocess.read):
        with pytest.raises(ValueError, match="few of its 16 bits"):
            read(tmp_path / "dark.png")


@pytest.fixture(scope="module")
def photos(shapes) -> list[np.ndarray]:
    """Images of several sizes."""
    paths = sorted((shapes / "images" / "validation").iterdir())
    return [*map(run.read_image, paths), smooth_image(203, 330), smooth_image(97, 64)]


def test_detections_in_photos_are_the_predictor_s(mask_rcnn, mask_rcnn_file, photos):
    model, predictor, comparison = run.Model(mask_rcnn_file), Predictor(*mask_rcnn, device="cpu"), Comparison()
    for image in photos:
        found, expected = model(image), predictor(image)
        pair = Detections(**found), Detections(expected.boxes, expected.scores, expected.labels, expected.masks)
        cut = expected.scores.min() if len(expected.scores) == 60 else 0.25  # where the limit has cut others off
        comparison.add(*pair, image.shape[:2], float(cut))
    # mmdet sorts by torch, which orders equal scores by chance. Flat areas have them.
    assert comparison.unmatched <= 0.02 * comparison.detections and comparison.detections > 50
    assert comparison.boxes < 1e-5 and comparison.different_pixels <= 1e-3 * comparison.pixels


def test_segmentation_maps_are_the_predictor_s(segmentor, segmentor_file, photos):
    model, predictor = run.Model(segmentor_file), Predictor(*segmentor, device="cpu")
    for image in photos:
        found, expected = model(image)["map"], predictor(image).segmentation
        assert found.dtype == expected.dtype and len(np.unique(found)) > 1
        assert (found != expected).mean() < 5e-4


@pytest.mark.parametrize("kind", ["detector", "segmentor"])
def test_a_copy_runs_without_torch_and_draws(kind, request, detector, tmp_path):
    model = detector() if kind == "detector" else request.getfixturevalue("segmentor_file")
    alone = tmp_path / "product"
    alone.mkdir()
    (alone / "sitecustomize.py").write_text(BLOCKER)
    shutil.copy(run.__file__, alone / "runner.py")
    cv2.imwrite(str(alone / "photo.png"), smooth_image(203, 330))
    command = [sys.executable, "runner.py", str(model), "photo.png", "--out", "drawn"]
    ended = subprocess.run(command, cwd=alone, env=dict(PYTHONPATH=str(alone)), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    local, image = run.Model(model), run.read_image(alone / "photo.png")
    found = local(image)
    if "scores" in found:
        found = {name: values[found["scores"] >= 0.3] for name, values in found.items()}
    drawn = run.read_image(alone / "drawn" / "photo.png.png")
    assert np.array_equal(drawn, run.draw(image, found, local.classes)) and not np.array_equal(drawn, image)
    assert len(ended.stdout.splitlines()) == len(run.list_found(found, local.classes)) > 1


def test_bad_input_ends_in_one_line(detector, tmp_path):
    text = tmp_path / "text.onnx"
    text.write_text("no model")
    foreign = onnx.load(detector())
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    photo = tmp_path / "photo.png"
    cv2.imwrite(str(photo), smooth_image(60, 90))
    for model, image, message in [
        (tmp_path / "none.onnx", photo, "none.onnx cannot be run"),
        (text, photo, "text.onnx cannot be run"),
        (tmp_path / "foreign.onnx", photo, "is a backbone or not of xcit-mm export"),
        (detector(), tmp_path / "none.png", "No such file"),
        (detector(), text, "text.onnx is empty, broken or not an image"),
        (detector(min_side=129), photo, "resized to 100x150, the model takes 129 or more a side"),
    ]:
        ended = subprocess.run(
            [sys.executable, run.__file__, str(model), str(image)], capture_output=True, text=True, env=dict(os.environ)
        )
        assert ended.returncode == 1 and message in ended.stderr and ended.stderr.count("\n") == 1, ended.stderr
    with pytest.raises(ValueError, match=r"give it as \(H, W, 3\)"):
        run.Model(detector())(np.zeros((5, 5), np.uint8))


def test_folder_is_predicted_though_one_image_is_broken(detector, tmp_path, monkeypatch, capsys):
    photos, drawn = tmp_path / "photos", tmp_path / "drawn"
    photos.mkdir()
    for name in ("a.png", "c.jpg"):
        cv2.imwrite(str(photos / name), smooth_image(60, 90))
    (photos / "b.png").write_text("no image")
    monkeypatch.setattr(sys, "argv", ["run.py", *map(str, (detector(), photos, "--out", drawn, "--score-thr", 0.65))])
    assert run.main() == 1
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2 * 3 and "a.png circle 0.90 " in printed.out
    assert printed.err.count("\n") == 1 and "b.png is empty, broken" in printed.err
    assert sorted(path.name for path in drawn.iterdir()) == ["a.png.png", "c.jpg.png"]
