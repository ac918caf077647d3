"""`run.py` alone returns what mmdet and mmseg predict, from photos of any kind."""

import errno
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zlib
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


PHOTOS = ("00000", "00001", "00002", "00003", "smooth", "small")


@pytest.fixture
def photo(shapes) -> Callable[[str], np.ndarray]:
    """Returns an image of `PHOTOS` by its name."""

    def read(name: str) -> np.ndarray:
        if name == "smooth":
            return smooth_image(203, 330)
        if name == "small":
            return smooth_image(97, 64)
        return run.read_image(shapes / "images" / "validation" / f"{name}.jpg")

    return read


@pytest.fixture
def edited(segmentor_file, tmp_path) -> Callable[..., Path]:
    """Write a copy of the segmentor's file with other metadata."""

    def write(**facts: object) -> Path:
        file = onnx.load(segmentor_file)
        metadata = {prop.key: prop.value for prop in file.metadata_props}
        metadata |= {name: json.dumps(fact) for name, fact in facts.items()}
        onnx.helper.set_model_props(file, metadata)
        onnx.save(file, tmp_path / "edited.onnx")
        return tmp_path / "edited.onnx"

    return write


@pytest.fixture(scope="module")
def detector(mask_rcnn) -> Predictor:
    return Predictor.from_config(*mask_rcnn, device="cpu")


@pytest.fixture(scope="module")
def segmenter(segmentor) -> Predictor:
    return Predictor.from_config(*segmentor, device="cpu")


@pytest.mark.parametrize("name", PHOTOS)
def test_detections_in_photos_are_the_predictor_s(name, detector, mask_rcnn_file, photo):
    image = photo(name)
    actual = Detections(**run.Model(mask_rcnn_file)(image))
    prediction = detector(image)
    expected = Detections(prediction.boxes, prediction.scores, prediction.labels, prediction.masks)
    # Where the limit has cut others off, or at the config's threshold.
    cut = expected.scores.min() if len(expected.scores) == 60 else 0.25
    assert assert_same(actual, expected, image.shape[:2], float(cut), pixels=1e-3) > 0


@pytest.mark.parametrize("name", PHOTOS)
def test_segmentation_maps_are_the_predictor_s(name, segmenter, segmentor_file, photo):
    image = photo(name)
    actual = run.Model(segmentor_file)(image)["map"]
    expected = segmenter(image).segmentation
    assert actual.dtype == expected.dtype
    assert len(np.unique(actual)) > 1
    assert (actual != expected).mean() < 5e-4


@pytest.fixture
def with_threshold(mask_rcnn_file, tmp_path) -> Callable[[float], Path]:
    """Write a copy of the detector's file that detects objects above another score."""

    def write(score: float) -> Path:
        file = onnx.load(mask_rcnn_file)
        (threshold,) = (tensor for tensor in file.graph.initializer if tensor.name == "score_thr")
        array = np.full((1, 1), score, np.float32)
        threshold.CopyFrom(onnx.numpy_helper.from_array(array, threshold.name))
        onnx.save(file, tmp_path / "other.onnx")
        return tmp_path / "other.onnx"

    return write


def test_minimum_score_selects_objects_before_memory_is_taken_for_their_masks(with_threshold):
    model = run.Model(with_threshold(0.0))
    image = smooth_image(609, 990)
    every = model(image)
    limit = float(every["scores"][1])
    tracemalloc.start()
    best = model(image, min_score=limit)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(best["scores"]) == 2
    for name, array in best.items():
        assert np.array_equal(array, every[name][:2])
    assert peak < every["masks"].nbytes / 4


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("count, threshold", [(3, None), (300, None), (1, 0.3)])
def test_resized_maps_are_torch_s(align_corners, count, threshold, edited):
    logits = torch.randn(1, count, 13, 21, generator=torch.Generator().manual_seed(0))
    whole = F.interpolate(logits, (40, 33), mode="bilinear", align_corners=align_corners)
    expected = whole.argmax(1)[0] if count > 1 else (whole.sigmoid() > threshold)[0, 0]
    model = run.Model(edited(align_corners=align_corners, threshold=threshold))
    assert np.array_equal(model.to_classes(logits[0].numpy(), (40, 33)), expected.numpy())


