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
from helpers.perfect_detector import (  # noqa: E402
    CLASSES,
    NO_FAULTS,
    PerfectDetector,
    Scene,
    judge,
    predicted,
)
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


@pytest.mark.parametrize(("raster_crs", "first"), [("EPSG:4326", 179.7), ("EPSG:32601", 140_000)])
@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:3857"])
def test_a_system_that_ends_within_the_raster_is_refused(crs, raster_crs, first, tmp_path):
    """Polygons across 180 degrees would reach round the world."""
    scene, detector = Scene(60, 60).add_random(5, 8, 30), PerfectDetector()
    step = 0.01 if raster_crs == "EPSG:4326" else 1000
    place = dict(crs=raster_crs, transform=Affine(step, 0, first, 0, -step, 50))
    options = dict(place, detector=detector, to=crs, tile=64)
    if (crs, raster_crs) == ("EPSG:4326", "EPSG:4326"):
        assert predict(tmp_path, scene, **options).total_bounds[2] > 180  # as in the raster
    else:
        message = rf"--crs {crs} ends within .*scene\.tif: write \.geojson, or leave --crs out"
        with pytest.raises(ValueError, match=message):
            predict(tmp_path, scene, **options)
        assert detector.seen == 0


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


def test_tiles_of_a_single_colour_are_not_predicted(tmp_path):
    """A black collar without a nodata tag is no image."""
    scene, detector = Scene(400, 400), PerfectDetector()
    scene.add(np.array([(300, 300), (340, 300), (340, 340)]))
    table = predict(tmp_path, scene, detector=detector, tile=100, overlap=20)
    assert len(table) == 1 and detector.seen == 4  # of 25


class Hallucinating(PerfectDetector):
    """A detector that finds two more objects in every tile."""

    BOXES = ((2, 2, 12, 12), (30, 2, 70, 22))

    def __call__(self, images: list[np.ndarray]) -> list[Prediction]:
        masks = np.zeros((2, *images[0].shape[:2]), bool)
        for mask, (left, top, right, bottom) in zip(masks, self.BOXES, strict=True):
            mask[top:bottom, left:right] = True
        self.seen += len(images)
        return [predicted(image, self.BOXES, [0.9, 0.8], [0, 1], masks) for image in images]


@pytest.mark.parametrize("first_valid", [20, 40, 55])
def test_objects_without_data_are_dropped_and_masks_are_cut(first_valid, tmp_path):
    scene = Scene(100, 100).add_random(9, 8, 24)
    scene.numbers[:, first_valid:] += 1
    scene.numbers[:, :first_valid] = 0
    table = predict(tmp_path, scene, detector=Hallucinating(), nodata=0, tile=100)
    left = max(30, first_valid)
    expected = [] if first_valid > 50 else [(70 - left) * 20 / 4]
    assert table.geometry.area.tolist() == expected


class Tiling(PerfectDetector):
    """A detector that predicts in tiles of its own, like `Predictor(tile=64, overlap=32)`."""

    tile, overlap = 64, 32

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[tuple[int, ...]] = set()

    def __call__(self, images: list[np.ndarray]) -> list[Prediction]:
        assert self.tile is None  # else it would tile the tiles
        self.sizes |= {image.shape[:2] for image in images}
        return super().__call__(images)


@pytest.mark.parametrize(
    ("options", "tile", "overlap"),
    [
        (dict(), 64, 32),
        (dict(overlap=8), 64, 8),
        (dict(tile=80), 80, 20),
        (dict(tile=80, overlap=40), 80, 40),
    ],
)
def test_tiles_of_the_predictor_are_those_of_the_raster(options, tile, overlap, tmp_path):
    scene = Scene(160, 160).add_random(20, 8, 30)
    detector, other = Tiling(), PerfectDetector()
    table = predict(tmp_path, scene, detector=detector, **dict(tile=None) | options)
    (tmp_path / "out.gpkg").unlink()
    expected = predict(tmp_path, scene, detector=other, tile=tile, overlap=overlap)
    assert detector.sizes == {(tile, tile)} and detector.tile == 64
    assert table.to_json() == expected.to_json()


