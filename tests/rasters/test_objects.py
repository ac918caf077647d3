"""Tables of objects: each object once and whole, in its place, with its area, as other programs
read them.
"""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rasterio")
geopandas = pytest.importorskip("geopandas")
import pyproj  # noqa: E402
import shapely  # noqa: E402
from helpers.perfect_detector import CLASSES, NO_FAULTS, PerfectDetector, Scene, judge  # noqa: E402
from helpers.raster_files import NORTH_UP, save  # noqa: E402
from rasterio.features import geometry_mask  # noqa: E402
from rasterio.transform import Affine  # noqa: E402

from xcit_mm import predict_raster  # noqa: E402
from xcit_mm.prediction import Prediction  # noqa: E402

ROTATED = Affine(0.3, 0.4, 500000, 0.4, -0.3, 5400000)
SOUTH_UP = Affine(0.5, 0, 500000, 0, 0.5, 5400000)


def predict(
    path: Path,
    scene: Scene,
    suffix: str = ".gpkg",
    detector: PerfectDetector | None = None,
    **options,
):
    """Write a scene as a raster, predict it and return the table as geopandas reads it."""
    names = "crs", "transform", "nodata"
    profile = dict(crs="EPSG:32633", transform=NORTH_UP) | {
        k: options.pop(k) for k in names if k in options
    }
    if "to" in options:
        options["crs"] = options.pop("to")
    raster = save(path / "scene.tif", scene.image[..., ::-1].transpose(2, 0, 1), **profile)
    out = predict_raster(raster, detector or PerfectDetector(), path / f"out{suffix}", **options)
    return geopandas.read_parquet(out) if suffix == ".parquet" else geopandas.read_file(out)


def masks(table, scene: Scene, transform: Affine = NORTH_UP):
    return (
        geometry_mask([shape], scene.numbers.shape, transform, invert=True)
        for shape in table.geometry
    )


def labels(table) -> list[int]:
    return [CLASSES.index(name) for name in table["class"]]


@pytest.mark.parametrize(("tile", "overlap"), [(96, 24), (96, 0), (157, 30), (1000, 100)])
@pytest.mark.parametrize("suffix", [".gpkg", ".parquet"])
def test_each_object_is_found_once_and_whole_in_tiles_of_any_size(tile, overlap, suffix, tmp_path):
    scene = Scene(400, 500).add_random(12, 60, 160).add_random(150, 8, 40)
    table = predict(tmp_path, scene, suffix, tile=tile, overlap=overlap)
    assert judge(scene, masks(table, scene), labels(table)) == NO_FAULTS
    assert list(table.columns) == ["class", "score", "area", "cut", "geometry"]
    assert table.crs.to_epsg() == 32633 and (table.score.diff().dropna() <= 0).all()
    sizes = np.bincount(scene.numbers.ravel())[1:]
    np.testing.assert_allclose(np.sort(table.area), np.sort(sizes) * 0.25, rtol=1e-6)


@pytest.mark.parametrize("transform", [ROTATED, SOUTH_UP, Affine(0, -0.5, 500000, 0.5, 0, 5400000)])
def test_rotated_and_south_up_rasters_keep_place_and_area(transform, tmp_path):
    scene = Scene(200, 150).add_random(30, 8, 60)
    table = predict(tmp_path, scene, transform=transform, tile=96)
    assert judge(scene, masks(table, scene, transform), labels(table)) == NO_FAULTS
    assert all(shape.exterior.is_ccw for shape in table.explode().geometry)
    sizes = np.bincount(scene.numbers.ravel())[1:]
    np.testing.assert_allclose(np.sort(table["area"]), np.sort(sizes) * 0.25, rtol=0.002)


def test_only_what_the_raster_s_edge_cuts_is_marked_as_cut(tmp_path):
    scene = Scene(200, 200)
    for left, right in ((0, 30), (1, 30), (170, 199), (170, 198), (80, 120)):
        scene.add(
            np.array(
                [
                    (left, 40 * scene.count),
                    (right, 40 * scene.count),
                    (right, 40 * scene.count + 30),
                ]
            )
        )
    table = predict(tmp_path, scene, tile=96)
    numbers = [int(np.median(scene.numbers[mask])) for mask in masks(table, scene)]
    assert {number for number, cut in zip(numbers, table["cut"], strict=True) if cut} == {1, 3}


