"""Pictures are prepared as mmdet and mmseg prepare them, by the runner and inside files."""

import json
import re
import shutil
from pathlib import Path

import mmcv
import numpy as np
import pytest
from mmengine.config import Config, ConfigDict
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS, init_default_scope
from paths import CONFIGS

from xcit_mm.deployment import export, pictures, preprocessing
from xcit_mm.deployment.run import Detections, Model
from xcit_mm.prediction import Instances, Predictor

onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
NOTHING = dict(
    boxes=np.zeros((0, 4), np.float32),
    scores=np.zeros(0, np.float32),
    labels=np.zeros(0, np.int64),
    masks=np.zeros((0, 28, 28), np.float32),
)
# What the writers of the graph's parts may be given.
WRITERS = dict(
    _fixed_taps=["rows", 0],
    _padded=[2, 0],
    _segmentor_s_end=[dict(align_corners="true", threshold="null", classes="[0]")],
)
MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
FPN = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"


def picture_of(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def told(cfg: Config) -> dict[str, str]:
    """What a file of such a config's model says of the preparation."""
    found = preprocessing.preparation(cfg)
    assert "unknown" not in found
    preprocessor = cfg.model.data_preprocessor
    names = {name: json.dumps(preprocessor.get(name)) for name in ("mean", "std")}
    return names | dict(preparation=json.dumps(found), channel_order=export.channel_order(cfg))


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
def test_a_prepared_picture_is_the_library_s_to_one_grey_level(path, options, detector):
    cfg = Config.fromfile(path)
    cfg.merge_from_dict(options)
    init_default_scope(cfg.default_scope)
    pipeline = [step for step in cfg.test_dataloader.dataset.pipeline if "Load" not in step["type"]]
    pipeline[-1] = dict(type=pipeline[-1]["type"], meta_keys=())
    prepare, preprocessor = Compose(pipeline), MODELS.build(cfg.model.data_preprocessor)
    unit = np.array(cfg.model.data_preprocessor.std or [1] * 3).reshape(1, 3, 1, 1)

    file = detector(NOTHING, **told(cfg))
    model = Model(file)
    graph = preprocessing.prepare_graph(onnx.load(file))
    onnx.checker.check_model(graph, full_check=True)
    session = runtime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    # The fourth is enlarged to a width that ends in a half before rounding.
    for height, width in [(37, 53), (480, 640), (901, 450), (1088, 1717)]:
        picture = picture_of(height, width)
        bgr = np.ascontiguousarray(picture[..., ::-1])
        data = prepare(dict(img=bgr, ori_shape=(height, width), img_shape=(height, width)))
        size = tuple(data["inputs"].shape[1:])
        expected = preprocessor(pseudo_collate([data]), False)["inputs"].numpy()
        if path == MASK_RCNN:  # a detector's file pads
            expected = expected[..., : size[0], : size[1]]
        found = model._prepare(picture, model._prepared_size(height, width))
        assert found.shape == expected.shape and found.dtype == np.float32
        levels = np.abs(found - expected) * unit
        assert levels.max() < 1.001 and (levels > 0.1).mean() < 0.01  # by plain interpolation of 0.13
        assert np.array_equal(found[..., size[0] :, :], expected[..., size[0] :, :])
        np.testing.assert_allclose(session.run(["image"], dict(picture=picture))[0], found, rtol=1e-5, atol=1e-5)
        sizes = session.run(["size", "prepared_size"], dict(picture=picture))
        assert [tuple(one) for one in sizes] == [(height, width), size]


def test_sizes_are_mmcv_s_rounding_included(detector):
    steps = dict(resize=dict(scale=[1333, 800], keep_ratio=True), pad_divisor=1, pad_value=0)
    model = Model(detector(NOTHING, preparation=json.dumps(steps)))
    text = f"g (int64[2] size) => (int64[2] prepared_size) {{ {preprocessing._prepared_size(steps['resize'])} }}"
    session = runtime.InferenceSession(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}').SerializeToString()
    )
    random = np.random.default_rng(0)
    for height, width in random.integers(20, 5000, (2000, 2)).tolist():
        expected = mmcv.rescale_size((width, height), (1333, 800))[::-1]
        if min(expected):
            assert model._prepared_size(height, width) == expected
            assert tuple(session.run(None, dict(size=np.array([height, width])))[0]) == expected


