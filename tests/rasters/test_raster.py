"""Rasters of all kinds, read by windows: the pixels of image readers, one scale everywhere, or an
error of one line.
"""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")
from helpers.file_server import serve  # noqa: E402
from helpers.raster_files import UTM, noise, save  # noqa: E402
from PIL import Image  # noqa: E402
from rasterio.control import GroundControlPoint  # noqa: E402
from rasterio.enums import ColorInterp  # noqa: E402
from rasterio.rpc import RPC  # noqa: E402
from rasterio.shutil import copy  # noqa: E402
from rasterio.transform import Affine  # noqa: E402

from xcit_mm.rasters.raster import Raster  # noqa: E402
from xcit_mm.utils.images import read_image  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:(Dataset has no geotransform|The given matrix is equal)"
)
NOISE = noise(4, 70, 90)
MASKED = np.concatenate([NOISE[:3], 255 * (NOISE[3:] > 99).astype(np.uint8)])  # the alpha of a mask


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "a.tif"


def read(path: Path, **options) -> tuple[np.ndarray, np.ndarray]:
    """Read a whole raster, in windows that are not aligned with its blocks."""
    raster = Raster(path, **options)
    middle = raster.height // 3
    rows = [slice(0, middle), slice(middle, raster.height)] if middle else [slice(0, raster.height)]
    columns = slice(0, raster.width)
    images, valid = zip(*(raster.read(window, columns) for window in rows), strict=True)
    return np.concatenate(images), np.concatenate(valid)


def first_pixel(path: Path, **options) -> list[int]:
    return read(path, **options)[0][0, 0].tolist()


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
@pytest.mark.parametrize("suffix", ["png", "tif", "jp2"])
def test_pixels_of_8_bits_are_those_of_a_training_image(mode, suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(MASKED.transpose(1, 2, 0).copy()).convert(mode).save(path)
    image, valid = read(path)
    assert image.dtype == np.uint8 and valid.any()
    np.testing.assert_array_equal(image[valid], read_image(path)[valid])


class TestBands:
    @pytest.mark.parametrize("bands", [None, [1, 2, 3], [4, 3, 2]])
    def test_a_fourth_band_of_infrared_is_not_opacity(self, bands, path):
        """rasterio marks the fourth of four bands as alpha. Water has an infrared of 0."""
        stored = NOISE.copy()
        stored[3, 40:] = 0
        save(path, stored)
        with rasterio.open(path) as file:
            assert file.colorinterp[3] == ColorInterp.alpha
        notes = Raster(path, bands=bands).notes
        assert len(notes) == (0 if bands == [4, 3, 2] else 1)
        assert all(note.startswith("its band 4 is marked as alpha") for note in notes)
        image, valid = read(path, bands=bands)
        selected = [number - 1 for number in bands or [1, 2, 3]]
        np.testing.assert_array_equal(image, stored[selected[::-1]].transpose(1, 2, 0))
        assert valid.all()

    def test_a_resampled_mask_is_a_mask(self, path):
        mask = np.add.outer(np.arange(70), np.arange(90)) * 40.0 - 2000
        mask = mask.clip(0, 255).astype(np.uint8)
        save(path, np.concatenate([NOISE[:3], mask[None]]))
        np.testing.assert_array_equal(read(path)[1], mask > 0)
        assert Raster(path).notes == []

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (dict(bands=[5, 3, 2]), [2, 3, 5]),  # BGR
            (dict(bands=[4]), [4, 4, 4]),
            (dict(bands=[5, 3, 2, 1], channels=4), [5, 3, 2, 1]),
            (dict(channels=8, raw=True), [1, 2, 3, 4, 5, 6, 7, 8]),
            (dict(bands=[3, 1], channels=2, raw=True), [3, 1]),
        ],
    )
    def test_given_bands_are_red_green_and_blue_or_in_the_model_s_order(
        self, options, expected, path
    ):
        numbers = np.arange(1, 9, dtype=np.uint8)[:, None, None]
        save(path, np.broadcast_to(numbers, (8, 4, 5)))
        assert first_pixel(path, **options) == expected

    def test_color_names_of_the_file_determine_the_order(self, path):
        save(path, NOISE[:3])
        with rasterio.open(path, "r+") as file:
            file.colorinterp = [ColorInterp.blue, ColorInterp.green, ColorInterp.red]
        np.testing.assert_array_equal(read(path)[0], NOISE[:3].transpose(1, 2, 0))

    @pytest.mark.parametrize(
        ("count", "bands", "message"),
        [
            (2, None, r"has 2 bands \(1 gray, 2 undefined\), but the model takes 3"),
            (9, None, r"has 9 bands .*8 undefined, \.\.\.\).*--bands 1 2 3"),
            (5, [1, 2], "--bands 1 2: .*the model takes 3"),
            (5, [3, 2, 6], "has no band 6"),
        ],
    )
    def test_ambiguous_or_missing_bands_raise(self, count, bands, message, path):
        save(path, np.zeros((count, 4, 5), np.uint8), photometric="minisblack")
        with pytest.raises(ValueError, match=message):
            Raster(path, bands=bands)

    def test_palettes_raise_with_the_command_that_converts(self, path):
        Image.fromarray(NOISE[0]).convert("P").save(path)
        with pytest.raises(ValueError, match=r"`gdal_translate -expand rgb .*a\.tif OUT"):
            Raster(path)

    def test_complex_numbers_raise(self, path):
        save(path, NOISE[0].astype(np.complex64), **UTM)
        with pytest.raises(ValueError, match="complex numbers"):
            Raster(path)

    def test_raw_nan_and_infinity_become_0(self, path):
        stored = np.array([[[np.nan, 1]], [[np.nan, np.inf]]], np.float32)
        image, valid = read(save(path, stored), channels=2, raw=True)
        assert image.tolist() == [[[0, 0], [1, 0]]] and valid.tolist() == [[False, True]]
        assert image.dtype == np.float32


