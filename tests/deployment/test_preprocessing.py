"""The runtime and exported files preprocess images as mmdet and mmseg do."""

import json
import re
import shutil
from pathlib import Path

import mmcv
import numpy as np
import pytest
from mmengine.config import Config, ConfigDict
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope
from onnx_files import load_standard, metadata
from paths import CONFIGS

from xcit_mm.deployment import ExportTarget, export_model
from xcit_mm.deployment.preprocessing import add_preprocessing, compare_preprocessing, preprocessing_steps
from xcit_mm.deployment.runtime import Model
from xcit_mm.prediction import Predictor
from xcit_mm.utils.configs import channel_order

onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
FPN = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def graph_session(path: Path) -> "runtime.InferenceSession":
    """Run the preprocessing of a file alone."""
    from xcit_mm.deployment.preprocessing_graph import preprocessing_graph

    graph = preprocessing_graph(onnx.load(path))
    onnx.checker.check_model(graph, full_check=True)
    return runtime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "path, options",
    [
        (MASK_RCNN, {}),
        (MASK_RCNN, {"model.data_preprocessor.bgr_to_rgb": False}),
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.1.keep_ratio": False}),
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.1.scale": 224}),
        (FPN, {}),
        (FPN, {"model.data_preprocessor.test_cfg": dict(size_divisor=48)}),
        (FPN, {"model.data_preprocessor.mean": None, "model.data_preprocessor.std": None}),
    ],
)
def test_preprocessed_image_is_opencv_s_to_one_grey_level(path, options, detector):
    cfg = Config.fromfile(path)
    cfg.merge_from_dict(options)
    init_default_scope(cfg.default_scope)
    pipeline = [step for step in cfg.test_dataloader.dataset.pipeline if "Load" not in step["type"]]
    pipeline[-1] = dict(type=pipeline[-1]["type"], meta_keys=())
    prepare, preprocessor = Compose(pipeline), MODELS.build(cfg.model.data_preprocessor)
    unit = np.array(cfg.model.data_preprocessor.std or [1] * 3).reshape(1, 3, 1, 1)

    facts = {name: json.dumps(cfg.model.data_preprocessor.get(name)) for name in ("mean", "std")}
    steps = json.dumps(preprocessing_steps(cfg))
    file = detector(preprocessing=steps, channel_order=channel_order(cfg), **facts)
    model, session = Model(file), graph_session(file)
    # The width of the last image is resized to a number that ends in .5 before rounding.
    for height, width in [(37, 53), (480, 640), (901, 450), (1088, 1717)]:
        pixels = noise(height, width)
        bgr = np.ascontiguousarray(pixels[..., ::-1])
        data = prepare(dict(img=bgr, ori_shape=(height, width), img_shape=(height, width)))
        size = tuple(data["inputs"].shape[1:])
        expected = preprocessor(pseudo_collate([data]), False)["inputs"].numpy()
        if path == MASK_RCNN:  # a detector's file pads
            expected = expected[..., : size[0], : size[1]]
        found = model._preprocess(pixels, model._resized_size(height, width))
        assert found.shape == expected.shape and found.dtype == np.float32
        levels = np.abs(found - expected) * unit
        assert levels.max() < 1.001 and (levels > 0.1).mean() < 0.01  # 0.13 with plain interpolation
        assert np.array_equal(found[..., size[0] :, :], expected[..., size[0] :, :])
        in_file, *sizes = session.run(["image", "size", "resized_size"], dict(pixels=pixels))
        np.testing.assert_allclose(in_file, found, rtol=1e-5, atol=1e-5)
        assert [tuple(values) for values in sizes] == [(height, width), size]


def test_resized_sizes_are_mmcv_s_with_its_rounding(detector):
    steps = dict(resize=dict(scale=[133, 80], keep_ratio=True), pad_divisor=1, pad_value=0)
    file = detector(preprocessing=json.dumps(steps))
    model, session = Model(file), graph_session(file)
    for height, width in np.random.default_rng(0).integers(2, 500, (1000, 2)).tolist():
        expected = mmcv.rescale_size((width, height), (133, 80))[::-1]
        if min(expected):
            assert model._resized_size(height, width) == expected
            pixels = np.zeros((height, width, 3), np.uint8)
            assert tuple(session.run(["resized_size"], dict(pixels=pixels))[0]) == expected


