"""Instances as GeoJSON: polygons cover exactly the masks, readers find the place, files are complete or absent."""

import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")
from rasterio.crs import CRS  # noqa: E402
from rasterio.transform import Affine  # noqa: E402

from xcit_mm.geo import Georeference  # noqa: E402
from xcit_mm.geo.geojson import MapInstance, write_instances  # noqa: E402
from xcit_mm.utils.run_lengths import encode_mask  # noqa: E402

NORTH_UP = Affine(0.5, 0, 500000, 0, -0.5, 5400000)
ROTATED = Affine(0.3, 0.4, 500000, 0.4, -0.3, 5400000)  # pixels of 0.25 square metres
UTM = CRS.from_epsg(32633)
PLACE = Georeference(20, 30, UTM, NORTH_UP)
CLASSES = ["road", "house", "Bäume"]
BOX = MapInstance(1, 0, 0.5, [0, 0, 1, 1])
MASKS = {
    "pixel": ["1"],
    "hole": ["1111", "1001", "1111"],
    "two": ["1101", "1101"],
    "hole at a corner": ["111", "101", "110"],
    "diagonal": ["101", "010", "101"],
    "island in a hole": ["111111", "100001", "101101", "100001", "111111", "000001"],
}


def with_mask(mask: np.ndarray, corner: tuple[int, int], place: Georeference, **values) -> MapInstance:
    code = encode_mask(mask, corner, (place.height, place.width))["counts"]
    return BOX._replace(mask=code.decode(), **values)


def write_and_read(path: Path, place: Georeference, *instances: MapInstance) -> dict:
    write_instances(path, place, CLASSES, instances)
    return json.loads(path.read_text())


@pytest.mark.parametrize("transform", [NORTH_UP, ROTATED, Affine(0.5, 0, 0, 0, 0.5, 0), Affine(0, -0.5, 9, 0.5, 0, 9)])
@pytest.mark.parametrize("name", [*MASKS, "noise"])
def test_polygons_cover_exactly_the_mask(name, transform, tmp_path):
    shapely = pytest.importorskip("shapely")
    rows = MASKS.get(name)
    mask = np.array([[pixel == "1" for pixel in row] for row in rows]) if rows else None
    mask = np.random.default_rng(0).random((30, 40)) > 0.5 if mask is None else mask
    place = Georeference(200, 150, UTM, transform)
    collection = write_and_read(tmp_path / "a.geojson", place, with_mask(mask, (120, 70), place))
    geometry = shapely.geometry.shape(collection["features"][0]["geometry"])
    assert geometry.is_valid
    # Relative to the corner, since far from the origin areas are differences of large products.
    (a, b, _, d, e, _), corner = tuple(transform)[:6], transform @ (70, 120)
    near = shapely.affinity.translate(geometry, -corner[0], -corner[1])
    assert near.area == pytest.approx(0.25 * mask.sum(), rel=1e-6)
    for (row, column), covered in np.ndenumerate(mask):
        x, y = column + 0.5, row + 0.5
        assert near.contains(shapely.Point(a * x + b * y, d * x + e * y)) == covered
    polygons = geometry.geoms if hasattr(geometry, "geoms") else [geometry]
    assert all(polygon.exterior.is_ccw and not any(hole.is_ccw for hole in polygon.interiors) for polygon in polygons)
    assert len(polygons) == cv2.connectedComponents(mask.astype(np.uint8), connectivity=4)[0] - 1


def test_without_a_place_coordinates_are_pixels(tmp_path):
    place = Georeference(20, 30, None, Affine.identity())
    instance = with_mask(np.ones((2, 3), bool), (5, 7), place, id=4, label=2)
    collection = write_and_read(tmp_path / "a.geojson", place, instance)
    (feature,) = collection["features"]
    assert feature["geometry"]["type"] == "Polygon"
    (ring,) = feature["geometry"]["coordinates"]
    assert ring[0] == ring[-1] and sorted(ring[:4]) == [[7, 5], [7, 7], [10, 5], [10, 7]]
    properties = {"id": 4, "class": "Bäume", "label": 2, "score": 0.5, "cut": False, "area": None}
    assert feature["properties"] == properties
    assert "crs" not in collection and collection["properties"]["coordinates"].startswith("pixels of the image")


def test_a_transform_of_an_unknown_crs_is_applied_and_reported(tmp_path):
    collection = write_and_read(tmp_path / "a.geojson", PLACE._replace(crs=None), BOX)
    assert [500000, 5400000] in collection["features"][0]["geometry"]["coordinates"][0]
    assert "crs" not in collection and "unknown" in collection["properties"]["coordinates"]


def test_boxes_without_masks_and_empty_instances(tmp_path):
    box, empty_box = BOX._replace(box=[2.5, 4, 6, 10]), BOX._replace(box=[3, 3, 3, 9])
    empty_mask = with_mask(np.zeros((2, 2), bool), (0, 0), PLACE)
    features = write_and_read(tmp_path / "a.geojson", PLACE, box, empty_box, empty_mask)["features"]
    assert sorted(features[0]["geometry"]["coordinates"][0][:4]) == [
        [500001.25, 5399995.0], [500001.25, 5399998.0], [500003.0, 5399995.0], [500003.0, 5399998.0]
    ]  # fmt: skip
    assert [feature["geometry"] for feature in features[1:]] == [None, None]


