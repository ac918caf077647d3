"""Rasters at another ground resolution, and within an area of interest."""

import json
from pathlib import Path

import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")
from rasterio.transform import Affine  # noqa: E402
from rasterio.warp import transform_geom  # noqa: E402

from xcit_mm.geo import Raster  # noqa: E402
from xcit_mm.geo.area import points_within, read_area  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
UTM = dict(crs="EPSG:32633", transform=Affine(0.25, 0, 500000, 0, -0.25, 5400000))
NOISE = np.random.default_rng(0).integers(1, 256, (3, 240, 320), np.uint8)


def save(path: Path, bands: np.ndarray = NOISE, **profile: object) -> Path:
    count, height, width = bands.shape
    with rasterio.open(path, "w", "GTiff", width, height, count, dtype=bands.dtype, **profile) as file:
        file.write(bands)
    return path


def read(raster: Raster) -> np.ndarray:
    return raster.read(slice(0, raster.height), slice(0, raster.width))[0]


_CORNERS = [[500010, 5399950], [500060, 5399950], [500060, 5399980], [500010, 5399980], [500010, 5399950]]
SQUARE = dict(type="Polygon", coordinates=[_CORNERS])


class TestGroundResolution:
    @pytest.mark.parametrize("profile", [dict(), dict(tiled=True, blockxsize=64, blockysize=64)])
    def test_coarser_pixels_are_averages_in_every_window(self, profile, tmp_path):
        expected = NOISE.reshape(3, 120, 2, 160, 2).mean(axis=(2, 4))[::-1].transpose(1, 2, 0)
        with Raster(save(tmp_path / "a.tif", **profile, **UTM), gsd=0.5) as raster:
            assert (raster.height, raster.width) == (120, 160)
            assert raster.georeference.transform == Affine(0.5, 0, 500000, 0, -0.5, 5400000)
            whole = read(raster)
            np.testing.assert_allclose(whole, expected, atol=0.51)
            for rows, columns in ((slice(7, 60), slice(31, 90)), (slice(60, 120), slice(159, 160))):
                image, valid = raster.read(rows, columns)
                np.testing.assert_array_equal(image, whole[rows, columns])
                assert valid.all() and raster.valid(rows, columns).shape == valid.shape

    def test_finer_pixels_and_nodata(self, tmp_path):
        values = NOISE.copy()
        values[:, :100] = 0
        with Raster(save(tmp_path / "a.tif", values, nodata=0, **UTM), gsd=0.1) as raster:
            assert (raster.height, raster.width) == (600, 800)
            valid = raster.valid(slice(0, 600), slice(0, 800))
            assert not valid[:249].any() and valid[251:].all()

    def test_pixels_come_from_the_overview(self, tmp_path):
        path = save(tmp_path / "a.tif", tiled=True, blockxsize=64, blockysize=64, **UTM)
        with rasterio.open(path, "r+") as file:
            file.build_overviews([2, 4])
        with rasterio.open(path, "r+", OVERVIEW_LEVEL=1) as overview:  # the overview has other pixels
            overview.write(np.full((3, 60, 80), 7, np.uint8))
        for gsd, is_overview in ((1, True), (1.6, True), (0.6, False)):
            assert (read(Raster(path, gsd=gsd)) == 7).all() == is_overview

    def test_degrees_are_converted_to_metres(self, tmp_path):
        """At a latitude of 60 degrees, a degree of longitude is half as long as one of latitude."""
        place = dict(crs="EPSG:4326", transform=Affine(1e-5, 0, 10, 0, -1e-5, 60))
        with Raster(save(tmp_path / "a.tif", **place), gsd=1.115) as raster:
            assert (raster.height, raster.width) == (240, 160)
            a, _, _, _, e, _ = raster.georeference.transform[:6]
            assert (a, e) == pytest.approx((2e-5, -1e-5), rel=0.01)

    def test_the_scale_of_a_projection_is_not_a_reason_to_resample(self, tmp_path):
        with Raster(save(tmp_path / "a.tif", **UTM), gsd=0.251) as raster:
            np.testing.assert_array_equal(read(raster), NOISE[::-1].transpose(1, 2, 0))

    def test_without_a_place_the_ground_resolution_is_unknown(self, tmp_path):
        with pytest.raises(ValueError, match=r"^--gsd 0\.5: .*a\.tif has no coordinate system: assign one by"):
            Raster(save(tmp_path / "a.tif"), gsd=0.5)


class TestArea:
    @pytest.mark.parametrize("crs", ["EPSG:32633", "EPSG:4326", "EPSG:3857"])
    def test_pixels_outside_are_invalid(self, crs, tmp_path):
        geometry = transform_geom("EPSG:32633", crs, SQUARE)
        content = dict(type="FeatureCollection", features=[dict(type="Feature", properties={}, geometry=geometry)])
        if crs != "EPSG:4326":
            content["crs"] = dict(type="name", properties=dict(name=f"urn:ogc:def:crs:{crs.replace(':', '::')}"))
        (tmp_path / "area.json").write_text(json.dumps(content))
        area = read_area(str(tmp_path / "area.json"))
        with Raster(save(tmp_path / "a.tif", **UTM), aoi=area) as raster:
            image, valid = raster.read(slice(0, 240), slice(0, 320))
            expected = np.zeros((240, 320), bool)
            expected[80:200, 40:240] = True
            assert (valid != expected).sum() <= 2 * (120 + 200)  # an edge that is curved in the other system
            np.testing.assert_array_equal(valid, raster.valid(slice(0, 240), slice(0, 320)))
            np.testing.assert_array_equal(image, NOISE[::-1].transpose(1, 2, 0))  # the model sees the surroundings
            y, x = np.indices(expected.shape).reshape(2, -1) + 0.5
            found = points_within(raster.area, np.stack([x, y], axis=1)).reshape(expected.shape)
            np.testing.assert_array_equal(found, valid)
            assert raster.is_outside(slice(0, 70), slice(0, 320)) and not raster.is_outside(slice(0, 90), slice(0, 320))

    def test_holes_and_several_polygons(self):
        outer, hole = [[0, 0], [9, 0], [9, 9], [0, 9], [0, 0]], [[2, 2], [4, 2], [4, 4], [2, 4], [2, 2]]
        other = [[20, 0], [21, 0], [20, 1], [20, 0]]
        polygons = [dict(type="MultiPolygon", coordinates=[[outer, hole], [other]])]
        points = np.array([[1, 1], [3, 3], [8, 3], [20.2, 0.2], [20.8, 0.8], [-1, 3]])
        assert points_within(polygons, points).tolist() == [True, False, True, True, False, False]

    def test_files_without_polygons_raise(self, tmp_path):
        (tmp_path / "a.json").write_text('{"type": "Point", "coordinates": [1, 2]}')
        (tmp_path / "b.json").write_text("{")
        for name, message in (("a", "has no polygons"), ("b", "is not a GeoJSON")):
            with pytest.raises(ValueError, match=rf"^--aoi .*{name}\.json {message}"):
                read_area(str(tmp_path / f"{name}.json"))
        with pytest.raises(FileNotFoundError, match=r"--aoi .* does not exist"):
            read_area("gone.json")

    def test_a_raster_without_a_place_raises(self, tmp_path):
        area = json.dumps(dict(crs="EPSG:4326", polygons=[SQUARE]))
        with pytest.raises(ValueError, match=r"a\.tif has no coordinate system to place the --aoi in"):
            Raster(save(tmp_path / "a.tif"), aoi=area)
