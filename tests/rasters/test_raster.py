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
from helpers.raster_files import UTM, save  # noqa: E402
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
NOISE = np.random.default_rng(0).integers(0, 256, (4, 70, 90), np.uint8)
MASKED = np.concatenate([NOISE[:3], 255 * (NOISE[3:] > 99).astype(np.uint8)])  # the alpha of a mask


def read(path: Path | str, **options) -> tuple[np.ndarray, np.ndarray]:
    """Read a whole raster, in windows that are not aligned with its blocks."""
    raster = Raster(path, **options)
    rows = np.array_split(np.arange(raster.height), 3)
    found = [raster.read(slice(a[0], a[-1] + 1), slice(0, raster.width)) for a in rows if len(a)]
    images, valid = zip(*found, strict=True)
    return np.concatenate(images), np.concatenate(valid)


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
    def test_a_fourth_band_of_infrared_is_not_opacity(self, bands, tmp_path):
        """rasterio marks the fourth of four bands as alpha. Water has an infrared of 0."""
        values = NOISE.copy()
        values[3, 40:] = 0
        path = save(tmp_path / "a.tif", values)
        with rasterio.open(path) as file:
            assert file.colorinterp[3] == ColorInterp.alpha
        problem = "its band 4 is marked as alpha, but varies as an image does"
        note = f"{problem}: it is neither used nor a mask"
        assert Raster(path, bands=bands).notes == ([] if bands == [4, 3, 2] else [note])
        image, valid = read(path, bands=bands)
        selected = [number - 1 for number in bands or [1, 2, 3]]
        np.testing.assert_array_equal(image, values[selected[::-1]].transpose(1, 2, 0))
        assert valid.all()

    def test_a_resampled_mask_is_a_mask(self, tmp_path):
        mask = np.clip(np.add.outer(np.arange(70), np.arange(90)) * 40.0 - 2000, 0, 255).astype(
            np.uint8
        )
        path = save(tmp_path / "a.tif", np.concatenate([NOISE[:3], mask[None]]))
        np.testing.assert_array_equal(read(path)[1], mask > 0)
        assert Raster(path).notes == []

    def test_given_bands_are_red_green_and_blue_or_in_the_model_s_order(self, tmp_path):
        path = save(
            tmp_path / "a.tif",
            np.arange(1, 9, dtype=np.uint8)[:, None, None] * np.ones((4, 5), np.uint8),
        )
        assert read(path, bands=[5, 3, 2])[0][0, 0].tolist() == [2, 3, 5]  # BGR
        assert read(path, bands=[4])[0][0, 0].tolist() == [4, 4, 4]
        assert read(path, bands=[5, 3, 2, 1], channels=4)[0][0, 0].tolist() == [5, 3, 2, 1]
        assert read(path, channels=8, raw=True)[0][0, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
        assert read(path, bands=[3, 1], channels=2, raw=True)[0][0, 0].tolist() == [3, 1]

    def test_color_names_of_the_file_determine_the_order(self, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3])
        with rasterio.open(path, "r+") as file:
            file.colorinterp = [ColorInterp.blue, ColorInterp.green, ColorInterp.red]
        np.testing.assert_array_equal(read(path)[0], NOISE[:3].transpose(1, 2, 0))

    @pytest.mark.parametrize(
        "count, given, message",
        [
            (2, None, r"has 2 bands \(1 gray, 2 undefined\), but the model takes 3"),
            (5, None, r"has 5 bands .*--bands 1 2 3"),
            (5, [1, 2], "--bands 1 2: .*the model takes 3"),
            (5, [3, 2, 6], "has no band 6"),
        ],
    )
    def test_ambiguous_or_missing_bands_raise(self, count, given, message, tmp_path):
        path = save(tmp_path / "a.tif", np.zeros((count, 4, 5), np.uint8), photometric="minisblack")
        with pytest.raises(ValueError, match=message):
            Raster(path, bands=given)

    def test_palettes_and_complex_numbers_raise(self, tmp_path):
        Image.fromarray(NOISE[0]).convert("P").save(tmp_path / "a.tif")
        message = r"has a palette: convert it by `gdal_translate -expand rgb .*a\.tif OUT"
        with pytest.raises(ValueError, match=message):
            Raster(tmp_path / "a.tif")
        path = save(tmp_path / "b.tif", NOISE[0].astype(np.complex64), **UTM)
        with pytest.raises(ValueError, match=r"b\.tif holds complex numbers"):
            Raster(path)

    def test_raw_nan_and_infinity_become_0(self, tmp_path):
        values = np.array([[[np.nan, 1]], [[np.nan, np.inf]]], np.float32)
        image, valid = read(save(tmp_path / "a.tif", values), channels=2, raw=True)
        assert image.tolist() == [[[0, 0], [1, 0]]] and valid.tolist() == [[False, True]]
        assert image.dtype == np.float32