@pytest.mark.parametrize(
    "crs", ["EPSG:32633", "EPSG:4326", "OGC:CRS84", "EPSG:4258", "EPSG:32633+5773", "custom", None]
)
def test_geopandas_reads_place_and_properties(crs, tmp_path):
    geopandas = pytest.importorskip("geopandas")
    custom = "+proj=laea +lat_0=10 +lon_0=20 +ellps=GRS80 +units=m"
    given = crs and CRS.from_string(custom if crs == "custom" else crs)
    place = Georeference(20, 30, given, Affine(0.1, 0, 11, 0, -0.1, 48))
    write_and_read(tmp_path / "a.geojson", place, *(MapInstance(n, n % 3, n / 10, [n, 2, n + 2, 6]) for n in range(5)))
    table = geopandas.read_file(tmp_path / "a.geojson")
    assert len(table) == 5 and list(table["class"][:3]) == CLASSES and list(table["id"]) == list(range(5))
    np.testing.assert_allclose(table.score, np.arange(5) / 10)
    assert table.total_bounds == pytest.approx([11, 47.4, 11.6, 47.8])
    if crs is not None:
        import pyproj

        expected = pyproj.CRS("EPSG:4326" if crs == "OGC:CRS84" else custom if crs == "custom" else crs)
        assert pyproj.CRS(table.crs).equals(expected, ignore_axis_order=True) or (
            crs == "custom" and "laea" in table.crs.to_proj4()
        )


def test_no_instances(tmp_path):
    collection = write_and_read(tmp_path / "a.geojson", PLACE)
    assert collection["features"] == []
    assert collection["crs"]["properties"]["name"] == "urn:ogc:def:crs:EPSG::32633"


def test_instances_are_streamed_and_a_former_file_stays_after_an_error(tmp_path):
    path = tmp_path / "a.geojson"
    write_and_read(path, PLACE, BOX)
    before = path.read_bytes()

    def interrupted():
        yield from [BOX] * 10_000
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 1_500_000
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_instances(path, PLACE, CLASSES, interrupted())
    for invalid, message in (
        (BOX._replace(label=3), "instance 1 has the label 3"),
        (BOX._replace(score=float("nan")), "not JSON compliant"),
        (BOX._replace(mask="0"), "a run-length code of 0 pixels"),
        (BOX._replace(mask="a b"), "not a run-length code: a b"),
    ):
        with pytest.raises(ValueError, match=message):
            write_instances(path, PLACE, CLASSES, [BOX, invalid])
    assert path.read_bytes() == before and len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize("crs", [32633, 4326, 3857, 2263])
def test_areas_are_in_square_metres_in_every_coordinate_system(crs, tmp_path):
    """Pixels of 0.5 m at a latitude of 52 degrees. EPSG:3857 stretches them by 1.6, EPSG:2263 counts in feet."""
    from rasterio.warp import transform

    (x,), (y,) = transform("EPSG:4326", f"EPSG:{crs}", [15.0], [52.0])
    side = {32633: (0.5, 0.5), 4326: (0.5 / 68677.5, 0.5 / 111267.7), 3857: (0.5 * 1.62093, 0.5 * 1.62498)}
    if crs == 2263:  # New York
        (x,), (y,), side[crs] = *transform("EPSG:4326", "EPSG:2263", [-74.0], [40.7]), (0.5 / 0.3048, 0.5 / 0.3048)
    place = Georeference(200, 150, CRS.from_epsg(crs), Affine(side[crs][0], 0, x, 0, -side[crs][1], y))
    mask = with_mask(np.ones((10, 20), bool), (120, 70), place, box=[70, 120, 90, 130])
    features = write_and_read(tmp_path / "a.geojson", place, mask, BOX._replace(box=[0, 0, 8, 5]))["features"]
    assert [one["properties"]["area"] for one in features] == pytest.approx([50, 10], rel=0.004)


def test_polygons_in_another_coordinate_system(tmp_path):
    write_instances(tmp_path / "a.geojson", PLACE, CLASSES, [BOX], "EPSG:4326")
    collection = json.loads((tmp_path / "a.geojson").read_text())
    ring = np.array(collection["features"][0]["geometry"]["coordinates"][0])
    assert "crs" not in collection and np.allclose(ring, [15, 48.75], atol=0.01)
    for place, crs, message in ((PLACE._replace(crs=None), "EPSG:4326", "no coordinate"), (PLACE, "x", "not a coord")):
        with pytest.raises(ValueError, match=f"^--crs {crs}: .*{message}"):
            write_instances(tmp_path / "b.geojson", place, CLASSES, [BOX], crs)


@pytest.mark.parametrize(("first", "expected"), [(190, -170), (-185, 175), (179.995, 179.995)])
def test_longitudes_beyond_180_are_wrapped(first, expected, tmp_path):
    place = Georeference(20, 30, CRS.from_epsg(4326), Affine(0.01, 0, first, 0, -0.01, 50))
    (feature,) = write_and_read(tmp_path / "a.geojson", place, BOX)["features"]
    assert min(x for x, _ in feature["geometry"]["coordinates"][0]) == pytest.approx(expected)