class TestScale:
    def test_each_band_has_bounds_that_become_0_and_255(self, path):
        row = np.array([[0, 100, 350, 600, 601, 65535]], np.uint16)
        save(path, np.stack([row, row, row]))
        image, _ = read(path, bounds=[100, 600, 0, 65535, 600, 601])
        assert image[0].T.tolist() == [
            [0, 0, 0, 0, 255, 255],
            [0, 0, 1, 2, 2, 255],
            [0, 0, 128, 255, 255, 255],
        ]

    @pytest.mark.parametrize("dtype", ["int8", "int16", "float64"])
    def test_types_of_any_range_are_scaled(self, dtype, path):
        save(path, np.array([[-128, -100, 0, 100, 127]], dtype))
        assert read(path, bounds=(-100, 100))[0][0, :, 0].tolist() == [0, 0, 128, 255, 255]

    @pytest.mark.parametrize(
        "options",
        [
            *(dict(bounds=bounds) for bounds in ((5, 5), (9, 1), (1,), (0, np.nan))),
            *(dict(percentiles=percentiles) for percentiles in ((98, 2), (-1, 50))),
        ],
    )
    def test_invalid_bounds_and_percentiles_raise(self, options, path):
        save(path, NOISE[:3].astype(np.uint16))
        with pytest.raises(ValueError, match=f"--{next(iter(options))} "):
            Raster(path, **options)

    def test_bounds_are_percentiles_of_the_valid_pixels_of_each_band(self, path):
        band = np.arange(1, 1002, dtype=np.uint16).repeat(5).reshape(1, 77, 65)
        save(path, np.concatenate([band, 10 * band, 0 * band]), nodata=0)
        with pytest.raises(ValueError, match="its band 3 has no valid pixel, give --bounds"):
            Raster(path)
        np.testing.assert_allclose(Raster(path, bands=[1]).bounds, [(21, 981)], atol=0.5)
        bounds = Raster(path, bands=[2], percentiles=(0, 50)).bounds
        np.testing.assert_allclose(bounds, [(10, 5010)], atol=5)

    @pytest.mark.parametrize("common", [7, 200])
    def test_a_raster_of_mostly_one_value_has_the_scale_of_the_others(self, common, path):
        stored = np.full((1, 40, 50), common, np.uint16)
        assert np.diff(Raster(save(path, stored)).bounds) == 1
        stored[0, 0, 0] = 100
        assert Raster(save(path, stored)).bounds.tolist() == [sorted((common, 100))]

    def test_a_large_raster_is_sampled(self, path):
        stored = np.tile(np.arange(3000, dtype=np.uint16), (3000, 1))
        save(path, stored, tiled=True, compress="deflate", predictor=2)
        np.testing.assert_allclose(Raster(path).bounds, [(60, 2940)], atol=60)