class TestScale:
    def test_given_bounds_become_0_and_255(self, tmp_path):
        values = np.array([[0, 100, 350, 600, 601, 65535]], np.uint16)
        path = save(tmp_path / "a.tif", np.stack([values, values, values]))
        image, _ = read(path, bounds=[100, 600, 0, 65535, 600, 601])
        assert image[0].T.tolist() == [
            [0, 0, 0, 0, 255, 255],
            [0, 0, 1, 2, 2, 255],
            [0, 0, 128, 255, 255, 255],
        ]
        assert read(path, bounds=(100, 600))[0][0, :, 0].tolist() == [0, 0, 128, 255, 255, 255]
        for dtype in ("int8", "float64"):
            path = save(tmp_path / f"{dtype}.tif", np.array([[-128, -100, 0, 100, 127]], dtype))
            assert read(path, bounds=(-100, 100))[0][0, :, 0].tolist() == [0, 0, 128, 255, 255]

    @pytest.mark.parametrize(
        "options",
        [
            *(dict(bounds=bounds) for bounds in ((5, 5), (9, 1), (1,), (0, np.nan))),
            *(dict(percentiles=percentiles) for percentiles in ((98, 2), (-1, 50))),
        ],
    )
    def test_invalid_bounds_and_percentiles_raise(self, options, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3].astype(np.uint16))
        name = "--bounds" if "bounds" in options else "--percentiles"
        with pytest.raises(
            ValueError,
            match=rf"{name} .*(give one pair|lower value must come first|lower one first)",
        ):
            Raster(path, **options)

    def test_bounds_are_percentiles_of_the_valid_pixels_of_each_band(self, tmp_path):
        values = np.arange(1, 1002, dtype=np.uint16).repeat(5).reshape(1, 77, 65)
        path = save(
            tmp_path / "a.tif", np.concatenate([values, 10 * values, values % 7 * 0]), nodata=0
        )
        with pytest.raises(
            ValueError, match=r"a\.tif: a sample of its band 3 has no valid pixel, give --bounds"
        ):
            Raster(path)
        np.testing.assert_allclose(Raster(path, bands=[1]).bounds, [(21, 981)], atol=0.5)
        np.testing.assert_allclose(
            Raster(path, bands=[2], percentiles=(0, 50)).bounds, [(10, 5010)], atol=5
        )

    def test_a_large_raster_is_sampled(self, tmp_path):
        values = np.tile(np.arange(3000, dtype=np.uint16), (3000, 1))
        path = save(tmp_path / "a.tif", values, tiled=True, compress="deflate", predictor=2)
        np.testing.assert_allclose(Raster(path).bounds, [(60, 2940)], atol=60)


def collar(values: np.ndarray, width: int = 40) -> np.ndarray:
    """Return bands with zeros around them, as of a scene that was rotated or cut."""
    return np.pad(values, [(0, 0), (width, width), (width, width)])


