"""The objects that a perfect detector finds in a raster, scored against the scene's own shapes."""

import geopandas
from helpers.perfect_detector import CLASSES, PerfectDetector, Scene, class_of
from helpers.raster_files import UTM, save_image, write_shapes

from xcit_mm import predict_raster, score_raster
from xcit_mm.prediction.seams import outline


def test_a_perfect_detector_misses_nothing_and_invents_nothing(tmp_path):
    scene = Scene(300, 400).add_random(6, 60, 120).add_random(40, 8, 30)
    raster = save_image(tmp_path / "a.tif", scene.image, **UTM)
    out = predict_raster(raster, PerfectDetector(), tmp_path / "a.gpkg", tile=96, overlap=24)
    numbers = range(1, scene.count + 1)
    shapes = [outline(scene.numbers == number, (0, 0)) for number in numbers]
    classes = [CLASSES[class_of(number)] for number in numbers]
    labels = write_shapes(tmp_path / "labels.gpkg", shapes, label=classes)
    scores = score_raster(out, labels, raster=raster)
    assert list(scores.index) == [*sorted(set(classes)), "all"]
    assert (scores[["AP50", "precision", "recall", "F1"]] == 1).all(axis=None)
    assert scores.loc["all", "matched"] == len(shapes)
    assert (scores[["missed", "false"]] == 0).all(axis=None)
    assert len(geopandas.read_file(out, layer="matched")) == len(shapes)
