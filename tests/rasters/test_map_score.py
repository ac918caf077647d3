"""Scores of maps against labels, as a user counts them by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely
from helpers.pixel_segmentor import PixelSegmentor
from helpers.raster_files import ROTATED, UTM, noise, save, write_shapes
from rasterio.transform import Affine

from xcit_mm import predict_raster, score_raster
from xcit_mm.prediction.seams import outline

NAMES = ("background", "road", "house")


@pytest.fixture
def predicted(tmp_path) -> tuple[Path, np.ndarray]:
    """A map of three classes with 300 pixels without data, rotated, and its class numbers."""
    bands = noise(3, 12, 15, high=9).repeat(20, 1).repeat(20, 2)
    bands[:, :10, :30] = 0
    place = dict(crs="EPSG:32633", transform=ROTATED)
    raster = save(tmp_path / "a.tif", bands, nodata=0, **place)
    segmentor = PixelSegmentor(list(NAMES))
    out = predict_raster(raster, segmentor, tmp_path / "map.tif", tile=128)
    classes = segmentor.classes_of(bands.transpose(1, 2, 0))
    return out, np.where(bands[0], classes, 255)


def write_polygons(out: Path, classes: np.ndarray, shift: int = 0) -> Path:
    """Write each class of a map, moved to the right by some pixels, as a polygon."""
    shapes = [outline(classes == number, (shift, 0)) for number in (1, 2)]
    path = out.with_name("labels.gpkg")
    return write_shapes(path, shapes, "EPSG:3857", ROTATED, label=NAMES[1:])


def write_classes(out: Path, classes: np.ndarray, **profile: Any) -> Path:
    """Write a raster of classes with pixels of half the size and a margin."""
    dtype = profile.pop("dtype", np.uint8)
    fine = np.pad(classes, 3, constant_values=1).repeat(2, 0).repeat(2, 1).astype(dtype)
    place = ROTATED * Affine.translation(-3, -3) * Affine.scale(0.5)
    return save(out.with_name("l.tif"), fine, crs="EPSG:32633", transform=place, **profile)


@pytest.mark.parametrize("labels", ["polygons", "raster"])
def test_iou_is_that_of_the_pixels(labels, predicted):
    out, classes = predicted
    moved = np.roll(classes, 7, axis=1)
    moved[:, :7] = 255
    if labels == "polygons":
        path = write_polygons(out, classes, shift=7)
        moved = np.where(moved == 255, 0, moved)  # the rest is background
    else:
        path = write_classes(out, moved)
    scores = score_raster(out, path)
    assert list(scores.index) == [*NAMES, "mean"]
    counted = (moved != 255) & (classes != 255)
    for number, name in enumerate(NAMES):
        both = ((classes == number) & (moved == number) & counted).sum()
        either = (((classes == number) | (moved == number)) & counted).sum()
        assert scores.loc[name, "IoU"] == pytest.approx(both / either, abs=0.001)
        pixels = ((moved == number) & counted).sum()
        assert scores.loc[name, "pixels"] == pytest.approx(pixels, abs=3)
    assert scores.loc["mean", "IoU"] == pytest.approx(scores["IoU"][:-1].mean())


@pytest.mark.parametrize(("nodata", "counted"), [(None, [1, 2]), (2, [1])])
def test_nodata_and_255_of_a_raster_of_classes_do_not_count(nodata, counted, predicted):
    out, classes = predicted
    stored = np.where(classes == 0, 255, classes)
    scores = score_raster(out, write_classes(out, stored, nodata=nodata))
    assert scores.loc["mean", "pixels"] == np.isin(classes, counted).sum()


@pytest.mark.parametrize("dtype", ["int8", "int32", "float32"])
def test_negative_numbers_in_a_raster_of_classes_do_not_count(dtype, predicted, tmp_path):
    out, classes = predicted
    numbers = np.where(classes == 255, 0, classes).astype(dtype)
    numbers[100:120] = [[-1], [-2], [-3], [-99]] * 5
    if dtype == "float32":
        numbers[120:130] = np.nan
    place = dict(crs="EPSG:32633", transform=ROTATED)
    scores = score_raster(out, save(tmp_path / "l.tif", numbers, **place))
    without_label = 300 * (30 if dtype == "float32" else 20)
    assert scores.attrs["pixels"] == {
        "total": 72000,
        "scored": 72000 - 300 - without_label,
        "without a class in the map": 300,
        "without a label": without_label,
    }
    assert scores.loc["mean", "pixels"] == scores.attrs["pixels"]["scored"]


def test_nodata_of_64_bits_does_not_count(predicted, tmp_path):
    out, classes = predicted
    labels = write_classes(out, np.where(classes == 0, 9, classes), dtype=np.int64, nodata=9)
    assert score_raster(out, labels).loc["background", "pixels"] == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float32])
def test_pixels_beyond_a_raster_of_classes_do_not_count(dtype, predicted, tmp_path):
    out, classes = predicted
    part = classes[: len(classes) // 2]
    numbers = np.where(part == 255, 0, part).astype(dtype)
    labels = save(tmp_path / "l.tif", numbers, crs="EPSG:32633", transform=ROTATED)
    counted = int((part != 255).sum())
    assert score_raster(out, labels).loc["mean", "pixels"] == counted


def test_of_more_than_255_classes_255_is_one(tmp_path):
    names = [str(number) for number in range(300)]
    raster = save(tmp_path / "a.tif", noise(6, 64, 64, high=1000, dtype=np.uint16))
    out = predict_raster(raster, PixelSegmentor(names, bands=6), tmp_path / "map.tif", tile=64)
    with rasterio.open(out) as file:
        count = int((file.read() == 255).sum())
    assert count and score_raster(out, out).loc["255", "pixels"] == count


@pytest.mark.parametrize("moved", [False, True])
def test_labels_without_a_system_lie_on_the_raster_by_their_transforms(moved, predicted, tmp_path):
    out, classes = predicted
    place = ROTATED * Affine.translation(1000 if moved else 0, 0)
    labels = save(tmp_path / "l.tif", classes.astype(np.uint8), transform=place)
    if moved:
        with pytest.raises(ValueError, match=r"l\.tif lies elsewhere than the raster: assign"):
            score_raster(out, labels)
    else:
        assert score_raster(out, labels).loc["mean", "IoU"] == 1


def test_an_area_limits_the_pixels(predicted, tmp_path):
    out, classes = predicted
    area = [shapely.box(100, 50, 180, 90)]
    aoi = write_shapes(tmp_path / "area.gpkg", area, "EPSG:32633", ROTATED)
    scores = score_raster(out, write_polygons(out, classes), aoi)
    assert scores.loc["mean", "pixels"] == 80 * 40


@pytest.mark.parametrize("order", [1, -1])
def test_the_smaller_of_two_polygons_counts(order, tmp_path):
    raster = save(tmp_path / "a.tif", noise(3, 40, 40), **UTM)
    out = predict_raster(raster, PixelSegmentor(["road", "house"]), tmp_path / "m.tif", tile=64)
    shapes = [shapely.box(5, 5, 15, 15), shapely.box(0, 0, 30, 30)][::order]
    labels = write_shapes(tmp_path / "l.gpkg", shapes, label=["house", "road"][::order])
    pixels = score_raster(out, labels)["pixels"].to_dict()
    assert pixels == dict(road=800, house=100, mean=900)


def test_what_leaves_the_score_is_counted_by_its_reason(predicted, tmp_path, capsys):
    out, _ = predicted
    whole = shapely.box(0, 0, 300, 240)
    shapes = [shapely.box(50, 0, 60, 10), shapely.box(70, 0, 90, 10), whole]
    names = ["river", None, "road"]
    labels = write_shapes(tmp_path / "l.gpkg", shapes, "EPSG:32633", ROTATED, label=names)
    pixels = score_raster(out, labels).attrs["pixels"]
    assert pixels == {
        "total": 72000,
        "scored": 72000 - 300 - 100 - 200,
        "without a class in the map": 300,
        "in labels without a class": 200,
        "of a class that the model does not know": 100,
    }
    lines = capsys.readouterr().err
    assert "the model does not know river, but background, road, house" in lines
    assert "the score counts 71,400 of 72,000 pixels of the area (99.2%); left out: " in lines


def test_labels_of_other_classes_alone_are_an_error(predicted, tmp_path):
    shapes = [shapely.box(9, 9, 20, 20)]
    labels = write_shapes(tmp_path / "l.gpkg", shapes, transform=ROTATED, label=["river"])
    with pytest.raises(ValueError, match="the model does not know river, but background, road"):
        score_raster(predicted[0], labels)


def test_a_map_of_another_program_is_refused(predicted):
    out, classes = predicted
    other = write_classes(out, classes)
    with pytest.raises(
        ValueError, match=r"l\.tif is not a map of xcit-mm raster: it lacks the tag"
    ):
        score_raster(other, write_polygons(out, classes))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("number", r"the labels have a class 7, but .*map\.tif has 3, from 0 on"),
        ("nothing", r"--labels .*l\.tif has no labelled pixel that counts"),
        ("place", "--labels .* has no place on the raster, and another size"),
        ("gone", r"gone\.tif"),
        ("column", r"--class-column kind: --labels .*l\.tif is a raster"),
        ("layer", r"--layer kind: --labels .*l\.tif is a raster"),
        ("colors", "--labels .* has 3 bands: give a raster of one band"),
        ("fractions", r"--labels .* has a value 0\.5, which is not the number of a class"),
        ("names", "its classes are background, house, road, not background, road, house of"),
    ],
)
def test_labels_that_do_not_match_are_one_line(labels, message, predicted, tmp_path):
    out, classes = predicted
    options = ("class_column", "layer")
    path = tmp_path / "gone.tif"
    if labels == "number":
        path = write_classes(out, np.where(classes == 1, 7, classes))
    elif labels == "nothing":
        path = write_classes(out, np.where(classes == 255, 0, 255))
    elif labels in ("column", "layer"):
        path = write_classes(out, classes)
    elif labels == "colors":
        path = save(tmp_path / "b.tif", noise(3, 240, 300))
    elif labels == "fractions":
        path = save(tmp_path / "b.tif", np.full((240, 300), 0.5))
    elif labels == "names":
        path = save(tmp_path / "b.tif", classes.astype(np.uint8))
        with rasterio.open(path, "r+") as file:
            file.update_tags(CLASSES=json.dumps(["background", "house", "road"]))
    elif labels == "place":
        path = save(tmp_path / "b.tif", np.zeros((9, 9), np.uint8))
    with pytest.raises((ValueError, OSError), match=message) as error:
        score_raster(out, path, **{option: "kind" for option in options if labels in option})
    assert "\n" not in str(error.value)