@pytest.mark.parametrize("crs", [32633, 4326, 3857, 2263])
def test_areas_equal_those_on_the_ellipsoid_in_every_coordinate_system(crs, tmp_path):
    """Pixels of about 0.5 m. EPSG:3857 stretches them by 1.6 at a latitude of 52 degrees, EPSG:2263
    counts in feet.
    """
    lon, lat = (-74.0, 40.7) if crs == 2263 else (15.0, 52.0)
    x, y = pyproj.Transformer.from_crs(4326, crs, always_xy=True).transform(lon, lat)
    side = {4326: 5e-6, 2263: 1.64}.get(crs, 0.5)
    scene = Scene(150, 200).add_random(30, 8, 60)
    table = predict(
        tmp_path, scene, crs=f"EPSG:{crs}", transform=Affine(side, 0, x, 0, -side, y), tile=96
    )
    geod = pyproj.Geod(ellps="WGS84")
    expected = [
        abs(geod.geometry_area_perimeter(shape)[0]) for shape in table.to_crs(4326).geometry
    ]
    np.testing.assert_allclose(table["area"], expected, rtol=0.005)
    assert table["area"].max() > 10


def test_geojson_is_in_wgs_84_and_conforms_to_rfc_7946(tmp_path):
    scene = Scene(200, 150).add_random(30, 8, 60)
    table = predict(tmp_path, scene, ".geojson", tile=96)
    content = json.loads((tmp_path / "out.geojson").read_text())
    assert "crs" not in content and content["name"] == "out" and table.crs.to_epsg() == 4326
    assert np.allclose(table.total_bounds, [15, 48.75, 15, 48.75], atol=0.01)
    assert all(shape.exterior.is_ccw for shape in table.explode().geometry)
    assert judge(scene, masks(table.to_crs(32633), scene), labels(table)) == NO_FAULTS


@pytest.mark.parametrize("first", [190, -185])
def test_longitudes_beyond_180_are_wrapped_in_geojson(first, tmp_path):
    scene = Scene(60, 60).add_random(5, 8, 30)
    table = predict(
        tmp_path,
        scene,
        ".geojson",
        crs="EPSG:4326",
        transform=Affine(0.01, 0, first, 0, -0.01, 50),
        tile=64,
    )
    left, _, right, _ = table.total_bounds
    assert -180 <= left < right <= 180 and abs((left - first + 180) % 360 - 180) < 0.6


def test_other_formats_have_the_raster_s_system_or_that_of_crs(tmp_path):
    scene = Scene(100, 100).add_random(5, 8, 30)
    assert predict(tmp_path, scene, to="EPSG:3857", tile=96).crs.to_epsg() == 3857


def test_without_a_coordinate_system_coordinates_are_pixels_without_an_area(tmp_path):
    scene = Scene(150, 100).add_random(9, 8, 30)
    table = predict(tmp_path, scene, crs=None, transform=Affine.identity(), tile=96)
    assert judge(scene, masks(table, scene, Affine.identity()), labels(table)) == NO_FAULTS
    assert table.crs is None and table["area"].isna().all()
    with pytest.raises(ValueError, match=r"scene\.tif has no coordinate system.*write \.gpkg"):
        predict(tmp_path, scene, ".geojson", crs=None, transform=Affine.identity(), tile=96)


def test_boxes_alone(tmp_path):
    scene = Scene(200, 300).add_random(60, 8, 24)
    table = predict(tmp_path, scene, detector=PerfectDetector(with_masks=False), tile=96)
    expected = shapely.box(*PerfectDetector(with_masks=False)([scene.image])[0].boxes.T)
    assert len(table) == 60 and (shapely.get_num_coordinates(table.geometry) == 5).all()
    np.testing.assert_allclose(np.sort(table.area), np.sort(shapely.area(expected)) / 4, rtol=1e-5)