class TestZerosAroundAScene:
    SCENE = NOISE[:3].astype(np.uint16) + 3000

    @pytest.mark.parametrize("nodata", [None, 0])
    def test_the_scale_is_that_of_the_scene(self, nodata, path):
        expected = Raster(save(path, self.SCENE)).bounds
        collar = [(0, 0), (40, 40), (40, 40)]
        raster = Raster(save(path, np.pad(self.SCENE, collar)), nodata=nodata)
        np.testing.assert_allclose(raster.bounds, expected, atol=10)
        _, valid = raster.read(slice(0, 150), slice(0, 170))
        if nodata is None:
            (note,) = raster.notes
            assert re.match(r"zeros at its border fill \d\d% of a sample: .* --nodata 0 ", note)
            assert valid.all()
        else:
            assert raster.notes == []
            np.testing.assert_array_equal(valid, np.pad(np.ones((70, 90), bool), 40))

    @pytest.mark.parametrize(
        "zeros",
        [(slice(3), slice(20, 60), slice(20, 60)), (slice(3), slice(5), slice(20)), (0, slice(20))],
        ids=["inside", "few", "in one band"],
    )
    def test_other_zeros_are_values(self, zeros, path):
        stored = self.SCENE.copy()
        stored[zeros] = 0
        raster = Raster(save(path, stored), percentiles=(0, 100))
        assert raster.bounds[0, 0] == 0 and raster.notes == []


class TestValidity:
    def test_pixels_are_invalid_if_all_bands_are_nodata(self, path):
        save(path, np.array([[[0, 0, 1]], [[0, 9, 1]], [[0, 0, 1]]], np.uint8), nodata=0)
        image, valid = read(path)
        assert valid.tolist() == [[False, True, True]] and image[0, 1].tolist() == [0, 9, 0]

    def test_nan_and_infinity_are_invalid(self, path):
        save(path, np.array([[np.nan, np.inf, -np.inf, 1, 2, 3, -9999]], np.float32), nodata=-9999)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            image, valid = read(path, bounds=(1, 3))
        assert valid.tolist() == [[False, False, False, True, True, True, False]]
        assert image[0, :, 0].tolist() == [0, 0, 0, 0, 128, 255, 0]
        np.testing.assert_allclose(Raster(path, percentiles=(0, 100)).bounds, [(1, 3)])

    def test_an_invalid_band_of_a_valid_pixel_is_0(self, path):
        image, valid = read(save(path, np.array([[[5.0]], [[np.nan]], [[10.0]]])), bounds=(0, 10))
        assert valid.all() and image.tolist() == [[[255, 0, 128]]]

    @pytest.mark.parametrize("internal", [True, False])
    @pytest.mark.parametrize("gsd", [None, 0.25])
    def test_masks_of_a_file_or_beside_it(self, internal, gsd, path):
        save(path, NOISE[:3], **UTM)
        mask = np.zeros((70, 90), bool)
        mask[20:, 30:] = True
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=internal), rasterio.open(path, "r+") as file:
            file.write_mask(mask)
        assert path.with_name("a.tif.msk").exists() != internal
        expected = mask if gsd is None else mask.repeat(2, 0).repeat(2, 1)
        np.testing.assert_array_equal(read(path, gsd=gsd)[1], expected)