# The width of the last image is resized to a number that ends in .5 before rounding.
@pytest.mark.parametrize("size", [(37, 53), (480, 640), (901, 450), (1088, 1717)])
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
def test_preprocessed_image_is_the_library_s(path, options, size, edited):
    cfg = Config.fromfile(path)
    cfg.merge_from_dict(options)
    init_default_scope(cfg.default_scope)
    pipeline = [step for step in cfg.test_dataloader.dataset.pipeline if "Load" not in step["type"]]
    pipeline[-1] = dict(type=pipeline[-1]["type"], meta_keys=())
    image = np.random.default_rng(size[0]).integers(0, 256, (*size, 3), dtype=np.uint8)
    data = Compose(pipeline)(dict(img=image, ori_shape=size, img_shape=size))
    resized = tuple(data["inputs"].shape[1:])
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    expected = preprocessor(pseudo_collate([data]), False)["inputs"].numpy()
    inputs = ModelInput(cfg)
    settings = inputs.preprocessor
    divisor = (settings.get("test_cfg") or {}).get("size_divisor", 1)
    if path == MASK_RCNN:  # a detector's file pads
        expected = expected[..., : resized[0], : resized[1]]
        divisor = 1
    facts = dict(
        resize=resize_rule(cfg),
        mean=settings.get("mean"),
        std=settings.get("std"),
        channel_order=inputs.channel_order,
        pad_divisor=divisor,
    )
    actual, actual_size = run.Model(edited(**facts)).preprocess(image)
    assert actual_size == resized
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "path, options, named",
    [
        (MASK_RCNN, {"test_pipeline.1.type": "ResizeShortestEdge"}, "ResizeShortestEdge"),
        (MASK_RCNN, {"test_pipeline.1.interpolation": "bicubic"}, "interpolation='bicubic'"),
        (MASK_RCNN, {"model.data_preprocessor.type": "ImgDataPreprocessor"}, "ImgDataPreprocessor"),
        (FPN, {"model.data_preprocessor.test_cfg": dict(size=(512, 512))}, "size=(512, 512)"),
        (FPN, {"model.test_cfg.mode": "slide"}, "test_cfg.mode='slide'"),
        (FPN.with_stem(f"{FPN.stem}-4band"), {}, "LoadRasterFromFile"),
    ],
)
def test_preprocessing_that_the_script_lacks_is_named(path, options, named, edited):
    cfg = Config.fromfile(path)
    cfg.merge_from_dict(options)
    cfg.test_dataloader.dataset.pipeline = cfg.test_pipeline
    with pytest.raises(ValueError) as raised:
        resize_rule(cfg)
    assert named in str(raised.value)
    with pytest.raises(ValueError, match=re.escape(named)):
        run.Model(edited(unsupported=str(raised.value)))


@pytest.fixture(scope="module")
def photo_files(tmp_path_factory) -> Path:
    """A folder of image files of several kinds."""
    folder = tmp_path_factory.mktemp("photos")
    pixels = smooth_image(40, 60)
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6  # an upright camera
    image.save(folder / "upright.jpg", exif=exif, quality=95)
    image.convert("CMYK").save(folder / "cmyk.jpg")
    image.convert("P").save(folder / "palette.png")
    image.convert("L").save(folder / "grey.png")
    Image.fromarray(np.dstack([pixels, pixels[..., 0]])).save(folder / "transparent.png")
    cv2.imwrite(str(folder / "deep.png"), pixels.astype(np.uint16) * 257)
    cv2.imwrite(str(folder / "dark.png"), pixels.astype(np.uint16))
    return folder


@pytest.mark.parametrize(
    "name, size",
    [
        ("upright.jpg", (60, 40)),
        ("cmyk.jpg", (40, 60)),
        ("palette.png", (40, 60)),
        ("grey.png", (40, 60)),
        ("transparent.png", (40, 60)),
        ("deep.png", (40, 60)),
    ],
)
def test_photos_are_read_as_by_the_predictor(name, size, segmenter, photo_files):
    image = run.read_image(photo_files / name)
    assert image.shape == (*size, 3)
    assert np.array_equal(image, segmenter.preprocess.read(photo_files / name))


