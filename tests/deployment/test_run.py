"""`run.py` alone returns what mmdet and mmseg predict, from photos of any kind."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import mmcv
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.detections import Detections, assert_same
from helpers.paths import CONFIGS
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

from xcit_mm.deployment.metadata import resize_rule
from xcit_mm.prediction import Predictor
from xcit_mm.utils.configs import ModelInput

onnx = pytest.importorskip("onnx")
run = pytest.importorskip("xcit_mm.deployment.run")
MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
FPN = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"
# As sitecustomize, it hides these libraries from run.py.
BLOCKER = """
import sys
hidden = ("torch", "mmcv", "mmengine", "mmdet", "mmseg", "PIL", "xcit_mm", "pycocotools")
sys.modules.update(dict.fromkeys(hidden))
"""


def smooth_image(height: int, width: int) -> np.ndarray:
    grid = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return mmcv.imresize(grid, (width, height))


@pytest.fixture(scope="module")
def photos(shapes) -> list[np.ndarray]:
    """Images of several sizes."""
    paths = sorted((shapes / "images" / "validation").iterdir())
    return [*map(run.read_image, paths), smooth_image(203, 330), smooth_image(97, 64)]


@pytest.fixture
def edited(segmentor_file, tmp_path) -> Callable[..., Path]:
    """Write a copy of the segmentor's file with other metadata."""

    def write(**facts: object) -> Path:
        file = onnx.load(segmentor_file)
        texts = {prop.key: prop.value for prop in file.metadata_props}
        onnx.helper.set_model_props(
            file, texts | {name: json.dumps(value) for name, value in facts.items()}
        )
        onnx.save(file, tmp_path / "edited.onnx")
        return tmp_path / "edited.onnx"

    return write


def test_detections_in_photos_are_the_predictor_s(mask_rcnn, mask_rcnn_file, photos):
    model, predictor, count = (
        run.Model(mask_rcnn_file),
        Predictor.from_config(*mask_rcnn, device="cpu"),
        0,
    )
    for image in photos:
        found, expected = Detections(**model(image)), predictor(image)
        cut = (
            expected.scores.min() if len(expected.scores) == 60 else 0.25
        )  # where the limit has cut others off
        pair = found, Detections(expected.boxes, expected.scores, expected.labels, expected.masks)
        count += assert_same(*pair, image.shape[:2], float(cut), pixels=1e-3)
    assert count > 25


def test_segmentation_maps_are_the_predictor_s(segmentor, segmentor_file, photos):
    model, predictor = run.Model(segmentor_file), Predictor.from_config(*segmentor, device="cpu")
    for image in photos:
        found, expected = model(image)["map"], predictor(image).segmentation
        assert found.dtype == expected.dtype and len(np.unique(found)) > 1
        assert (found != expected).mean() < 5e-4


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("count, threshold", [(3, None), (300, None), (1, 0.3)])
def test_resized_maps_are_torch_s(align_corners, count, threshold, edited):
    logits = torch.randn(1, count, 13, 21, generator=torch.Generator().manual_seed(0))
    whole = F.interpolate(logits, (40, 33), mode="bilinear", align_corners=align_corners)
    expected = whole.argmax(1)[0] if count > 1 else (whole.sigmoid() > threshold)[0, 0]
    model = run.Model(edited(align_corners=align_corners, threshold=threshold))
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
def test_preprocessed_image_is_the_library_s(path, options, edited):
    cfg = Config.fromfile(path)
    cfg.merge_from_dict(options)
    init_default_scope(cfg.default_scope)
    pipeline = [step for step in cfg.test_dataloader.dataset.pipeline if "Load" not in step["type"]]
    pipeline[-1] = dict(type=pipeline[-1]["type"], meta_keys=())
    prepare, preprocessor = Compose(pipeline), MODELS.build(cfg.model.data_preprocessor)
    inputs = ModelInput(cfg)
    given = inputs.preprocessor
    divisor = 1 if path == MASK_RCNN else (given.get("test_cfg") or {}).get("size_divisor", 1)
    facts = dict(
        mean=given.get("mean"),
        std=given.get("std"),
        channel_order=inputs.channel_order,
        pad_divisor=divisor,
    )
    model = run.Model(edited(resize=resize_rule(cfg), **facts))
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
    "path, change, named",
    [
        (
            MASK_RCNN,
            lambda cfg: cfg.test_pipeline[1].update(type="ResizeShortestEdge"),
            "ResizeShortestEdge",
        ),
        (
            MASK_RCNN,
            lambda cfg: cfg.test_pipeline[1].update(interpolation="bicubic"),
            "interpolation='bicubic'",
        ),
        (
            MASK_RCNN,
            lambda cfg: cfg.model.data_preprocessor.update(type="ImgDataPreprocessor"),
            "ImgDataPreprocessor",
        ),
        (
            FPN,
            lambda cfg: cfg.model.data_preprocessor.update(test_cfg=dict(size=(512, 512))),
            "size=(512, 512)",
        ),
        (FPN, lambda cfg: cfg.model.test_cfg.update(mode="slide"), "test_cfg.mode='slide'"),
        (FPN.with_stem(f"{FPN.stem}-4band"), lambda cfg: None, "LoadRasterFromFile"),
    ],
)
def test_preprocessing_that_the_script_lacks_is_named(path, change, named, edited):
    cfg = Config.fromfile(path)
    change(cfg)
    cfg.test_dataloader.dataset.pipeline = cfg.test_pipeline
    with pytest.raises(ValueError) as raised:
        resize_rule(cfg)
    assert named in str(raised.value)
    with pytest.raises(ValueError, match=re.escape(named)):
        run.Model(edited(unsupported=str(raised.value)))