class TestGroundResolution:
    NOISE = noise(3, 240, 320)

    def test_coarser_pixels_are_averages_in_every_window(self, path):
        expected = self.NOISE.reshape(3, 120, 2, 160, 2).mean(axis=(2, 4))[::-1].transpose(1, 2, 0)
        save(path, self.NOISE, tiled=True, blockxsize=64, blockysize=64, **UTM)
        raster = Raster(path, gsd=1)
        assert (raster.height, raster.width) == (120, 160)
        assert raster.transform == Affine(1, 0, 500000, 0, -1, 5400000)
        whole, _ = raster.read(slice(0, 120), slice(0, 160))
        np.testing.assert_allclose(whole, expected, atol=0.51)
        for rows, columns in ((slice(7, 60), slice(31, 90)), (slice(60, 120), slice(159, 160))):
            image, valid = raster.read(rows, columns)
            np.testing.assert_array_equal(image, whole[rows, columns])
            assert valid.all()

    def test_a_stored_value_without_data_is_no_part_of_averages(self, path):
        stored = np.full((3, 40, 40), 7, np.uint8)
        stored[:, :, ::2] = 9
        stored[:, :, 20:] = 200
        image, valid = read(save(path, stored, **UTM), gsd=1, nodata=9)
        assert image[valid].max() == 200 and set(np.unique(image[:, :10][valid[:, :10]])) == {7}

    def test_degrees_are_converted_to_metres(self, path):
        """At a latitude of 60 degrees, a degree of longitude is half as long as one of latitude."""
        save(path, self.NOISE, crs="EPSG:4326", transform=Affine(1e-5, 0, 10, 0, -1e-5, 60))
        raster = Raster(path, gsd=1.115)
        assert (raster.height, raster.width) == (240, 160)
        a, _, _, _, e, _ = raster.transform[:6]
        assert (a, e) == pytest.approx((2e-5, -1e-5), rel=0.01)

    def test_the_scale_of_a_projection_is_no_reason_to_resample(self, path):
        image, _ = read(save(path, self.NOISE, **UTM), gsd=0.502)
        np.testing.assert_array_equal(image, self.NOISE[::-1].transpose(1, 2, 0))

    def test_without_a_place_pixels_have_no_size(self, path):
        with pytest.raises(ValueError, match=r"^--gsd 0\.5: .*a\.tif has no coordinate system"):
            Raster(save(path, self.NOISE), gsd=0.5)


class TestFiles:
    def test_a_remote_cloud_optimized_geotiff_is_read_by_windows(self, path):
        stored = noise(3, 1100, 1200)
        cog = path.with_name("cog.tif")
        copy(save(path, stored, **UTM), cog, driver="COG", compress="deflate")
        with serve(path.parent) as server:
            raster = Raster(f"{server.url}/cog.tif?token=1")
            image, _ = raster.read(slice(600, 700), slice(900, 1000))
            assert raster.transform == UTM["transform"]
            assert server.sent.value < cog.stat().st_size / 2
            with pytest.raises(OSError, match=r"^[^\n]*/gone\.tif cannot be read: [^\n]*404"):
                Raster(f"{server.url}/gone.tif")
        np.testing.assert_array_equal(image, stored[::-1, 600:700, 900:1000].transpose(1, 2, 0))

    @pytest.mark.parametrize("place", ["points", "rpcs"])
    def test_places_that_are_no_transform_raise_with_the_command_that_rectifies(self, place, path):
        if place == "points":
            corners = [(0, 0, 10.0, 50.0), (0, 90, 10.1, 50.02), (70, 0, 10.02, 49.9)]
            points = [GroundControlPoint(*corner) for corner in corners]
            profile = dict(gcps=points, crs="EPSG:4326")
        else:
            line = [1.0] + [0.0] * 19
            profile = dict(
                rpcs=RPC(0, 1, 50, 1, line, line, 3, 6, 10, 1, line, line, 5, 10, 0.1, 0.1)
            )
        save(path, NOISE[0], **profile)
        option = "" if place == "points" else "-rpc "
        with pytest.raises(ValueError, match=rf"`gdalwarp {option}-r bilinear .*a\.tif OUT.tif`$"):
            Raster(path)

    @pytest.mark.parametrize("content", [b"", b"hello", b"II*\0\x08\0\0\0\xff", None])
    def test_other_and_truncated_files_raise_in_one_line(self, content, path):
        save(path, NOISE[:3], tiled=True, blockxsize=16, blockysize=16, **UTM)
        path.write_bytes(path.read_bytes()[:-2000] if content is None else content)
        with pytest.raises(OSError, match=r"^[^\n]*a\.tif cannot be read: [^\n]+$"):
            read(path)
