"""The runtime returns the results of mmdet and mmseg without these libraries."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmdet.structures.bbox import bbox_overlaps
from mmengine.config import Config
from PIL import Image
from pycocotools import mask as coco_mask

from xcit_mm.deployment import ExportTarget, export_model, run, runtime
from xcit_mm.deployment.runtime import images
from xcit_mm.prediction import Predictor

onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
preprocessing_graph = pytest.importorskip("xcit_mm.deployment.preprocessing_graph")
# As sitecustomize, it hides these libraries from run.py.
BLOCKER = """
import sys
class Hider:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "mmcv", "mmengine", "mmdet", "mmseg", "cv2", "xcit_mm", "pycocotools"):
            raise ModuleNotFoundError(f"{name} is hidden")
sys.meta_path.insert(0, Hider())
"""


def smooth_image(height: int, width: int) -> np.ndarray:
    grid = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return mmcv.imresize(grid, (width, height))


def test_masks_and_boxes_are_mmdet_s(raw_detections, detector):
    model = runtime.Model(detector())
    assert model.classes == ["circle", "square"]
    result = model(smooth_image(300, 450))

    logits = torch.from_numpy(raw_detections["masks"]).logit()[:, None].repeat(1, 2, 1, 1)
    boxes = torch.from_numpy(raw_detections["boxes"].copy())
    masks = FCNMaskHead(num_classes=2)._predict_by_feat_single(
        logits,
        boxes,
        torch.from_numpy(raw_detections["labels"]),
        dict(scale_factor=(1 / 3, 1 / 3), ori_shape=(300, 450)),
        Config(dict(mask_thr_binary=0.5)),
        rescale=True,
    )
    assert result.masks.shape == (5, 300, 450) and result.masks.dtype == bool
    assert (result.masks != masks.numpy()).sum() <= 2 and masks.sum() > 10000  # pixels of just the threshold
    np.testing.assert_allclose(result.boxes, boxes.numpy().clip(0, [450, 300, 450, 300]), rtol=1e-5, atol=1e-4)
    assert np.array_equal(result.scores, raw_detections["scores"]) and np.array_equal(
        result.labels, raw_detections["labels"]
    )
    sure = model(smooth_image(300, 450), score_thr=0.65)
    assert sure.scores.tolist() == pytest.approx([0.9, 0.8, 0.7])
    assert np.array_equal(sure.masks, result.masks[:3])


def test_model_without_masks_and_image_without_objects(raw_detections, detector):
    del raw_detections["masks"]
    model = runtime.Model(detector(task="object detection", test_cfg='{"score_thr": 0.05}'))
    image = smooth_image(60, 90)
    assert model(image).masks is None
    empty = model(image, score_thr=0.95)
    assert empty.boxes.shape == (0, 4)
    assert np.array_equal(runtime.draw(image, empty, model.classes), image)
    assert runtime.to_json(empty, model.classes) == dict(instances=[])


def test_segmentation_maps_are_mmseg_s(segmentor, segmentor_file, shapes):
    model, predictor = runtime.Model(segmentor_file, threads=1), Predictor(*segmentor, device="cpu")
    photos = sorted((shapes / "images" / "validation").iterdir())
    for image in [*map(runtime.read_image, photos), smooth_image(203, 330)]:
        expected = predictor(np.ascontiguousarray(image[..., ::-1])).segmentation
        found = model(image).labels
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert (found != expected).mean() < 0.01
        assert len(np.unique(found)) > 1


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("count, threshold", [(3, None), (300, None), (1, 0.3)])
def test_resized_maps_are_torch_s_in_strips_and_in_files(align_corners, count, threshold, monkeypatch):
    logits = torch.randn(1, count, 13, 21, generator=torch.Generator().manual_seed(0))
    whole = F.interpolate(logits, (40, 33), mode="bilinear", align_corners=align_corners)
    expected = whole.argmax(1)[0] if count > 1 else (whole.sigmoid() > threshold)[0, 0]
    monkeypatch.setattr(images, "_STRIP", count * 33 * 7)
    found = images.to_labels(logits[0].numpy(), (40, 33), align_corners, threshold)
    assert np.array_equal(found, expected.numpy())
    assert found.dtype == (np.uint16 if count > 256 else np.uint8)

    facts = dict(align_corners=align_corners, threshold=threshold, classes=["a name"] * max(count, 2))
    model = onnx.ModelProto(ir_version=10)
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in facts.items()})
    graph = preprocessing_graph.segmentor_graph(model)
    onnx.checker.check_model(graph, full_check=True)
    padded = F.pad(logits, (0, 4, 0, 5), value=100)
    inputs = dict(logits=padded.numpy(), size=np.array([40, 33]), resized_size=np.array([13, 21]))
    (found,) = onnxruntime.InferenceSession(graph.SerializeToString()).run(None, inputs)
    assert np.array_equal(found, expected.numpy())
    assert found.dtype == (np.int32 if count > 256 else np.uint8)


def test_photos_are_rotated_as_by_mmcv(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # an upright camera
    Image.fromarray(smooth_image(40, 60)).save(tmp_path / "photo.jpg", exif=exif, quality=95)
    image = runtime.read_image(tmp_path / "photo.jpg")
    assert image.shape == (60, 40, 3)
    assert np.abs(image[..., ::-1].astype(int) - mmcv.imread(str(tmp_path / "photo.jpg"))).max() <= 2
    Image.fromarray(smooth_image(40, 60)).convert("L").save(tmp_path / "grey.png")
    assert runtime.read_image(tmp_path / "grey.png").shape == (40, 60, 3)


def test_colours_of_16_bits_are_read_as_by_mmcv(tmp_path):
    deep = np.random.default_rng(0).integers(0, 65536, (40, 60, 3), dtype=np.uint16)
    for name in ("deep.png", "deep.tif"):
        mmcv.imwrite(deep, str(tmp_path / name))
        found, expected = runtime.read_image(tmp_path / name)[..., ::-1], mmcv.imread(str(tmp_path / name))
        assert np.array_equal(found, deep >> 8)
        assert np.abs(found.astype(int) - expected).max() <= (name == "deep.tif")  # which OpenCV rounds


@pytest.mark.parametrize("kind", ["detector", "segmentor"])
def test_runs_without_torch(kind, request, detector, tmp_path):
    model = detector() if kind == "detector" else request.getfixturevalue("segmentor_file")
    alone = tmp_path / "product"
    alone.mkdir()
    (alone / "sitecustomize.py").write_text(BLOCKER)
    shutil.copy(run.__file__, alone / "runner.py")
    shutil.copytree(Path(runtime.__file__).parent, alone / "runtime")
    image = smooth_image(203, 330)
    Image.fromarray(image).save(alone / "photo.png")

    def python(*args: object) -> subprocess.CompletedProcess:
        command = [sys.executable, *map(str, args)]
        return subprocess.run(command, cwd=alone, env=dict(PYTHONPATH=str(alone)), capture_output=True, text=True)

    assert "torch is hidden" in python("-c", "import torch").stderr
    result = python("runner.py", model, "photo.png", "--out", "drawn.png", "--json", "results.json")
    assert result.returncode == 0, result.stderr
    drawn, written = np.array(Image.open(alone / "drawn.png")), json.loads((alone / "results.json").read_text())
    local = runtime.Model(model)
    expected = local(image, score_thr=0.3)
    assert np.array_equal(drawn, runtime.draw(image, expected, local.classes))
    assert written == runtime.to_json(expected, local.classes)
    assert len(result.stdout.splitlines()) == len(next(iter(written.values()))) > 1


def test_json_has_masks_that_pycocotools_reads(detector):
    model = runtime.Model(detector())
    result = model(smooth_image(300, 450))
    instances = runtime.to_json(result, model.classes)["instances"]
    assert [instance["name"] for instance in instances] == ["circle", "square", "square", "circle", "square"]
    for instance, mask, box in zip(instances, result.masks, result.boxes, strict=True):
        code = coco_mask.frPyObjects(instance["mask"], *instance["mask"]["size"])
        assert np.array_equal(coco_mask.decode(code), mask)
        assert instance["box"] == pytest.approx(box, abs=0.01)
    labels = np.array([[0, 0, 2], [2, 2, 2]], np.uint8)
    regions = runtime.to_json(runtime.Segmentation(labels), ["sky", "road", "car"])["regions"]
    assert regions == [
        dict(label=0, name="sky", pixels=2, mask=dict(size=[2, 3], counts=[0, 1, 1, 1, 3])),
        dict(label=2, name="car", pixels=4, mask=dict(size=[2, 3], counts=[1, 1, 1, 3])),
    ]


def test_results_are_drawn_at_their_place(detector):
    image = np.full((300, 450, 3), 250, np.uint8)
    model = runtime.Model(detector())
    result = model(image, score_thr=0.85)
    drawn = runtime.draw(image, result, model.classes)
    left, top, right, bottom = result.boxes[0].astype(int)
    colour = drawn[top + 40, left]  # the box's side
    inside = result.masks[0][top + 5 : bottom - 5, left + 5 : right - 5]
    part = drawn[top + 5 : bottom - 5, left + 5 : right - 5]
    assert np.array_equal(part[inside], np.broadcast_to((250 + colour.astype(int)) // 2, part[inside].shape))
    assert (part[~inside] == 250).all()
    drawn[max(top - 20, 0) : bottom + 3, left - 2 : right + 40] = 250  # the box with its label box above
    assert (drawn == 250).all()

    labels = np.zeros((300, 450), np.uint8)
    labels[:, 200:] = 1
    painted = runtime.draw(image, runtime.Segmentation(labels), model.classes)
    assert painted.shape[0] == 300 and painted.shape[1] > 450  # with a legend
    assert len(np.unique(painted[:, :200].reshape(-1, 3), axis=0)) == 1
    assert not np.array_equal(painted[0, 0], painted[0, 300])


def test_bad_input_ends_in_one_line(detector, segmentor_file, tmp_path, monkeypatch):
    model = detector()
    text = tmp_path / "text.onnx"
    text.write_text("no model")
    backbone = onnx.load(segmentor_file)
    onnx.helper.set_model_props(backbone, dict(task="backbone"))
    onnx.save(backbone, tmp_path / "backbone.onnx")
    onnx.helper.set_model_props(backbone, {})
    onnx.save(backbone, tmp_path / "foreign.onnx")
    photo = tmp_path / "photo.png"
    Image.fromarray(smooth_image(60, 90)).save(photo)
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(tmp_path / "deep.png")
    Image.fromarray(smooth_image(1, 2000)).save(tmp_path / "narrow.png")
    before = sorted(tmp_path.iterdir())
    for *args, message in [
        (tmp_path / "none.onnx", photo, "FileNotFoundError: no model at"),
        (text, photo, "text.onnx is not an ONNX file that can be run"),
        (tmp_path / "backbone.onnx", photo, "is a backbone, which predicts nothing"),
        (tmp_path / "foreign.onnx", photo, "not written by tools/export.py"),
        (model, tmp_path / "none.png", "FileNotFoundError: no image at"),
        (model, text, "text.onnx cannot be read"),
        (model, tmp_path / "deep.png", "more than 8 bits a channel"),
        (model, tmp_path / "narrow.png", "resized to 0x160 for the model"),
        (model, photo, "--max-per-img", 5, "max_per_img=5: the file has no such input"),
        (model, photo, "--max-per-img", 0, "max_per_img=0: must be positive"),
        (model, photo, "--score-thr", "nan", "score_thr=nan, iou_threshold=None: must be from 0 to 1"),
        (model, photo, "--iou-threshold", -1, "iou_threshold=-1.0: must be from 0 to 1"),
        (model, photo, "--device", "cuda", "onnxruntime cannot use CUDAExecutionProvider"),
        (model, photo, "--out", tmp_path / "drawn.jpg", "name it .png"),
        (model, photo, "--json", tmp_path / "none" / "found.json", "no folder"),
    ]:
        monkeypatch.setattr(sys, "argv", ["run.py", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            run.main()
        assert message in end.value.code and "\n" not in end.value.code
    with pytest.raises(ValueError, match=r"give it as \(H, W, 3\)"):
        runtime.Model(model)(np.zeros((5, 5), np.uint8))
    with pytest.raises(ValueError, match="device='tpu', runtime='onnxruntime': must be one of cpu, cuda"):
        runtime.Model(model, device="tpu")
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(
        ValueError, match=r"60x90 pixels, resized to 100x150 .* takes 129 or more a side: pad or enlarge"
    ):
        runtime.Model(detector(min_side="129"))(smooth_image(60, 90))
    with pytest.raises(ValueError, match=r"resized to 100x150, but the file takes \[96, 160\]: export a larger one"):
        runtime.Model(detector(size="[96, 160]"))(smooth_image(60, 90))
    unresized = json.dumps(dict(resize=None, pad_divisor=1, pad_value=0))
    with pytest.raises(ValueError, match=r"60x90 .* takes 129 or more a side"):
        runtime.Model(detector(min_side="129", preprocessing=unresized))(smooth_image(60, 90))
    with pytest.raises(ValueError, match=r"60x90, but the file takes \[32, 160\]: export a larger one"):
        runtime.Model(detector(size="[32, 160]", preprocessing=unresized))(smooth_image(60, 90))
    assert runtime.Model(detector(size="[128, 192]"))._preprocess(smooth_image(60, 90), (100, 150)).shape[2:] == (
        128,
        192,
    )


def test_folder_of_images_is_predicted_though_one_is_broken(detector, tmp_path, monkeypatch, capsys):
    photos, drawn, found = (tmp_path / name for name in ("photos", "drawn", "found"))
    photos.mkdir()
    for name in ("a.png", "c.jpg"):
        Image.fromarray(smooth_image(60, 90)).save(photos / name)
    (photos / "b.png").write_text("no image")
    (photos / "notes.txt").write_text("no image either")
    monkeypatch.setattr(sys, "argv", ["run.py", *map(str, (detector(), photos, "--out", drawn, "--json", found))])
    assert run.main() == 1
    printed = capsys.readouterr()
    assert [line for line in printed.out.splitlines() if "photos" in line] == [f"{photos}/a.png", f"{photos}/c.jpg"]
    assert printed.err.count("\n") == 1 and "b.png cannot be read" in printed.err
    assert sorted(path.name for path in drawn.iterdir()) == ["a.png.png", "c.jpg.png"]
    assert len(json.loads((found / "c.jpg.json").read_text())["instances"]) == 4


def test_options_of_the_file_select_the_detections(mask_rcnn_file, shapes, tmp_path, monkeypatch, capsys):
    """Results are compared with mmdet's in test_detectors.py."""
    photo, found = next((shapes / "images" / "validation").iterdir()), tmp_path / "found.json"
    options = ("--score-thr", 0.02, "--iou-threshold", 0.2, "--max-per-img", 12, "--json", found)
    monkeypatch.setattr(sys, "argv", ["run.py", *map(str, (mask_rcnn_file, photo, *options))])
    assert run.main() == 0 and capsys.readouterr().err == ""
    instances = json.loads(found.read_text())["instances"]
    assert len(instances) == 12 and min(instance["score"] for instance in instances) > 0.02
    boxes = torch.tensor([instance["box"] for instance in instances])
    labels = torch.tensor([instance["label"] for instance in instances])
    same_class = (labels[:, None] == labels).triu(1)
    assert bbox_overlaps(boxes, boxes)[same_class].max() < 0.21
    image, model = runtime.read_image(photo), runtime.Model(mask_rcnn_file)
    assert len(model(image).scores) > 12 and len(model(image, score_thr=1.0).scores) == 0