@pytest.mark.parametrize(
    "path, options, named",
    [
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.1.type": "ResizeShortestEdge"}, "ResizeShortestEdge"),
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.1.interpolation": "bicubic"}, "interpolation='bicubic'"),
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.1": dict(type="Resize", scale_factor=2.0)}, "scale_factor=2"),
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.0.to_float32": True}, "to_float32=True"),
        (MASK_RCNN, {"model.data_preprocessor.type": "ImgDataPreprocessor"}, "'ImgDataPreprocessor'"),
        (FPN, {"model.data_preprocessor.test_cfg": dict(size=(512, 512))}, "size=(512, 512)"),
        (CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes-4band.py", {}, "LoadRasterFromFile"),
    ],
)
def test_unsupported_preprocessing_is_named(path, options, named, detector):
    cfg = Config.fromfile(path)
    for key, value in options.items():  # merging would keep options of another type of step
        *parents, last = key.split(".")
        place = cfg._cfg_dict
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place[parent]
        place[int(last) if isinstance(place, list) else last] = ConfigDict(value) if isinstance(value, dict) else value
    steps = preprocessing_steps(cfg)
    assert list(steps) == ["unknown"] and named in steps["unknown"]
    file = detector(preprocessing=json.dumps(steps))
    target = ExportTarget(Path("model.onnx"), preprocessing=True)
    for attempt in (lambda: target.check_model(cfg), lambda: Model(file)):
        with pytest.raises(ValueError) as raised:
            attempt()
        assert named in str(raised.value) and "\n" not in str(raised.value)


def test_detector_file_with_preprocessing_returns_boxes_in_the_image(raw_detections, detector):
    file = detector()
    model, facts = Model(file), metadata(onnx.load(file))
    pixels = noise(300, 440)  # is resized to 100x147
    expected = model(pixels)
    add_preprocessing(file)
    assert metadata(load_standard(file)) == facts
    outputs = runtime.InferenceSession(file).run(list(raw_detections), dict(pixels=pixels))
    for (name, values), output in zip(raw_detections.items(), outputs, strict=True):
        scale = np.float32([147 / 440, 1 / 3] * 2) if name == "boxes" else 1
        np.testing.assert_allclose(output, values / scale, rtol=1e-6)
    for found, target in zip(Model(file)(pixels), expected, strict=True):
        assert np.array_equal(found, target)


@pytest.mark.usefixtures("exported_before")
def test_segmentor_file_with_preprocessing_returns_mmseg_s_map(segmentor, call, tmp_path):
    out = tmp_path / "model.onnx"
    code, printed, _ = call("export", *segmentor, "--out", out, "--with-preprocessing")
    assert code == 0 and list(tmp_path.iterdir()) == [out]
    assert re.search(r"preprocessing   within [01]\.0 grey levels of OpenCV; 0\.\d\d% of the pixels change", printed)
    assert "(4 images of the test set)" in printed
    assert [value.name for value in load_standard(out).graph.input] == ["pixels"]
    predictor = Predictor(*segmentor, device="cpu")
    session = runtime.InferenceSession(out)
    for height, width in [(64, 97), (203, 330)]:
        pixels = mmcv.imresize(noise(6, 8), (width, height))
        (found,) = session.run(["segmentation_map"], dict(pixels=pixels))
        expected = predictor(np.ascontiguousarray(pixels[..., ::-1])).segmentation
        assert found.dtype == np.uint8 and found.shape == (height, width)
        assert (found != expected).mean() < 0.01 and len(np.unique(found)) > 1


def test_detector_file_with_preprocessing_agrees_where_images_end_within_a_cell(mask_rcnn, mask_rcnn_file, tmp_path):
    path = Path(shutil.copy(mask_rcnn_file, tmp_path))
    add_preprocessing(path)
    report = compare_preprocessing(*mask_rcnn.load(), path)
    assert re.match(
        r"within [01]\.0 grey levels of OpenCV; \d of \d\d+ detections have no match, boxes move by", report
    )
    assert report.endswith("(4 images of the test set)")


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(mean=[125, 116.28, 103.53]), r"deviates by [\d.]+ grey levels$"),
        (dict(preprocessing=dict(resize=None, pad_divisor=1, pad_value=0)), r"is \(1, 3, .*\), not \(1, 3, .*\)$"),
        ("Neg", r"[\d.]+% is found differently"),
    ],
)
def test_file_with_wrong_preprocessing_is_rejected(change, message, segmentor, segmentor_file, tmp_path):
    file = onnx.load(segmentor_file)
    if change == "Neg":
        file.graph.node[-1].output[0] = "opposite"
        file.graph.node.append(onnx.helper.make_node("Neg", ["opposite"], ["logits"]))
    else:
        onnx.helper.set_model_props(file, metadata(file) | {key: json.dumps(value) for key, value in change.items()})
    onnx.save(file, tmp_path / "model.onnx")
    add_preprocessing(tmp_path / "model.onnx")
    with pytest.raises(RuntimeError, match=message):
        compare_preprocessing(*segmentor.load(), tmp_path / "model.onnx")


@pytest.mark.usefixtures("exported_before")
def test_failing_test_set_ends_in_one_line_without_a_file(segmentor, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise AssertionError("no such\nsplit")

    monkeypatch.setattr(DATASETS, "build", fail)
    with pytest.raises(RuntimeError, match=r"^the file is not written: AssertionError: no such split$"):
        export_model(*segmentor, ExportTarget(tmp_path / "model.onnx", preprocessing=True))
    assert list(tmp_path.iterdir()) == []


def test_missing_test_set_is_replaced_by_synthetic_images(segmentor, segmentor_file, tmp_path):
    path = Path(shutil.copy(segmentor_file, tmp_path))
    add_preprocessing(path)
    cfg, model = segmentor.load()
    cfg.test_dataloader.dataset.data_root = str(tmp_path / "none")
    report = compare_preprocessing(cfg, model, path)
    assert report.endswith("(4 synthetic images)") and list(tmp_path.iterdir()) == [path]
    assert re.match(r"within [01]\.0 grey levels of OpenCV; 0\.\d\d% of the pixels change class", report)