class TestZerosAroundAScene:
    SCENE = NOISE[:3].astype(np.uint16) + 3000

    @pytest.mark.parametrize("nodata", [None, 0])
    def test_the_scale_is_that_of_the_scene(self, nodata, tmp_path):
        expected = Raster(save(tmp_path / "a.tif", self.SCENE)).bounds
        raster = Raster(save(tmp_path / "b.tif", collar(self.SCENE)), nodata=nodata)
        np.testing.assert_allclose(raster.bounds, expected, atol=10)
        _, valid = raster.read(slice(0, 150), slice(0, 170))
        if nodata is None:
            (note,) = raster.notes
            assert re.match(r"zeros at its border fill \d\d% of a sample: .* --nodata 0 ", note)
            assert valid.all()
        else:
            assert raster.notes == []
            np.testing.assert_array_equal(valid, collar(np.ones((1, 70, 90), bool))[0])

    @pytest.mark.parametrize(
        "zeros",
        [(slice(3), slice(20, 60), slice(20, 60)), (slice(3), slice(5), slice(20)), (0, slice(20))],
        ids=["inside", "few", "in one band"],
    )
    def test_other_zeros_are_values(self, zeros, tmp_path):
        values = self.SCENE.copy()
        values[zeros] = 0
        raster = Raster(save(tmp_path / "a.tif", values), percentiles=(0, 100))
        assert raster.bounds[0, 0] == 0 and raster.notes == []

    def test_a_stored_value_without_data_is_no_part_of_averages(self, tmp_path):
        values = np.full((3, 40, 40), 7, np.uint8)
        values[:, :, ::2] = 9
        values[:, :, 20:] = 200
        path = save(tmp_path / "a.tif", values, **UTM)
        image, valid = read(path, gsd=1, nodata=9)
        assert image[valid].max() == 200 and set(np.unique(image[:, :10][valid[:, :10]])) == {7}


class TestValidity:
    def test_pixels_are_invalid_if_all_bands_are_nodata(self, tmp_path):
        path = save(
            tmp_path / "a.tif",
            np.array([[[0, 0, 1]], [[0, 9, 1]], [[0, 0, 1]]], np.uint8),
            nodata=0,
        )
        image, valid = read(path)
        assert valid.tolist() == [[False, True, True]] and image[0, 1].tolist() == [0, 9, 0]

    def test_nan_and_infinity_are_invalid(self, tmp_path):
        values = np.array([[np.nan, np.inf, -np.inf, 1, 2, 3, -9999]], np.float32)
        path = save(tmp_path / "a.tif", values, nodata=-9999)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            image, valid = read(path, bounds=(1, 3))
        assert valid.tolist() == [[False, False, False, True, True, True, False]]
        assert image[0, :, 0].tolist() == [0, 0, 0, 0, 128, 255, 0]
        np.testing.assert_allclose(Raster(path, percentiles=(0, 100)).bounds, [(1, 3)])

    def test_an_invalid_band_of_a_valid_pixel_is_0(self, tmp_path):
        image, valid = read(
            save(tmp_path / "a.tif", np.array([[[5.0]], [[np.nan]], [[10.0]]])), bounds=(0, 10)
        )
        assert valid.all() and image.tolist() == [[[255, 0, 128]]]

    @pytest.mark.parametrize("internal", [True, False])
    @pytest.mark.parametrize("gsd", [None, 0.25])
    def test_masks(self, internal, gsd, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3], **UTM)
        mask = np.zeros((70, 90), bool)
        mask[20:, 30:] = True
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=internal), rasterio.open(path, "r+") as file:
            file.write_mask(mask)
        assert (tmp_path / "a.tif.msk").exists() != internal
        valid = read(path, gsd=gsd)[1]
        np.testing.assert_array_equal(
            valid, mask if gsd is None else mask.repeat(2, 0).repeat(2, 1)
        )