@pytest.mark.parametrize("suffix", [".gpkg", ".geojson", ".parquet"])
def test_a_raster_without_objects_has_an_empty_table(suffix, tmp_path):
    table = predict(tmp_path, Scene(100, 100), suffix, tile=64)
    assert len(table) == 0 and table.crs is not None
    assert suffix == ".geojson" or {"class", "score", "area", "cut"} < set(table.columns)


def test_empty_tiles_are_not_predicted(tmp_path):
    scene, detector = Scene(400, 400), PerfectDetector()
    scene.add(np.array([(300, 300), (340, 300), (340, 340)]))
    table = predict(tmp_path, scene, detector=detector, nodata=0, tile=100, overlap=20)
    assert len(table) == 1 and detector.seen == 4  # of 25


def test_an_area_of_interest_selects_tiles_and_objects_by_their_centre(tmp_path):
    scene, detector = Scene(300, 300).add_random(60, 8, 24), PerfectDetector()
    x, y = NORTH_UP @ (140, 160)
    area = geopandas.GeoDataFrame(
        geometry=[shapely.box(x - 25, y - 25, x + 25, y + 25)], crs="EPSG:32633"
    )
    area.to_crs(4326).to_file(tmp_path / "area.gpkg")
    table = predict(
        tmp_path, scene, detector=detector, aoi=tmp_path / "area.gpkg", tile=100, overlap=24
    )
    boxes = detector([scene.image])[0].boxes
    centres = shapely.points((boxes[:, :2] + boxes[:, 2:]) / 2)
    expected = shapely.box(140 - 50, 160 - 50, 140 + 50, 160 + 50).contains(centres).sum()
    assert len(table) == expected > 5 and detector.seen - 1 < 16


def test_a_small_raster_is_padded_to_a_tile_if_the_pipeline_resizes(tmp_path):
    """The pipeline would enlarge it, and the model would see a larger scale than in other rasters."""
    scene, sizes = Scene(90, 60).add_random(5, 8, 30), []

    class Padded(PerfectDetector):
        def __call__(self, images: list[np.ndarray]) -> list[Prediction]:
            sizes.extend(image.shape for image in images)
            for image in images:
                image[82:, 10:20] = 200, 1, 0  # an object across the edge of the raster
            return super().__call__(images)

    detector = Padded()
    detector.cfg.test_dataloader.dataset.pipeline = [dict(type="Resize", scale=(96, 96))]
    table = predict(tmp_path, scene, detector=detector)
    assert sizes == [(96, 96, 3)]
    assert len(table) == 6 and table.total_bounds[1] == 5400000 - 45 and table["cut"].sum() >= 1


def test_options_that_do_not_match_are_one_line(tmp_path):
    scene = Scene(100, 100).add_random(5, 8, 30)
    (tmp_path / "text.gpkg").write_text("text")
    geopandas.GeoDataFrame(geometry=[shapely.Point(1, 2)], crs=4326).to_file(
        tmp_path / "points.gpkg"
    )
    for suffix, options, message in (
        (".tif", {}, r"--out .*out\.tif: a detector writes \.gpkg, \.geojson, \.parquet"),
        (".geojson", dict(to="EPSG:3857"), "--crs EPSG:3857: GeoJSON is in WGS 84"),
        (".gpkg", dict(to="EPSG:3857", crs=None), r"no coordinate system: .* without --crs"),
        (".gpkg", dict(tile=None), "give --tile"),
        (".gpkg", dict(aoi=tmp_path / "text.gpkg"), r"text\.gpkg' not recognized"),
        (".gpkg", dict(aoi=tmp_path / "points.gpkg"), r"--aoi .*points\.gpkg has no polygons"),
        (".gpkg", dict(aoi=tmp_path / "gone.gpkg"), r"gone\.gpkg: No such file"),
        (".gpkg", dict(bands=[1, 2, 9]), "has no band 9"),
    ):
        with pytest.raises((ValueError, OSError, RuntimeError), match=message) as error:
            predict(tmp_path, scene, suffix, **dict(tile=96) | options)
        assert "\n" not in str(error.value)
        assert not (tmp_path / f"out{suffix}").exists() and not list(tmp_path.glob("*.parts/row*"))
