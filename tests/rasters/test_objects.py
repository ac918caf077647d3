"""Tables of objects: each object once and whole, in its place, as other programs read them."""

from typing import Any

import numpy as np
import pytest
import shapely
from helpers.perfect_detector import CLASSES, NO_FAULTS, PerfectDetector, Scene, judge, predicted
from helpers.raster_files import NORTH_UP, ROTATED, in_pixels, write_shapes
from rasterio.features import geometry_mask
from rasterio.transform import Affine

from xcit_mm.prediction import Prediction

SOUTH_UP = Affine(0.5, 0, 500000, 0, 0.5, 5400000)
NO_PLACE = dict(crs=None, transform=Affine.identity())


def faults(table: Any, scene: Scene, transform: Affine = NORTH_UP) -> Any:
    size = scene.numbers.shape
    masks = (geometry_mask([shape], size, transform, invert=True) for shape in table.geometry)
    return judge(scene, masks, [CLASSES.index(name) for name in table["class"]])


@pytest.mark.parametrize(
    ("tile", "overlap", "transform", "crs"),
    [
        (96, 24, NORTH_UP, "EPSG:32633"),
        (157, 30, ROTATED, "EPSG:32633"),
        (400, 100, SOUTH_UP, "EPSG:32633"),
        (400, 100, Affine.identity(), None),
    ],
)
def test_each_object_is_found_once_and_whole_in_its_place(tile, overlap, transform, crs, predict):
    """Without a coordinate system, coordinates are pixels."""
    scene = Scene(300, 350).add_random(6, 60, 160).add_random(80, 8, 40)
    place = dict(transform=transform, crs=crs)
    table = predict(scene, tile=tile, overlap=overlap, place=place)
    assert faults(table, scene, transform) == NO_FAULTS
    assert list(table.columns) == ["class", "score", "geometry"]
    assert table.crs == crs and (table.score.diff().dropna() <= 0).all()
    areas = np.bincount(scene.numbers.ravel())[1:] * abs(transform.determinant)
    np.testing.assert_allclose(np.sort(table.geometry.area), np.sort(areas), rtol=1e-6)


def test_boxes_alone(predict):
    scene = Scene(200, 300).add_random(60, 8, 24)
    detector = PerfectDetector(with_masks=False)
    table = predict(scene, detector=detector)
    expected = shapely.area(shapely.box(*detector.predict(scene.image).boxes.T)) / 4
    assert len(table) == 60 and (shapely.get_num_coordinates(table.geometry) == 5).all()
    np.testing.assert_allclose(np.sort(table.geometry.area), np.sort(expected), rtol=1e-5)


@pytest.mark.parametrize(("nodata", "seen"), [(0, 4), (None, 25)])
def test_tiles_of_nodata_are_not_predicted_but_those_of_one_color_are(nodata, seen, predict):
    scene = Scene(400, 400)
    scene.add(np.array([(300, 300), (340, 300), (340, 340)]))
    detector = PerfectDetector()
    table = predict(scene, detector=detector, place=dict(nodata=nodata), tile=100, overlap=20)
    assert len(table) == 1 and detector.seen == seen


class Hallucinating(PerfectDetector):
    """A detector that finds an object in every tile."""

    def predict_arrays(self, images, masks, resizes) -> list[Prediction]:
        masks = np.zeros((1, 100, 100), bool)
        masks[0, 2:22, 30:70] = True
        return [predicted(image, (30, 2, 70, 22), [0.9], [0], masks) for image in images]


@pytest.mark.parametrize(("first_valid", "areas"), [(40, [30 * 20 / 4]), (55, [])])
def test_objects_without_data_are_dropped_and_masks_are_cut(first_valid, areas, predict):
    scene = Scene(100, 100)
    scene.numbers[:, first_valid:] = 1
    table = predict(scene, detector=Hallucinating(), place=dict(nodata=0), tile=100)
    assert table.geometry.area.tolist() == areas


def test_a_small_raster_is_seen_in_its_own_size(predict):
    class Small(PerfectDetector):
        def predict_arrays(self, images, masks, resizes) -> list[Prediction]:
            assert [image.shape for image in images] == [(90, 60, 3)]
            return super().predict_arrays(images, masks, resizes)

    assert len(predict(Scene(90, 60).add_random(5, 8, 30), detector=Small())) == 5


def test_tiles_are_those_of_the_training_or_of_the_call(predict):
    scene = Scene(160, 160).add_random(5, 8, 30)
    detector = PerfectDetector()
    detector.cfg.raster = dict(tile=64, overlap=32)
    for options, seen in ((dict(tile=None), 16), (dict(tile=None, overlap=0), 9), ({}, 4)):
        detector.seen = 0
        predict(scene, detector=detector, overwrite=True, **options)
        assert detector.seen == seen


CROSSING = shapely.Polygon([(60.1, 80.7), (260, 280), (260.3, 80), (60, 280.2)])
OTHER = shapely.Polygon([(99.9, 80.2), (280, 279.8), (280.7, 80), (100, 280)])


@pytest.mark.parametrize("shapes", [[shapely.box(90, 110, 190, 210)], [CROSSING, OTHER]])
def test_an_area_selects_tiles_and_objects_by_their_centre(shapes, predict, tmp_path, capsys):
    scene = Scene(400, 400).add_random(100, 8, 24)
    detector = PerfectDetector()
    aoi = write_shapes(tmp_path / "area.gpkg", shapes)
    table = predict(scene, detector=detector, aoi=aoi, tile=100, overlap=24)
    seen = detector.seen
    assert seen < 25
    boxes = detector.predict(scene.image).boxes
    centres = shapely.points((boxes[:, :2] + boxes[:, 2:]) / 2)
    area = shapely.union_all([shapely.make_valid(shape) for shape in shapes])
    assert len(table) == area.contains(centres).sum() > 5
    assert f"{seen}/{seen} " in capsys.readouterr().err  # the bar counts what is predicted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(tile=None), "tile: the config has no size of images: give the side"),
        (dict(aoi="points.gpkg"), r"points\.gpkg covers no pixel of the raster"),
        (dict(aoi="area.gpkg", place=NO_PLACE), "the raster has no coordinate system"),
        (dict(aoi="elsewhere.gpkg"), "covers no pixel of the raster"),
    ],
)
def test_options_that_do_not_match_are_one_line(options, message, predict, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    in_pixels([shapely.Point(1, 2)]).to_file("points.gpkg")
    in_pixels([shapely.box(0, 0, 50, 50)]).to_file("area.gpkg")
    elsewhere = in_pixels([shapely.box(104, -1, 106, 1)], Affine.identity())
    elsewhere.set_crs("EPSG:4326", allow_override=True).to_file("elsewhere.gpkg")
    with pytest.raises((ValueError, RuntimeError), match=message) as error:
        predict(Scene(100, 100).add_random(5, 8, 30), **options)
    assert "\n" not in str(error.value) and not list(tmp_path.glob("out*"))