def test_photo_of_few_of_its_16_bits_is_refused_as_by_the_predictor(segmenter, photo_files):
    for read in (run.read_image, segmenter.preprocess.read):
        with pytest.raises(ValueError, match="few of its 16 bits"):
            read(photo_files / "dark.png")


@pytest.mark.parametrize("fixture", ["mask_rcnn_file", "segmentor_file"])
def test_a_copy_runs_without_torch_and_draws(fixture, request, tmp_path):
    model = request.getfixturevalue(fixture)
    alone = tmp_path / "product"
    alone.mkdir()
    (alone / "sitecustomize.py").write_text(BLOCKER)
    shutil.copy(run.__file__, alone / "runner.py")
    cv2.imwrite(str(alone / "photo.png"), smooth_image(203, 330))
    command = [sys.executable, "runner.py", str(model), "photo.png", "--out", "drawn"]
    ended = subprocess.run(
        command, cwd=alone, env=dict(PYTHONPATH=str(alone)), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    local = run.Model(model)
    image = run.read_image(alone / "photo.png")
    prediction = local(image, min_score=0.3)
    drawn = run.read_image(alone / "drawn" / "photo.png.png")
    assert np.array_equal(drawn, run.draw(image, prediction, local.classes))
    assert not np.array_equal(drawn, image)
    rows = run.list_rows(prediction, local.classes)
    assert len(ended.stdout.splitlines()) == len(rows) > 1


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


@pytest.mark.parametrize(
    "model, message",
    [
        ("none.onnx", "none.onnx cannot be run"),
        ("text.onnx", "text.onnx cannot be run"),
        ("foreign.onnx", "is a backbone or not of xcit-mm export"),
    ],
)
def test_bad_model_is_named_in_one_line(model, message, main, segmentor_file):
    foreign = onnx.load(segmentor_file)
    del foreign.metadata_props[:]
    onnx.save(foreign, "foreign.onnx")
    with pytest.raises(ValueError, match=message) as error:
        main(model, "photo.png")
    assert "\n" not in str(error.value)


def test_script_ends_in_one_line_without_a_model(tmp_path):
    command = [sys.executable, run.__file__, "none.onnx", "photo.png"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1


def test_array_of_another_shape_is_refused(segmentor_file):
    with pytest.raises(ValueError, match=r"give it as \(H, W, 3\)"):
        run.Model(segmentor_file)(np.zeros((5, 5), np.uint8))


def test_image_below_the_model_s_size_is_named(main, edited, capsys):
    assert main(edited(min_side=300), "photo.png") == 3
    message = "photo.png: resized to 120x180, the model takes 300 or more a side\n"
    assert capsys.readouterr().err == message


def png_of_many_pixels() -> bytes:
    """Return a PNG whose header claims 1.6e9 pixels."""
    chunks = [
        b"IHDR" + struct.pack(">IIBBBBB", 40000, 40000, 8, 2, 0, 0, 0),
        b"IDAT" + zlib.compress(bytes(100)),
        b"IEND",
    ]
    png = b"\x89PNG\r\n\x1a\n"
    for chunk in chunks:
        png += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return png


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "b.png is empty, broken or not an image"),
        (b"no image", "b.png is empty, broken or not an image"),
        (png_of_many_pixels(), "b.png cannot be decoded: pixels <= CV_IO_MAX_IMAGE_PIXELS"),
        (None, "No such file or directory: 'photos/b.png'"),
    ],
    ids=["empty", "text", "huge", "broken link"],
)
def test_bad_image_is_one_line_and_the_others_of_a_folder_are_predicted(
    content, message, main, mask_rcnn_file, capsys
):
    photos = Path("photos")
    photos.mkdir()
    for name in ("a.png", "c.jpg"):
        cv2.imwrite(str(photos / name), smooth_image(203, 330))
    if content is None:
        image = photos / "b.png"
    else:
        (photos / "b.png").write_bytes(content)
        image = photos
    assert main(mask_rcnn_file, image, "--out", "drawn", "--score-thr", 0.3) == 3
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert message in printed.err
    if image == photos:
        prediction = run.Model(mask_rcnn_file)(run.read_image(photos / "a.png"), min_score=0.3)
        assert printed.out.count("a.png ") == len(prediction["scores"]) > 1
        assert sorted(os.listdir("drawn")) == ["a.png.png", "c.jpg.png"]


