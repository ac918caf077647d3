"""Scores of maps against labels, as a user counts them by hand."""

import json
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
    save(path, classes, **UTM | dict(nodata=255) | place)
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


@pytest.fixture
def draw(tmp_path):
    """A function that writes labels of boxes, and returns their path."""

    def draw(names: list[str | None], *boxes: tuple[int, int, int, int]) -> Path:
        shapes = [shapely.box(*box) for box in boxes]
        path = tmp_path / "l.gpkg"
        return write_shapes(path, shapes, "EPSG:32633", ROTATED, **{"class": names})

    return draw


def test_iou_is_that_of_the_pixels(out, classes, capsys):
    moved = np.roll(classes, 7, axis=1)
    moved[:, :7] = 0
    shapes = [outline(moved == number, (0, 0)) for number in (1, 2)]
    columns = {"class": NAMES[1:]}
    path = write_shapes(out.with_name("l.gpkg"), shapes, "EPSG:3857", ROTATED, **columns)
    moved = np.where(moved == 255, 0, moved)  # the rest is background
    scores = score_raster(out, path)
    assert list(scores.index) == [*NAMES, "mean"]
    is_counted = classes != 255
    for number, name in enumerate(NAMES):
        is_predicted = (classes == number) & is_counted
        is_labelled = (moved == number) & is_counted
        iou = (is_predicted & is_labelled).sum() / (is_predicted | is_labelled).sum()
        assert scores.loc[name, "IoU"] == pytest.approx(iou, abs=0.001)
        assert scores.loc[name, "pixels"] == pytest.approx(is_labelled.sum(), abs=3)
    assert scores.loc["mean", "IoU"] == pytest.approx(scores["IoU"][:-1].mean())
    assert "map.tif: 71,700 of 72,000 pixels in the area count; they" in capsys.readouterr().err


def test_what_counts_is_labelled_in_the_area_by_a_class_of_the_map(out, draw, tmp_path, capsys):
    """Of two polygons the smaller counts."""
    area = [shapely.box(100, 50, 180, 90)]
    aoi = write_shapes(tmp_path / "area.gpkg", area, "EPSG:32633", ROTATED)
    smaller = [(100, 50, 120, 60), (120, 50, 130, 60), (130, 50, 150, 60)]
    labels = draw(["house", "river", None, "road"], *smaller, (0, 0, 300, 240))
    pixels = score_raster(out, labels, aoi)["pixels"]
    assert pixels.to_dict() == dict(background=0, road=2700, house=200, mean=2900)
    lines = capsys.readouterr().err
    assert "l.gpkg: labels of river do not count: the map has no such class" in lines
    assert "map.tif: 2,900 of 3,200 pixels in the area count; they have a label and data" in lines


@pytest.mark.parametrize(
    ("labelled", "predicted", "left", "message"),
    [
        (
            ["road"],
            ["road"],
            400,
            r"none of 1 labels has a class of the map and lies in its area: ",
        ),
        (["road"], NAMES, 400, r"none of 1 labels has a class of the map and lies in its area: "),
        (["Road", None], NAMES, 0, r"classes are \[Road\] in .*l\.gpkg, \[background, "),
        ([None], NAMES, 0, r"classes are \[\] in .*l\.gpkg, "),
        (["road"], [], 0, r"classes are \[road\] in .*l\.gpkg, \[\] in .*map\.tif$"),
    ],
)
def test_labels_without_a_class_or_pixel_of_the_map_are_one_line(
    labelled, predicted, left, message, out, draw
):
    """Else the background alone would count, with a score of 1."""
    labels = draw(labelled, *[(left, 0, left + 9, 9)] * len(labelled))
    write_map(out, np.zeros((240, 300), np.uint8), predicted, transform=ROTATED)
    with pytest.raises(ValueError, match=f"^[^\n]*{message}"):
        score_raster(out, labels)