def test_photos_are_read_as_by_the_predictor(models, tmp_path):
    pixels, exif = smooth_image(40, 60), Image.Exif()
    exif[0x0112] = 6  # an upright camera
    Image.fromarray(pixels).save(tmp_path / "upright.jpg", exif=exif, quality=95)
    Image.fromarray(pixels).convert("CMYK").save(tmp_path / "cmyk.jpg")
    Image.fromarray(pixels).convert("P").save(tmp_path / "palette.png")
    Image.fromarray(pixels).convert("L").save(tmp_path / "grey.png")
    Image.fromarray(np.dstack([pixels, pixels[..., 0]])).save(tmp_path / "transparent.png")
    cv2.imwrite(str(tmp_path / "deep.png"), pixels.astype(np.uint16) * 257)
    predictor = Predictor.from_config(*models["seg"], device="cpu")
    for path in sorted(tmp_path.glob("*.*g")):
        image = run.read_image(path)
        assert image.shape == ((60, 40, 3) if path.stem == "upright" else (40, 60, 3))
        assert np.array_equal(image, predictor.preprocess.read(path)), path
    cv2.imwrite(str(tmp_path / "dark.png"), pixels.astype(np.uint16))
    for read in (run.read_image, predictor.preprocess.read):
        with pytest.raises(ValueError, match="few of its 16 bits"):
            read(tmp_path / "dark.png")


@pytest.mark.parametrize("kind", ["mask_rcnn_file", "segmentor_file"])
def test_a_copy_runs_without_torch_and_draws(kind, request, tmp_path):
    model, alone = request.getfixturevalue(kind), tmp_path / "product"
    alone.mkdir()
    (alone / "sitecustomize.py").write_text(BLOCKER)
    shutil.copy(run.__file__, alone / "runner.py")
    cv2.imwrite(str(alone / "photo.png"), smooth_image(203, 330))
    command = [sys.executable, "runner.py", str(model), "photo.png", "--out", "drawn"]
    ended = subprocess.run(
        command, cwd=alone, env=dict(PYTHONPATH=str(alone)), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    local, image = run.Model(model), run.read_image(alone / "photo.png")
    found = local(image)
    if "scores" in found:
        found = {name: values[found["scores"] >= 0.3] for name, values in found.items()}
    drawn = run.read_image(alone / "drawn" / "photo.png.png")
    assert np.array_equal(drawn, run.draw(image, found, local.classes)) and not np.array_equal(
        drawn, image
    )
    assert len(ended.stdout.splitlines()) == len(run.list_found(found, local.classes)) > 1


@pytest.fixture
def main(monkeypatch, tmp_path) -> Callable[..., int]:
    """Runs the script in this process, in a folder with photo.png and text.onnx."""
    monkeypatch.chdir(tmp_path)
    cv2.imwrite("photo.png", smooth_image(60, 90))
    Path("text.onnx").write_text("no model")

    def call(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["run.py", *map(str, arguments)])
        return run.main()

    return call


def test_bad_models_are_named(main, segmentor_file):
    foreign = onnx.load(segmentor_file)
    del foreign.metadata_props[:]
    onnx.save(foreign, "foreign.onnx")
    for model, message in [
        ("none.onnx", "none.onnx cannot be run"),
        ("text.onnx", "text.onnx cannot be run"),
        ("foreign.onnx", "is a backbone or not of xcit-mm export"),
    ]:
        with pytest.raises(ValueError, match=message) as error:
            main(model, "photo.png")
        assert "\n" not in str(error.value)
    ended = subprocess.run(
        [sys.executable, run.__file__, "none.onnx", "photo.png"], capture_output=True, text=True
    )
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    with pytest.raises(ValueError, match=r"give it as \(H, W, 3\)"):
        run.Model(segmentor_file)(np.zeros((5, 5), np.uint8))


def test_bad_images_are_reported_and_the_others_of_a_folder_predicted(
    main, edited, mask_rcnn_file, capsys
):
    for image, message in [
        ("none.png", "No such file"),
        ("text.onnx", "text.onnx is empty, broken or not an image"),
    ]:
        assert main(mask_rcnn_file, image) == 1
        assert message in capsys.readouterr().err
    assert main(edited(min_side=300), "photo.png") == 1
    assert "resized to 120x180, the model takes 300 or more a side" in capsys.readouterr().err

    photos = Path("photos")
    photos.mkdir()
    for name in ("a.png", "c.jpg"):
        cv2.imwrite(str(photos / name), smooth_image(203, 330))
    (photos / "b.png").write_text("no image")
    assert main(mask_rcnn_file, photos, "--out", "drawn", "--score-thr", 0.3) == 1
    printed = capsys.readouterr()
    found = run.Model(mask_rcnn_file)(run.read_image(photos / "a.png"))
    assert printed.out.count("a.png ") == (found["scores"] >= 0.3).sum() > 1
    assert printed.err.count("\n") == 1 and "b.png is empty, broken" in printed.err
    assert sorted(path.name for path in Path("drawn").iterdir()) == ["a.png.png", "c.jpg.png"]


def test_image_without_objects_stays_as_it_is(mask_rcnn_file, tmp_path, photos):
    file = onnx.load(mask_rcnn_file)
    (threshold,) = (tensor for tensor in file.graph.initializer if tensor.name == "score_thr")
    threshold.CopyFrom(onnx.numpy_helper.from_array(np.ones(1, np.float32), "score_thr"))
    onnx.save(file, tmp_path / "strict.onnx")
    model = run.Model(tmp_path / "strict.onnx")
    found = model(photos[-1])
    assert found["boxes"].shape == (0, 4) and found["masks"].shape == (0, *photos[-1].shape[:2])
    assert np.array_equal(run.draw(photos[-1], found, model.classes), photos[-1])
