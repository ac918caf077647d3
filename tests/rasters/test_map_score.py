"""Scores of maps against labels, as a user counts them by hand."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely
from helpers.raster_files import ROTATED, UTM, noise, save, write_shapes

from xcit_mm import score_raster
from xcit_mm.prediction.seams import outline

NAMES = ("background", "road", "house")


def write_map(path: Path, classes: np.ndarray, names: Any = NAMES, **place: Any) -> Path:
    """Write a map as `predict_raster` does."""
    save(path, classes, **UTM | dict(nodata=255 if classes.dtype == np.uint8 else 65535) | place)
    with rasterio.open(path, "r+") as file:
        file.update_tags(CLASSES=json.dumps(names))
    return path


@pytest.fixture
def classes() -> np.ndarray:
    """Class numbers (240, 300), with 300 pixels of nodata."""
    classes = (noise(12, 15, high=9) % 3).repeat(20, 0).repeat(20, 1)
    classes[:10, :30] = 255
    return classes


@pytest.fixture
def out(classes, tmp_path) -> Path:
    """A map of three classes, rotated."""
    return write_map(tmp_path / "map.tif", classes, transform=ROTATED)


def save_classes(out: Path, numbers: np.ndarray, **profile: Any) -> Path:
    place = dict(crs="EPSG:32633", transform=ROTATED)
    return save(out.with_name("labels.tif"), numbers, **place | profile)


@pytest.mark.parametrize("labels", ["polygons", "raster"])
def test_iou_is_that_of_the_pixels(labels, out, classes):
    moved = np.roll(classes, 7, axis=1)
    moved[:, :7] = 255
    if labels == "polygons":
        shapes = [outline(classes == number, (7, 0)) for number in (1, 2)]
        columns = {"class": NAMES[1:]}
        path = write_shapes(out.with_name("l.gpkg"), shapes, "EPSG:3857", ROTATED, **columns)
        moved = np.where(moved == 255, 0, moved)  # the rest is background
    else:
        path = save_classes(out, moved)
    scores = score_raster(out, path)
    assert list(scores.index) == [*NAMES, "mean"]
    is_counted = (moved != 255) & (classes != 255)
    for number, name in enumerate(NAMES):
        is_predicted = (classes == number) & is_counted
        is_labelled = (moved == number) & is_counted
        iou = (is_predicted & is_labelled).sum() / (is_predicted | is_labelled).sum()
        assert scores.loc[name, "IoU"] == pytest.approx(iou, abs=0.001)
        assert scores.loc[name, "pixels"] == pytest.approx(is_labelled.sum(), abs=3)
    assert scores.loc["mean", "IoU"] == pytest.approx(scores["IoU"][:-1].mean())


@pytest.mark.parametrize(
    ("dtype", "nodata", "value"), [("uint8", None, 255), ("uint8", 9, 9), ("int32", None, -1)]
)
def test_nodata_255_and_negative_numbers_of_a_raster_of_classes_do_not_count(
    dtype, nodata, value, out, classes
):
    numbers = np.where(classes == 255, 0, classes).astype(dtype)
    numbers[100:120] = value
    scores = score_raster(out, save_classes(out, numbers, nodata=nodata))
    assert scores.loc["mean", "pixels"] == 72000 - 300 - 6000
    assert scores.attrs["pixels"] == {
        "total": 72000,
        "counted": 72000 - 300 - 6000,
        "without a class in the map": 300,
        "without a label of a class": 6000,
    }


def test_of_more_than_255_classes_255_is_one(tmp_path):
    names = [str(number) for number in range(300)]
    numbers = np.arange(300, dtype=np.uint16).reshape(20, 15)
    out = write_map(tmp_path / "map.tif", numbers, names)
    assert score_raster(out, out).loc["255"].tolist() == [1, 1]


def test_an_area_limits_the_pixels(out, classes, tmp_path):
    area = [shapely.box(100, 50, 180, 90)]
    aoi = write_shapes(tmp_path / "area.gpkg", area, "EPSG:32633", ROTATED)
    assert score_raster(out, save_classes(out, classes), aoi).loc["mean", "pixels"] == 80 * 40


@pytest.mark.parametrize("order", [1, -1])
def test_the_smaller_of_two_polygons_counts(order, tmp_path):
    out = write_map(tmp_path / "m.tif", np.zeros((40, 40), np.uint8), ["road", "house"])
    shapes = [shapely.box(5, 5, 15, 15), shapely.box(0, 0, 30, 30)][::order]
    columns = {"class": ["house", "road"][::order]}
    pixels = score_raster(out, write_shapes(tmp_path / "l.gpkg", shapes, **columns))["pixels"]
    assert pixels.to_dict() == dict(road=800, house=100, mean=900)


def test_classes_that_the_map_lacks_and_labels_without_one_do_not_count(out, tmp_path, capsys):
    whole = shapely.box(0, 0, 300, 240)
    shapes = [shapely.box(50, 0, 60, 10), shapely.box(70, 0, 90, 10), whole]
    columns = {"class": ["river", None, "road"]}
    labels = write_shapes(tmp_path / "l.gpkg", shapes, "EPSG:32633", ROTATED, **columns)
    pixels = score_raster(out, labels).attrs["pixels"]
    assert pixels["without a label of a class"] == 100 + 200
    lines = capsys.readouterr().err
    assert "the map lacks river, which do not count" in lines
    assert "map.tif is scored over 71,400 of 72,000 pixels of the area, 300 without" in lines


def test_a_raster_of_classes_with_other_pixels_names_the_command_that_aligns_it(tmp_path):
    classes = noise(40, 50, high=3)
    out = write_map(tmp_path / "map.tif", classes)
    fine = np.pad(classes, 3, constant_values=1).repeat(2, 0).repeat(2, 1)
    place = UTM["transform"] * UTM["transform"].translation(-3, -3)
    place *= place.scale(0.5)
    labels = save(tmp_path / "fine.tif", fine, **UTM | dict(transform=place))
    with pytest.raises(ValueError, match="other pixels than the raster") as error:
        score_raster(out, labels)
    command = str(error.value).split("`")[1]
    try:
        subprocess.run(shlex.split(command), cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("gdalwarp is not installed")
    assert score_raster(out, tmp_path / "classes.tif").loc["mean"].tolist() == [1, 2000]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("number", r"the labels have a class 7, but .*map\.tif has 3, from 0 on"),
        ("nothing", r"labels\.tif has no labelled pixel that counts: 0 of 72,000"),
        ("place", r"labels\.tif has other pixels than the raster: align it by `gdalwarp"),
        ("gone", r"gone\.tif: No such file"),
        ("colors", "is not one band of whole numbers: convert it by `gdal_translate -b 1"),
        ("floats", "is not one band of whole numbers: convert it by `gdal_translate -b 1"),
        ("names", "has the classes background, house, road, not background, road, house of"),
    ],
)
def test_labels_that_do_not_match_are_one_line(labels, message, out, classes):
    write = {
        "number": lambda: save_classes(out, np.where(classes == 1, 7, classes)),
        "nothing": lambda: save_classes(out, np.full_like(classes, 255)),
        "place": lambda: save_classes(out, classes, transform=ROTATED.translation(9, 9) * ROTATED),
        "gone": lambda: out.with_name("gone.tif"),
        "colors": lambda: save_classes(out, noise(3, 240, 300)),
        "floats": lambda: save_classes(out, classes.astype(np.float32)),
        "names": lambda: write_map(
            out.with_name("other.tif"), classes, ["background", "house", "road"], transform=ROTATED
        ),
    }[labels]
    with pytest.raises((ValueError, RuntimeError), match=message) as error:
        score_raster(out, write())
    assert "\n" not in str(error.value)


def test_a_map_of_another_program_is_refused(out, classes):
    with pytest.raises(ValueError, match=r"labels\.tif is not a map of xcit-mm raster: it lacks"):
        score_raster(save_classes(out, classes), out)
