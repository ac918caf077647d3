"""Tables of objects: each object once and whole, in its place, with its area, as other programs
read them.
"""

from typing import Any

import numpy as np
import pyproj
import pytest
import shapely
from helpers.perfect_detector import (
    CLASSES,
    NO_FAULTS,
    PerfectDetector,
    Scene,
    judge,
    predicted,
)
from helpers.raster_files import NORTH_UP, ROTATED, in_pixels
from rasterio.features import geometry_mask
from rasterio.transform import Affine

from xcit_mm.prediction import Prediction

SOUTH_UP = Affine(0.5, 0, 500000, 0, 0.5, 5400000)
TURNED = Affine(0, -0.5, 500000, 0.5, 0, 5400000)
NO_PLACE = dict(crs=None, transform=Affine.identity())


def faults(table: Any, scene: Scene, transform: Affine = NORTH_UP) -> Any:
    size = scene.numbers.shape
    masks = (geometry_mask([shape], size, transform, invert=True) for shape in table.geometry)
    return judge(scene, masks, [CLASSES.index(name) for name in table["class"]])


@pytest.mark.parametrize(
    ("tile", "overlap", "transform"),
    [(96, 24, NORTH_UP), (157, 30, ROTATED), (96, 0, TURNED), (1000, 100, SOUTH_UP)],
)
def test_each_object_is_found_once_and_whole_in_its_place(tile, overlap, transform, predict):
    scene = Scene(400, 500).add_random(12, 60, 160).add_random(150, 8, 40)
    table = predict(scene, tile=tile, overlap=overlap, place=dict(transform=transform))
    assert faults(table, scene, transform) == NO_FAULTS
    assert list(table.columns) == ["class", "score", "area", "cut", "geometry"]
    assert table.crs.to_epsg() == 32633 and (table.score.diff().dropna() <= 0).all()
    assert all(shape.exterior.is_ccw for shape in table.explode().geometry)
    areas = np.bincount(scene.numbers.ravel())[1:] / 4
    np.testing.assert_allclose(np.sort(table.area), np.sort(areas), rtol=1e-6)


@pytest.mark.parametrize(
    ("left", "right", "is_cut"),
    [(0, 30, True), (1, 30, False), (170, 199, True), (170, 198, False)],
)
def test_only_what_the_raster_s_edge_cuts_is_marked_as_cut(left, right, is_cut, predict):
    scene = Scene(200, 200)
    scene.add(np.array([(left, 40), (right, 40), (right, 70)]))
    assert predict(scene)["cut"].tolist() == [is_cut]


@pytest.mark.parametrize(
    ("crs", "side", "lon", "lat"),
    [(4326, 5e-6, 15, 52), (3857, 0.5, 15, 52), (2263, 1.64, -74, 40.7)],
)
def test_areas_equal_those_on_the_ellipsoid_in_every_coordinate_system(
    crs, side, lon, lat, predict
):
    """Pixels of about 0.5 m. EPSG:3857 stretches them by 1.6 at a latitude of 52 degrees, EPSG:2263
    counts in feet.
    """
    x, y = pyproj.Transformer.from_crs(4326, crs, always_xy=True).transform(lon, lat)
    place = dict(crs=f"EPSG:{crs}", transform=Affine(side, 0, x, 0, -side, y))
    table = predict(Scene(150, 200).add_random(30, 8, 60), place=place)
    assert table.crs.to_epsg() == crs
    measure = pyproj.Geod(ellps="WGS84").geometry_area_perimeter
    expected = [abs(measure(shape)[0]) for shape in table.to_crs(4326).geometry]
    np.testing.assert_allclose(table["area"], expected, rtol=0.005)
    assert table["area"].max() > 10


def test_without_a_coordinate_system_coordinates_are_pixels_without_an_area(predict):
    scene = Scene(150, 100).add_random(9, 8, 30)
    table = predict(scene, place=NO_PLACE)
    assert faults(table, scene, Affine.identity()) == NO_FAULTS
    assert table.crs is None and table["area"].isna().all()