@pytest.fixture(scope="module")
def fixed_size_file(segmentor, tmp_path_factory) -> Path:
    """The segmentor's file for one image of 128x224 pixels."""
    path = tmp_path_factory.mktemp("fixed") / "model.onnx"
    export_model(*segmentor, ExportTarget(path, size=(128, 224)))
    return path


@pytest.mark.parametrize("kind", ["detector", "segmentor"])
def test_openvino_returns_the_results_of_onnxruntime(kind, request, detector):
    pytest.importorskip("openvino")
    file = detector() if kind == "detector" else request.getfixturevalue("segmentor_file")
    image = smooth_image(203, 330)
    found, expected = (runtime.Model(file, runtime=name)(image) for name in ("openvino", "onnxruntime"))
    for values, target in zip(found, expected, strict=True):
        assert values.shape == target.shape and (np.abs(values - target * 1.0) > 1e-3).mean() < 0.001
    with pytest.raises(ValueError, match="it runs on the CPU"):
        runtime.Model(file, runtime="openvino", device="cuda")


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_image_smaller_than_a_fixed_size_is_padded_as_by_mmseg(name, segmentor, fixed_size_file, shapes, tmp_path):
    pytest.importorskip(name)
    padded = tmp_path / "padded.py"
    preprocessor = "dict(test_cfg=dict(_delete_=True, size=(128, 224)))"
    padded.write_text(f'_base_ = "{segmentor.config}"\nmodel = dict(data_preprocessor={preprocessor})')
    model = runtime.Model(fixed_size_file, runtime=name)
    predictor = Predictor(padded, segmentor.checkpoint, device="cpu")
    photos = map(runtime.read_image, sorted((shapes / "images" / "validation").iterdir()))
    for image in [*photos, smooth_image(203, 340), smooth_image(20, 60)]:
        expected = predictor(np.ascontiguousarray(image[..., ::-1])).segmentation
        found = model(image).labels
        assert found.shape == expected.shape == image.shape[:2]
        assert (found != expected).mean() < 0.01


def test_image_larger_than_a_fixed_size_ends_in_one_line(fixed_size_file, tmp_path, monkeypatch):
    Image.fromarray(smooth_image(300, 60)).save(tmp_path / "tall.png")
    monkeypatch.setattr(sys, "argv", ["run.py", str(fixed_size_file), str(tmp_path / "tall.png")])
    with pytest.raises(SystemExit, match=r"resized to 200x40, but the file takes \[128, 224\]: export a larger one$"):
        run.main()


def test_missing_openvino_and_missing_provider_end_in_one_line(detector, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ModuleNotFoundError, match=r"^openvino is not installed: pip install openvino$"):
        runtime.Model(detector(), runtime="openvino")
    with pytest.raises(ValueError, match="onnxruntime cannot use NoSuchProvider"):
        runtime.Model(detector(), providers=["NoSuchProvider"])


def test_windows_are_mmseg_s(segmentor, segmentor_file, tmp_path):
    _, model = segmentor.load()
    model.test_cfg = Config(dict(mode="slide", crop_size=(64, 96), stride=(40, 64)))
    file = onnx.load(segmentor_file)
    facts = {prop.key: prop.value for prop in file.metadata_props}
    onnx.helper.set_model_props(file, facts | dict(test_cfg=json.dumps(model.test_cfg.to_dict())))
    onnx.save(file, tmp_path / "model.onnx")
    for size in [(96, 160), (64, 96), (32, 224)]:
        image = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected = model.slide_inference(image, [dict(ori_shape=size, img_shape=size)])
        slider = runtime.Model(tmp_path / "model.onnx")
        found = slider._slide(image.numpy(), slider._windows)["logits"]
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-3)


def test_ctrl_c_ends_in_one_line(detector, tmp_path, monkeypatch, capsys):
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    Image.fromarray(smooth_image(60, 90)).save(tmp_path / "photo.png")
    monkeypatch.setattr(sys, "argv", ["run.py", str(detector()), str(tmp_path / "photo.png")])
    monkeypatch.setattr(runtime.Model, "__call__", interrupt)
    assert run.main() == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_closed_pipe_ends_without_a_traceback(detector, close_stdout, tmp_path, monkeypatch):
    Image.fromarray(smooth_image(60, 90)).save(tmp_path / "photo.png")
    monkeypatch.setattr(sys, "argv", ["run.py", str(detector()), str(tmp_path / "photo.png")])
    close_stdout()
    assert run.main() == 141
    sys.stdout.flush()


def test_full_disk_keeps_the_earlier_file(tmp_path, monkeypatch):
    target = tmp_path / "found.json"
    target.write_text("earlier")

    def full(path: Path, content: bytes) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        run._write(target, b"later")
    assert target.read_text() == "earlier" and list(tmp_path.iterdir()) == [target]