def write_area(path: Path, *shapes: shapely.Geometry) -> Path:
    """Write shapes in pixels of a raster at `NORTH_UP` as a vector file in degrees."""
    placed = geopandas.GeoSeries(list(shapes)).affine_transform(NORTH_UP.to_shapely())
    placed.set_crs("EPSG:32633").to_crs("EPSG:4326").to_file(path)
    return path


class TestAreaOfInterest:
    CROSSING = shapely.Polygon([(60.1, 80.7), (260, 280), (260.3, 80), (60, 280.2)])
    OTHER = shapely.Polygon([(99.9, 80.2), (280, 279.8), (280.7, 80), (100, 280)])

    @pytest.mark.parametrize(
        "shapes",
        [
            [shapely.box(90, 110, 190, 210)],
            [CROSSING],
            [CROSSING, OTHER],
            [CROSSING, OTHER.buffer(0)],
        ],
        ids=["square", "crosses itself", "two cross themselves", "one is valid"],
    )
    def test_it_selects_tiles_and_objects_by_their_centre(self, shapes, tmp_path, capsys):
        scene, detector = Scene(400, 400).add_random(100, 8, 24), PerfectDetector()
        aoi = write_area(tmp_path / "area.gpkg", *shapes)
        table = predict(tmp_path, scene, detector=detector, aoi=aoi, tile=100, overlap=24)
        tiles = detector.seen
        boxes = detector([scene.image])[0].boxes
        centres = shapely.points((boxes[:, :2] + boxes[:, 2:]) / 2)
        area = shapely.union_all([shapely.make_valid(shape) for shape in shapes])
        assert len(table) == area.contains(centres).sum() > 5 and tiles < 25
        count = sum(not shape.is_valid for shape in shapes)
        line = f"--aoi {aoi}: {count} shapes cross themselves and are repaired\n"
        assert (line in capsys.readouterr().err) == (count > 0)

    @pytest.mark.parametrize(
        "shape",
        [
            shapely.box(150, 20, 200, 60),
            shapely.box(100, 20, 200, 60),
            shapely.box(50.2, 50.2, 50.6, 50.6),
            shapely.box(2e8, 20, 3e8, 60),
        ],
        ids=["beside", "touching", "smaller than a pixel", "far away"],
    )
    def test_no_pixel_in_it_is_an_error_with_both_extents(self, shape, tmp_path):
        scene = Scene(100, 100).add_random(5, 8, 30)
        placed = geopandas.GeoSeries([shape]).affine_transform(NORTH_UP.to_shapely())
        placed.set_crs("EPSG:32633").to_file(tmp_path / "area.gpkg")
        raster = r"the raster \(x 500000 to 500050, y 5399950 to 5400000 in EPSG:32633\)"
        message = rf"^--aoi .* \(x .* in EPSG:32633\) covers no pixel of {raster}$"
        with pytest.raises(ValueError, match=message) as error:
            predict(tmp_path, scene, aoi=tmp_path / "area.gpkg", tile=96)
        assert "\n" not in str(error.value) and not list(tmp_path.glob("out*"))

    def test_an_area_elsewhere_on_the_earth_has_no_place_in_the_raster_s_system(self, tmp_path):
        scene = Scene(100, 100).add_random(5, 8, 30)
        area = geopandas.GeoSeries([shapely.box(-75, -89, -74, -88)], crs="EPSG:4326")
        area.to_file(tmp_path / "area.gpkg")
        with pytest.raises(ValueError, match=r"\(x -75 to -74, y -89 to -88 in EPSG:4326\) covers"):
            predict(tmp_path, scene, aoi=tmp_path / "area.gpkg", tile=96)

    def test_a_system_on_one_side_only_is_an_error(self, tmp_path):
        scene = Scene(100, 100).add_random(5, 8, 30)
        aoi = write_area(tmp_path / "area.gpkg", shapely.box(0, 0, 50, 50))
        with pytest.raises(ValueError, match="the raster has no coordinate system"):
            predict(tmp_path, scene, aoi=aoi, crs=None, transform=Affine.identity(), tile=96)


def test_a_small_raster_is_padded_to_a_tile_if_the_pipeline_resizes(tmp_path):
    """The pipeline would enlarge it, and the model would see another scale than elsewhere."""
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
