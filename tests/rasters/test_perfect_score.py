"""The objects that a perfect detector finds in a raster, scored against the scene's own shapes."""

from typing import Any, NamedTuple

import geopandas
import numpy as np
import pytest
from helpers.perfect_detector import CLASSES, PerfectDetector, Scene, class_of
from helpers.raster_files import UTM, save_image, write_shapes
from shapely.affinity import translate

from xcit_mm import predict_raster, score_raster
from xcit_mm.prediction.seams import outline


class Scored(NamedTuple):
    raster: Any
    out: Any
    shapes: list
    classes: list[str]


@pytest.fixture
def scored(tmp_path) -> Scored:
    scene = Scene(300, 400).add_random(6, 60, 120).add_random(40, 8, 30)
    raster = save_image(tmp_path / "a.tif", scene.image, **UTM)
    out = predict_raster(raster, PerfectDetector(), tmp_path / "a.gpkg", tile=96, overlap=24)
    numbers = range(1, scene.count + 1)
    shapes = [outline(scene.numbers == number, (0, 0)) for number in numbers]
    return Scored(raster, out, shapes, [CLASSES[class_of(number)] for number in numbers])


def test_a_perfect_detector_misses_nothing_and_invents_nothing(scored, tmp_path):
    labels = write_shapes(tmp_path / "labels.gpkg", scored.shapes, label=scored.classes)
    scores = score_raster(scored.out, labels, raster=scored.raster)
    assert list(scores.index) == [*sorted(set(scored.classes)), "all"]
    assert (scores[["AP50", "precision", "recall", "F1"]] == 1).all(axis=None)
    assert scores.loc["all", "matched"] == len(scored.shapes)
    assert (scores[["missed", "false"]] == 0).all(axis=None)
    assert len(geopandas.read_file(scored.out, layer="matched")) == len(scored.shapes)


def test_labels_shifted_by_half_their_width_are_all_missed(scored, tmp_path):
    widths = [shape.bounds[2] - shape.bounds[0] for shape in scored.shapes]
    halves = np.divide(widths, 2)
    shifted = [translate(shape, half) for shape, half in zip(scored.shapes, halves, strict=True)]
    labels = write_shapes(tmp_path / "labels.gpkg", shifted, label=scored.classes)
    scores = score_raster(scored.out, labels)
    assert scores.loc["all", ["AP50", "matched"]].tolist() == [0, 0]
    assert scores.loc["all", "missed"] == len(scored.shapes)