@pytest.mark.parametrize(
    "path, options, told",
    [
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.1.type": "ResizeShortestEdge"}, "ResizeShortestEdge"),
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.1.interpolation": "bicubic"}, "interpolation='bicubic'"),
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.1": dict(type="Resize", scale_factor=2.0)}, "scale_factor=2"),
        (MASK_RCNN, {"test_dataloader.dataset.pipeline.0.to_float32": True}, "to_float32=True"),
        (MASK_RCNN, {"model.data_preprocessor.type": "ImgDataPreprocessor"}, "'ImgDataPreprocessor'"),
        (FPN, {"model.data_preprocessor.test_cfg": dict(size=(512, 512))}, "size=(512, 512)"),
        (FPN, {"model.test_cfg.mode": "slide"}, "mode='slide'"),
        (CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes-4band.py", {}, "LoadRasterFromFile"),
    ],
)
def test_what_a_file_cannot_tell_is_named(path, options, told, detector):
    cfg = Config.fromfile(path)
    for key, value in options.items():  # merged, a step would keep what another type knows
        *parents, last = key.split(".")
        place = cfg._cfg_dict
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place[parent]
        place[int(last) if isinstance(place, list) else last] = ConfigDict(value) if isinstance(value, dict) else value
    found = preprocessing.preparation(cfg)
    assert list(found) == ["unknown"] and told in found["unknown"]
    with pytest.raises(ValueError) as raised:
        preprocessing.check_preparation("model", found)
    assert told in str(raised.value) and "\n" not in str(raised.value)
    file = detector(NOTHING, preparation=json.dumps(found))
    with pytest.raises(ValueError, match="cannot tell how to prepare pictures") as raised:
        Model(file)
    assert told in str(raised.value)


def test_a_detector_that_takes_pictures_answers_in_their_pixels(detector):
    found = dict(
        boxes=np.array([[8, 16, 40, 80], [100, 30, 150, 96]], np.float32),
        scores=np.array([0.9, 0.4], np.float32),
        labels=np.array([1, 0]),
        masks=np.random.default_rng(0).random((2, 28, 28), dtype=np.float32),
    )
    file = detector(found)
    plain = Model(file)
    taking = preprocessing.with_preprocessing(onnx.load(file))
    onnx.checker.check_model(taking, full_check=True)
    assert [one.domain for one in taking.opset_import] == [""]
    assert {one.key: one.value for one in taking.metadata_props} == {
        one.key: one.value for one in onnx.load(file).metadata_props
    }
    onnx.save(taking, file)
    picture = picture_of(300, 440)  # becomes 100x147
    session = runtime.InferenceSession(file)
    outputs = dict(zip(found, session.run(list(found), dict(picture=picture)), strict=True))
    np.testing.assert_allclose(outputs["boxes"], found["boxes"] / np.float32([147 / 440, 1 / 3] * 2), rtol=1e-6)
    for name in ("scores", "labels", "masks"):
        assert np.array_equal(outputs[name], found[name])
    for one, other in zip(Model(file)(picture), plain(picture), strict=True):
        assert np.array_equal(one, other)


def test_a_segmentor_that_takes_pictures(segmentor, call, tmp_path):
    out = tmp_path / "model.onnx"
    code, printed, _ = call("export", segmentor.config, segmentor.checkpoint, "--out", out, "--with-preprocessing")
    assert code == 0 and list(tmp_path.iterdir()) == [out]
    assert re.search(r"prepared        within [01]\.0 grey levels of OpenCV; 0\.\d\d% ", printed)
    assert "of the pixels are of another class (4 images of the test set)" in printed
    file = onnx.load(out)
    onnx.checker.check_model(file, full_check=True)
    assert [one.domain for one in file.opset_import] == [""]
    assert [one.name for one in file.graph.input] == ["picture"]
    predictor = Predictor(*segmentor, device="cpu")
    session = runtime.InferenceSession(out)
    for height, width in [(64, 97), (203, 330)]:
        (grid,) = (picture_of(6, 8),)
        picture = mmcv.imresize(grid, (width, height))
        (found,) = session.run(["segmentation_map"], dict(picture=picture))
        expected = predictor.predict(np.ascontiguousarray(picture[..., ::-1])).labels
        assert found.dtype == np.uint8 and found.shape == (height, width)
        assert (found != expected).mean() < 0.01 and len(np.unique(found)) > 1


def test_a_detector_pads_pictures_that_do_not_end_with_its_cells(mask_rcnn, mask_rcnn_file, tmp_path):
    onnx.save(preprocessing.with_preprocessing(onnx.load(mask_rcnn_file)), tmp_path / "model.onnx")
    moved = pictures.check_pictures(tmp_path / "model.onnx", *mask_rcnn)
    assert moved.pictures == "4 images of the test set"
    assert moved.grey_levels < 1.001 and moved.share < 0.1 and moved.shift is not None


@pytest.mark.parametrize(
    "step, right, wrong, message",
    [
        (
            "_fixed_taps",
            "rows_exact = Sub (rows_scaled, middle)",
            "rows_exact = Identity (rows_scaled)",
            r"deviates by [\d.]+ grey levels$",
        ),
        ("_padded", "Neg (prepared_size)", "Neg (size)", r"is \(1, 3, .*\), not \(1, 3, .*\)$"),
        ("_segmentor_s_end", "prepared_size, rows", "size, rows", r"[\d.]+% is found differently"),
    ],
)
def test_a_file_that_prepares_pictures_otherwise_is_refused(
    step, right, wrong, message, segmentor, segmentor_file, tmp_path, monkeypatch
):
    true = getattr(preprocessing, step)
    assert right in true(*WRITERS[step])
    monkeypatch.setattr(preprocessing, step, lambda *args: true(*args).replace(right, wrong))
    onnx.save(preprocessing.with_preprocessing(onnx.load(segmentor_file)), tmp_path / "model.onnx")
    with pytest.raises(RuntimeError, match=message):
        pictures.check_pictures(tmp_path / "model.onnx", *segmentor)


def test_what_the_test_set_raises_is_one_line_and_no_file(segmentor, segmentor_file, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise AssertionError("no such\nsplit")

    def write(program: None, path: Path, *_: object) -> None:
        shutil.copy(segmentor_file, path)

    monkeypatch.setattr(pictures.DATASETS, "build", fail)
    monkeypatch.setattr(export, "_trace", lambda *_: None)  # it has been, for this file
    monkeypatch.setattr(export, "write_onnx", write)
    with pytest.raises(RuntimeError, match=r"^the file is not written: AssertionError: no such split$"):
        export.export_model(*segmentor, tmp_path / "model.onnx", takes_pictures=True)
    assert list(tmp_path.iterdir()) == []


def test_without_the_test_set_pictures_are_made(segmentor, segmentor_file, tmp_path):
    onnx.save(preprocessing.with_preprocessing(onnx.load(segmentor_file)), tmp_path / "model.onnx")
    (tmp_path / "moved.py").write_text(
        f"_base_ = '{segmentor.config}'\ntest_dataloader = dict(dataset=dict(data_root='{tmp_path}/none'))"
    )
    moved = pictures.check_pictures(tmp_path / "model.onnx", str(tmp_path / "moved.py"), segmentor.checkpoint)
    assert moved.pictures == "3 generated pictures"
    assert moved.grey_levels < 1.001 and moved.share < 0.01 and moved.shift is None


def test_detections_are_compared_with_their_counterparts():
    boxes = np.array([[0, 0, 10, 10], [20, 0, 40, 10], [50, 0, 60, 10], [70, 0, 80, 10]], np.float32)
    scores, labels = np.array([0.9, 0.8, 0.7, 0.1], np.float32), np.array([0, 1, 1, 0])
    moved = boxes + np.float32([[0, 0, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0], [9, 0, 9, 0]])
    found = Detections(moved, scores, np.array([0, 1, 0, 0]), None)
    # The third is of another class, here and there; the fourth is unsure.
    assert pictures.compare_detections(found, Instances(boxes, scores, labels, None)) == (2, 6, 3.0)
    none = Detections(*(NOTHING[name] for name in ("boxes", "scores", "labels")), None)
    assert pictures.compare_detections(none, Instances(boxes, scores, labels, None)) == (3, 3, 0.0)
    assert pictures.compare_detections(none, Instances(*none)) == (0, 0, 0.0)


def test_what_cannot_take_pictures_is_one_line(segmentor, tmp_path):
    for out, part, message in [
        ("model.pt2", None, r"model\.pt2: only \.onnx files"),
        ("model.onnx", "backbone", "not into a backbone"),
    ]:
        with pytest.raises(ValueError, match=message) as raised:
            export.export_model(*segmentor, tmp_path / out, part, takes_pictures=True)
        assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []
