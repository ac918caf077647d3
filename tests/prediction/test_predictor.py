"""A model by its name in Python: what `xcit-mm predict` finds as arrays, drawings and formats of
other libraries.
"""

import io
from pathlib import Path

import cv2
import numpy as np
import pytest
import supervision as sv
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from PIL import Image
from torch.nn.utils import prune

import xcit_mm
from xcit_mm.models.build import load_model
from xcit_mm.prediction import Prediction


@pytest.fixture(scope="module")
def photo(shapes, tmp_path_factory) -> Path:
    """A photo that EXIF turns, (64, 96) after turning."""
    path = tmp_path_factory.mktemp("photo") / "turned.jpg"
    pixels = cv2.imread(str(sorted((shapes / "images" / "validation").iterdir())[0]))[:64]
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.fromarray(np.rot90(pixels)[..., ::-1]).save(path, exif=exif, quality=95)
    return path


@pytest.fixture(scope="module")
def folders(models, tmp_path_factory) -> dict[str, Path]:
    """Work folders of training runs."""
    found = {}
    for kind, (config, checkpoint) in models.items():
        folder = found[kind] = tmp_path_factory.mktemp(kind)
        Config.fromfile(config).dump(folder / "mine.py")
        (folder / "last_checkpoint").write_text(checkpoint)
    return found


@pytest.fixture(scope="module")
def predictors(folders) -> dict[str, xcit_mm.Predictor]:
    return {
        kind: xcit_mm.Predictor.from_pretrained(folder, device="cpu")
        for kind, folder in folders.items()
    }


def test_a_detection_is_arrays_by_descending_score(predictors, folders, photo):
    prediction = predictors["det"](photo)
    count = len(prediction)
    assert prediction.boxes.shape == (count, 4) and prediction.labels.shape == (count,)
    assert prediction.masks.shape == (count, 64, 96) and prediction.masks.dtype == bool
    assert len(prediction.above(prediction.scores[2])) == 2
    table = prediction.to_pandas()
    assert table.columns.tolist() == ["left", "top", "right", "bottom", "score", "label", "name"]
    assert len(table) == count and table["name"][0] == prediction.names[prediction.labels[0]]
    min_score = float(prediction.scores[2])
    options = dict(device="cpu", min_score=min_score)
    assert len(xcit_mm.Predictor.from_pretrained(folders["det"], **options)(photo)) == 3


def test_a_segmentation_is_a_map_and_has_no_boxes(predictors, photo):
    prediction = predictors["seg"](photo)
    assert prediction.segmentation.shape == (64, 96) and not hasattr(prediction, "boxes")
    assert repr(prediction).startswith("Prediction of 64x96 pixels: ")


@pytest.mark.parametrize("kind", ["det", "seg"])
def test_paths_pillow_and_arrays_give_the_same_prediction(kind, predictors, photo):
    predict = predictors[kind]
    pixels = cv2.imread(str(photo))
    single = predict(str(photo))
    with Image.open(photo) as image:
        several = predict([photo, image, pixels, pixels[:48]])
    for found in several[:3]:
        assert np.abs(found.image.astype(int) - single.image).mean() < 1  # two decoders of JPEG
    for found in (several[0], several[2]):
        assert np.array_equal(found.image, single.image)
        if kind == "det":
            assert found.to_coco() == single.to_coco()
        else:
            assert np.array_equal(found.segmentation, single.segmentation)
    assert several[3].image.shape == (48, 96, 3) and predict([]) == []


def test_images_of_several_sizes_are_not_padded_to_one_batch(folders, predictors, photo):
    pixels = cv2.imread(str(photo))
    images = [pixels, pixels[:, :64], pixels[:48], pixels[:48]]
    predict = xcit_mm.Predictor.from_pretrained(folders["seg"], device="cpu", batch_size=4)
    for image, found in zip(images, predict(images), strict=True):
        single = predictors["seg"](image)
        assert (found.segmentation == single.segmentation).mean() > 0.99  # rounding of batches


@pytest.mark.parametrize("kind", ["det", "seg"])
def test_a_notebook_shows_the_drawing(kind, predictors, photo):
    found = predictors[kind](photo)
    shown = Image.open(io.BytesIO(found._repr_png_()))
    assert np.array_equal(np.asarray(shown), np.asarray(found.plot()))
    assert np.array_equal(
        np.asarray(found.plot(0.0, 0.2, False))[..., ::-1], found.draw(0.0, 0.2, False)
    )
    huge = Prediction(
        np.zeros((3000, 2000, 3), np.uint8), None, np.zeros((3000, 2000), np.uint8), ("sky",)
    )
    assert max(Image.open(io.BytesIO(huge._repr_png_())).size) == 1280


def test_a_raster_has_no_drawing():
    found = Prediction(
        np.zeros((40, 60, 5), np.uint8), None, np.zeros((40, 60), np.uint8), ("sky",)
    )
    assert found._repr_png_() is None and repr(found) == "Prediction of 40x60 pixels: sky"
    with pytest.raises(ValueError, match=r"\(40, 60, 5\): only \(H, W, 3\)"):
        found.plot()


def squares(compact: bool) -> Prediction:
    masks = np.zeros((2, 40, 60), bool)
    masks[0, 5:15, 5:15] = masks[1, 20:30, 40:50] = True
    boxes = np.array([[5, 5, 15, 15], [40, 20, 50, 30]], np.float32)
    found = sv.Detections(boxes, masks, np.array([0.9, 0.4]), np.array([1, 0]))
    found = found.to_compact_masks() if compact else found
    return Prediction(np.zeros((40, 60, 3), np.uint8), found, None, ("cat", "dog"))


@pytest.mark.parametrize("compact", [True, False])
def test_supervision_reads_the_objects(compact):
    prediction = squares(compact)
    detections = prediction.to_supervision()
    assert np.array_equal(detections.xyxy, prediction.boxes)
    assert np.array_equal(np.asarray(detections.mask), prediction.masks)
    assert detections.class_id.tolist() == [1, 0]
    assert detections.confidence.tolist() == [0.9, 0.4]
    assert detections["class_name"].tolist() == ["dog", "cat"]
    nothing = prediction.above(1)
    assert len(nothing.to_supervision()) == 0 and nothing.draw().sum() == 0


def test_compact_masks_are_drawn_and_stored_as_arrays_are():
    compact = squares(compact=True)
    arrays = squares(compact=False)
    assert np.array_equal(compact.masks, arrays.masks)
    assert np.array_equal(compact.draw(), arrays.draw())
    assert compact.to_coco() == arrays.to_coco()
    assert compact.above(1).masks.shape == (0, 40, 60)
    assert repr(compact) == "Prediction of 40x60 pixels: 1 dog, 1 cat"
    assert repr(compact.above(1)) == "Prediction of 40x60 pixels: no objects"


@pytest.mark.parametrize("compact", [True, False])
def test_coco_results_restore_the_prediction(compact):
    prediction = squares(compact)
    results = prediction.to_coco(5, [30, 10])
    restored = Prediction.from_coco(results, prediction.image, prediction.names, [30, 10])
    assert np.array_equal(restored.boxes, prediction.boxes)
    assert np.array_equal(restored.masks, prediction.masks)
    assert np.array_equal(restored.labels, prediction.labels)
    assert np.allclose(restored.scores, prediction.scores)
    assert len(Prediction.from_coco([], prediction.image, prediction.names)) == 0
    with pytest.raises(ValueError, match=r"masks of \[40, 60\] pixels, but the image has"):
        Prediction.from_coco(results, np.zeros((20, 60, 3), np.uint8), prediction.names, [30, 10])


@pytest.mark.parametrize(
    ("image", "kind", "message"),
    [
        ("none.jpg", FileNotFoundError, "none.jpg"),
        ("text.jpg", ValueError, "text.jpg: the file is broken or not an image"),
        (
            "http://127.0.0.1:9/a.jpg",
            OSError,
            "http://127.0.0.1:9/a.jpg cannot be downloaded: .*Connection refused",
        ),
        (
            np.zeros((40, 40, 3)),
            ValueError,
            r"image of float64, \(40, 40, 3\): give \(H, W, 3\), BGR, uint8",
        ),
        (np.zeros((40, 40), np.uint8), ValueError, r"image of uint8, \(40, 40\): give"),
        (
            Image.fromarray(np.zeros((40, 40), np.uint16)),
            ValueError,
            "image of mode I;16: give a path or an array",
        ),
        (torch.zeros(3, 40, 40), TypeError, "image of type Tensor: give a path"),
    ],
    ids=["missing", "text", "url", "float", "grey", "16 bits", "tensor"],
)
def test_a_wrong_image_is_rejected_in_one_line(
    image, kind, message, predictors, tmp_path, monkeypatch
):
    (tmp_path / "text.jpg").write_text("no image")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message) as error:
        predictors["seg"](image)
    assert "\n" not in str(error.value)


def test_a_wrong_name_lists_similar_names():
    with pytest.raises(ValueError, match="try maskrcnn_xcit_small_12_p16"):
        xcit_mm.Predictor.from_pretrained("maskrcnn_xcit_smal_12_p16")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("det", dict(device="cuda:99"), "^device cuda:99 cannot be used"),
        ("seg", dict(min_score=0.5), "only detectors have scores"),
        ("det", dict(overlap=9), "give the tile's side too"),
    ],
)
def test_an_option_that_does_not_fit_is_explained_in_words_of_python(
    kind, options, message, models
):
    with pytest.raises(ValueError, match=message):
        xcit_mm.Predictor.from_config(*models[kind], **options)


@pytest.mark.parametrize("kind", ["det", "seg"])
def test_a_model_in_memory_predicts_as_one_from_files(kind, predictors, models, photo):
    cfg = predictors[kind].cfg
    predictor = xcit_mm.Predictor(load_model(cfg, models[kind][1]), cfg)
    prediction = predictor(photo)
    expected = predictors[kind](photo)
    if kind == "det":
        assert prediction.to_coco() == expected.to_coco()
    else:
        assert np.array_equal(prediction.segmentation, expected.segmentation)
    assert predictor.settings == predictors[kind].settings


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["det", "seg"])
def test_a_model_in_memory_can_still_be_trained(kind, dtype, predictors, models, photo):
    def state() -> list[tuple]:
        weights = model.state_dict(keep_vars=True).items()
        return [(key, id(value), value.stride(), value.sum().item()) for key, value in weights]

    model = load_model(predictors[kind].cfg, models[kind][1]).train()
    prune.l1_unstructured(model.neck.fpn_convs[0].conv, "weight", amount=0.1)
    before = state()
    predictor = xcit_mm.Predictor(model, predictors[kind].cfg, dtype=dtype)
    predictor(photo)
    assert state() == before
    assert model.training and all(weight.requires_grad for weight in model.parameters())
    blocks = model.backbone.blocks, predictor.model.backbone.blocks
    pairs = zip(*(part.parameters() for part in blocks), strict=True)
    assert dtype != "float32" or all(own.data_ptr() == its.data_ptr() for own, its in pairs)


@pytest.mark.parametrize("kind", ["det", "seg"])
def test_a_prediction_is_that_of_the_library(kind, predictors, models, photo):
    predictor = predictors[kind]
    prediction = predictor(photo)
    batch = pseudo_collate([predictor.preprocess(prediction.image)])
    with torch.no_grad():
        (sample,) = load_model(predictor.cfg, models[kind][1]).test_step(batch)
    expected = predictor.to_prediction(prediction.image, sample)
    if kind == "seg":
        assert np.array_equal(prediction.segmentation, expected.segmentation)
        return
    assert np.abs(prediction.boxes - expected.boxes).max() < 1e-3
    assert np.abs(prediction.scores - expected.scores).max() < 1e-5
    assert np.array_equal(prediction.labels, expected.labels)
    assert (prediction.masks == expected.masks).mean() > 0.9999


def test_a_name_that_the_package_lacks_is_an_attribute_error():
    assert not hasattr(xcit_mm, "Predicter") and "Predictor" in xcit_mm.__all__