def test_drawing_of_an_image_whose_name_is_not_utf8(main, mask_rcnn_file, capsys):
    os.mkdir("photos")
    shutil.copy("photo.png", b"photos/gr\xfcn.png")
    assert main(mask_rcnn_file, "photos", "--out", "drawn") == 0
    assert "photos/gr\\udcfcn.png" in capsys.readouterr().out
    assert os.listdir(b"drawn") == [b"gr\xfcn.png.png"]


def test_drawing_that_cannot_be_named_is_one_line(main, mask_rcnn_file, capsys):
    long = f"{'x' * 251}.png"
    os.mkdir("photos")
    for name in (long, "z.png"):
        shutil.copy("photo.png", f"photos/{name}")
    assert main(mask_rcnn_file, "photos", "--out", "drawn") == 3
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"photos/{long}: [Errno {errno.ENAMETOOLONG}]")
    assert f"photos/{long} " in printed.out  # its objects are reported
    assert os.listdir("drawn") == ["z.png.png"]


def test_drawing_on_a_full_disk_is_one_line_and_leaves_no_file(main, mask_rcnn_file, capsys):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        code = main(mask_rcnn_file, "photo.png", "--out", "drawn")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 3
    assert capsys.readouterr().err == f"photo.png: [Errno {errno.EFBIG}] File too large\n"
    assert os.listdir("drawn") == []


@pytest.mark.parametrize(
    "image, out, message",
    [
        ("photos", "photos", "--out photos is or holds the input photos: give another"),
        ("photos", "photos/../photos", "the input photos"),
        ("photos", ".", "the input models/model.onnx"),
        ("photos/a.png", "photos", "the input photos/a.png"),
        ("photos", "link", "the input photos"),
        ("photos", "models", "the input models/model.onnx"),
    ],
)
def test_drawings_replace_no_input(image, out, message, main, segmentor_file):
    for folder in ("photos", "models"):
        os.mkdir(folder)
    shutil.copy("photo.png", "photos/a.png")
    shutil.copy("photo.png", "photos/a.png.png")
    shutil.copy(segmentor_file, "models/model.onnx")
    Path("link").symlink_to("photos")
    before = Path("photos/a.png.png").read_bytes()
    with pytest.raises(ValueError, match=re.escape(message)):
        main("models/model.onnx", image, "--out", out)
    assert Path("photos/a.png.png").read_bytes() == before
    assert sorted(os.listdir("photos")) == ["a.png", "a.png.png"]


def test_name_that_opencv_cannot_draw_is_the_number_of_its_class():
    image = smooth_image(60, 90)
    box = np.array([[10, 10, 40, 40]], np.float32)
    prediction = dict(boxes=box, scores=np.array([0.5]), labels=np.array([1]))
    drawn = run.draw(image, prediction, ["dog", "\u732b"])
    assert np.array_equal(drawn, run.draw(image, prediction, ["dog", "class 1"]))
    assert [text for _, text, _ in run.list_rows(prediction, ["dog", "\u732b"])] == ["\u732b 0.50"]


def test_image_without_objects_stays_as_it_is(mask_rcnn_file):
    model = run.Model(mask_rcnn_file)
    image = smooth_image(97, 64)
    prediction = model(image, min_score=1.1)
    assert prediction["boxes"].shape == (0, 4)
    assert prediction["masks"].shape == (0, 97, 64)
    assert np.array_equal(run.draw(image, prediction, model.classes), image)


def test_file_that_detects_nothing_returns_no_object(with_threshold):
    prediction = run.Model(with_threshold(1.0))(smooth_image(97, 64))
    assert prediction["boxes"].shape == (0, 4)
    assert prediction["masks"].shape == (0, 97, 64)