def test_boxes_alone(predict):
    scene = Scene(200, 300).add_random(60, 8, 24)
    detector = PerfectDetector(with_masks=False)
    table = predict(scene, detector=detector)
    expected = shapely.box(*detector([scene.image])[0].boxes.T)
    assert len(table) == 60 and (shapely.get_num_coordinates(table.geometry) == 5).all()
    np.testing.assert_allclose(np.sort(table.area), np.sort(shapely.area(expected)) / 4, rtol=1e-5)


@pytest.mark.parametrize(("nodata", "seen"), [(0, 4), (None, 25)])
def test_tiles_of_nodata_are_not_predicted_but_those_of_one_color_are(
    nodata, seen, predict, capsys
):
    scene = Scene(400, 400)
    scene.add(np.array([(300, 300), (340, 300), (340, 340)]))
    detector = PerfectDetector()
    table = predict(scene, detector=detector, place=dict(nodata=nodata), tile=100, overlap=20)
    assert len(table) == 1 and detector.seen == seen
    note = "scene.tif: no nodata, alpha or mask: if it has a collar, --nodata 0"
    assert (note in capsys.readouterr().err) == (nodata is None)


class Hallucinating(PerfectDetector):
    """A detector that finds an object in every tile."""

    def __call__(self, images: list[np.ndarray], valid=None) -> list[Prediction]:
        masks = np.zeros((1, 100, 100), bool)
        masks[0, 2:22, 30:70] = True
        return [predicted(image, (30, 2, 70, 22), [0.9], [0], masks) for image in images]


@pytest.mark.parametrize(("first_valid", "areas"), [(40, [30 * 20 / 4]), (55, [])])
def test_objects_without_data_are_dropped_and_masks_are_cut(first_valid, areas, predict):
    scene = Scene(100, 100)
    scene.numbers[:, first_valid:] = 1
    table = predict(scene, detector=Hallucinating(), place=dict(nodata=0), tile=100)
    assert table.geometry.area.tolist() == areas


def test_a_small_raster_is_padded_to_a_tile_if_the_pipeline_resizes(predict):
    """The pipeline would enlarge it, and the model would see another scale than elsewhere."""

    class Drawing(PerfectDetector):
        def __call__(self, images: list[np.ndarray], valid=None) -> list[Prediction]:
            for image in images:
                assert image.shape == (96, 96, 3)
                image[82:, 10:20] = 200, 1, 0  # an object across the edge of the raster
            return super().__call__(images)

    detector = Drawing()
    detector.cfg.test_dataloader.dataset.pipeline = [dict(type="Resize", scale=(96, 96))]
    table = predict(Scene(90, 60).add_random(5, 8, 30), detector=detector)
    assert len(table) == 6 and table.total_bounds[1] == 5400000 - 45 and table["cut"].sum() >= 1


def test_tiles_are_those_of_the_training_or_of_the_call(predict):
    scene = Scene(160, 160).add_random(20, 8, 30)
    detector = PerfectDetector()
    detector.cfg.raster = dict(tile=64, overlap=32)
    for options, seen in ((dict(tile=None), 16), (dict(tile=None, overlap=0), 9), ({}, 4)):
        detector.seen = 0
        predict(scene, detector=detector, overwrite=True, **options)
        assert detector.seen == seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(tile=None), r"the config has no raster = dict\(tile=...\): give --tile"),
        (dict(tile=0), "tiles of 0 pixels"),
        (dict(aoi="points.gpkg"), r"points\.gpkg has no polygons"),
        (dict(aoi="area.gpkg", place=NO_PLACE), "the raster has no coordinate system"),
        (dict(bands=[1, 2, 9]), "bands 1 2 9 of "),
    ],
)
def test_options_that_do_not_match_are_one_line(
    options, message, predict, few, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    in_pixels([shapely.Point(1, 2)]).to_file("points.gpkg")
    in_pixels([shapely.box(0, 0, 50, 50)]).to_file("area.gpkg")
    with pytest.raises((ValueError, RuntimeError), match=message) as error:
        predict(few, **options)
    assert "\n" not in str(error.value) and not list(tmp_path.glob("out*"))