class TestGroundResolution:
    NOISE = np.random.default_rng(0).integers(1, 256, (3, 240, 320), np.uint8)

    def test_coarser_pixels_are_averages_in_every_window(self, tmp_path):
        expected = self.NOISE.reshape(3, 120, 2, 160, 2).mean(axis=(2, 4))[::-1].transpose(1, 2, 0)
        raster = Raster(
            save(tmp_path / "a.tif", self.NOISE, tiled=True, blockxsize=64, blockysize=64, **UTM),
            gsd=1,
        )
        assert (raster.height, raster.width) == (120, 160)
        assert raster.transform == Affine(1, 0, 500000, 0, -1, 5400000)
        whole, _ = raster.read(slice(0, 120), slice(0, 160))
        np.testing.assert_allclose(whole, expected, atol=0.51)
        for rows, columns in ((slice(7, 60), slice(31, 90)), (slice(60, 120), slice(159, 160))):
            image, valid = raster.read(rows, columns)
            np.testing.assert_array_equal(image, whole[rows, columns])
            assert valid.all()

    def test_degrees_are_converted_to_metres(self, tmp_path):
        """At a latitude of 60 degrees, a degree of longitude is half as long as one of latitude."""
        place = dict(crs="EPSG:4326", transform=Affine(1e-5, 0, 10, 0, -1e-5, 60))
        raster = Raster(save(tmp_path / "a.tif", self.NOISE, **place), gsd=1.115)
        assert (raster.height, raster.width) == (240, 160)
        a, _, _, _, e, _ = raster.transform[:6]
        assert (a, e) == pytest.approx((2e-5, -1e-5), rel=0.01)

    def test_the_scale_of_a_projection_is_no_reason_and_no_place_no_way_to_resample(self, tmp_path):
        image, _ = read(save(tmp_path / "a.tif", self.NOISE, **UTM), gsd=0.502)
        np.testing.assert_array_equal(image, self.NOISE[::-1].transpose(1, 2, 0))
        with pytest.raises(
            ValueError, match=r"^--gsd 0\.5: .*b\.tif has no coordinate system: assign one by"
        ):
            Raster(save(tmp_path / "b.tif", self.NOISE), gsd=0.5)


class TestFiles:
    def test_a_remote_cloud_optimized_geotiff_is_read_by_windows(self, tmp_path):
        values = np.random.default_rng(0).integers(0, 256, (3, 1100, 1200), np.uint8)
        copy(
            save(tmp_path / "a.tif", values, **UTM),
            tmp_path / "cog.tif",
            driver="COG",
            compress="deflate",
        )
        with serve(tmp_path) as server:
            raster = Raster(f"{server.url}/cog.tif?token=1")
            image, _ = raster.read(slice(600, 700), slice(900, 1000))
            assert raster.transform == UTM["transform"]
            assert server.sent.value < (tmp_path / "cog.tif").stat().st_size / 2
            with pytest.raises(OSError, match=r"^[^\n]*/gone\.tif cannot be read: [^\n]*404"):
                Raster(f"{server.url}/gone.tif")
        np.testing.assert_array_equal(image, values[::-1, 600:700, 900:1000].transpose(1, 2, 0))

    @pytest.mark.parametrize("kind", ["points", "rpcs"])
    def test_places_that_are_no_transform_raise_with_the_command_that_rectifies(
        self, kind, tmp_path
    ):
        corners = [
            (0, 0, 10.0, 50.0),
            (0, 90, 10.1, 50.02),
            (70, 0, 10.02, 49.9),
            (70, 90, 10.12, 49.92),
        ]
        line = [1.0] + [0.0] * 19
        place = dict(rpcs=RPC(0, 1, 50, 1, line, line, 3, 6, 10, 1, line, line, 5, 10, 0.1, 0.1))
        if kind == "points":
            place = dict(gcps=[GroundControlPoint(*corner) for corner in corners], crs="EPSG:4326")
        path = save(tmp_path / "a.tif", NOISE[0], **place)
        option = "-rpc " * (kind == "rpcs")
        with pytest.raises(
            ValueError,
            match=rf"rectify it first by `gdalwarp {option}-r bilinear [^\n]*a\.tif OUT.tif`$",
        ):
            Raster(path)

    @pytest.mark.parametrize("content", [b"", b"hello", b"II*\0\x08\0\0\0\xff", None])
    def test_other_and_truncated_files_raise_in_one_line(self, content, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3], tiled=True, blockxsize=16, blockysize=16, **UTM)
        path.write_bytes(path.read_bytes()[:-2000] if content is None else content)
        with pytest.raises(OSError, match=r"^[^\n]*a\.tif cannot be read: [^\n]+$"):
            read(path)
        with pytest.raises(OSError, match=r"gone\.tif cannot be read: .*No such file"):
            Raster(tmp_path / "gone.tif")
