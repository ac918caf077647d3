"""Rasters of all kinds, read by windows: the pixels of image readers, one scale everywhere, or an
error of one line.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import rasterio
from helpers.raster_files import UTM, noise, read_raster, save
from PIL import Image
from rasterio.enums import ColorInterp

from xcit_mm.rasters.old_raster import Raster
from xcit_mm.utils.images import read_image

pytestmark = pytest.mark.filterwarnings(
    "ignore:(Dataset has no geotransform|The given matrix is equal)"
)
NOISE = noise(4, 70, 90)
MASKED = np.concatenate([NOISE[:3], 255 * (NOISE[3:] > 99).astype(np.uint8)])  # the alpha of a mask


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "a.tif"


def first_pixel(path: Path, **options) -> list[int]:
    return read_raster(path, **options)[0][0, 0].tolist()


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
@pytest.mark.parametrize("suffix", ["png", "tif", "jp2"])
def test_pixels_of_8_bits_are_those_of_a_training_image(mode, suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    photo = tmp_path / "photo.png"  # TIFFs with opacity are for rasters alone
    for file in (path, photo):
        Image.fromarray(MASKED.transpose(1, 2, 0).copy()).convert(mode).save(file)
    image, valid = read_raster(path)
    assert image.dtype == np.uint8 and valid.any()
    np.testing.assert_array_equal(image[valid], read_image(photo)[valid])


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
        image, valid = read_raster(path, bands=bands)
        selected = [number - 1 for number in bands or [1, 2, 3]]
        np.testing.assert_array_equal(image, stored[selected[::-1]].transpose(1, 2, 0))
        assert valid.all()
        assert read_raster(path, bands=bands or [1, 2, 3], raw=True)[1].all()

    def test_a_resampled_mask_is_a_mask(self, path):
        mask = np.add.outer(np.arange(70), np.arange(90)) * 40.0 - 2000
        mask = mask.clip(0, 255).astype(np.uint8)
        save(path, np.concatenate([NOISE[:3], mask[None]]))
        np.testing.assert_array_equal(read_raster(path)[1], mask > 0)
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
        np.testing.assert_array_equal(read_raster(path)[0], NOISE[:3].transpose(1, 2, 0))

    @pytest.mark.parametrize(
        ("count", "bands", "message"),
        [
            (2, None, r"has 2 bands \(1 gray, 2 undefined\), but the model takes 3"),
            (9, None, r"has 9 bands \(1 gray, .* and 6 more\), .*--bands 1 2 3"),
            (5, [1, 2], "--bands 1 2: .*the model takes 3"),
            (5, [3, 2, 6], "has no band 6"),
        ],
    )
    def test_ambiguous_or_missing_bands_raise(self, count, bands, message, path):
        save(path, np.zeros((count, 4, 5), np.uint8), photometric="minisblack")
        with pytest.raises(ValueError, match=message):
            Raster(path, bands=bands)

    def test_palettes_and_complex_numbers_raise(self, path):
        Image.fromarray(NOISE[0]).convert("P").save(path)
        with pytest.raises(ValueError, match=r"`gdal_translate -expand rgb .*a\.tif OUT"):
            Raster(path)
        with pytest.raises(ValueError, match="complex numbers"):
            Raster(save(path, NOISE[0].astype(np.complex64), **UTM))

    def test_raw_nan_and_infinity_become_0(self, path):
        stored = np.array([[[np.nan, 1]], [[np.nan, np.inf]]], np.float32)
        image, valid = read_raster(save(path, stored), channels=2, raw=True)
        assert image.tolist() == [[[0, 0], [1, 0]]] and valid.tolist() == [[False, True]]
        assert image.dtype == np.float32


class TestScale:
    @pytest.mark.parametrize("dtype", ["int16", "int32", "float64"])
    def test_each_band_has_bounds_that_become_0_and_255(self, dtype, path):
        row = np.array([[-100, 0, 250, 500, 501, 32767]], dtype)
        save(path, np.stack([row, row, row]))
        image, _ = read_raster(path, bounds=[0, 500, -100, 32767, 500, 501])
        assert image[0].T.tolist() == [
            [0, 0, 0, 0, 255, 255],
            [0, 1, 3, 5, 5, 255],
            [0, 0, 128, 255, 255, 255],
        ]

    @pytest.mark.parametrize(
        "options",
        [
            *(dict(bounds=bounds) for bounds in ((5, 5), (9, 1), (1,), (0, np.nan))),
            *(dict(percentiles=percentiles) for percentiles in ((98, 2), (-1, 50))),
            dict(percentiles=(2, 98), bounds=(0, 9)),
            dict(gsd=0.5),  # of a file without a place
        ],
    )
    def test_options_that_do_not_match_raise(self, options, path):
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

    def test_percentiles_without_an_effect_are_noted(self, path):
        assert "--percentiles" in Raster(save(path, NOISE[:3]), percentiles=(2, 98)).notes[0]

    def test_a_sample_shows_all_of_a_large_raster(self, path):
        save(path, np.tile(np.arange(3000, dtype=np.uint16), (3000, 1)), compress="deflate")
        np.testing.assert_allclose(Raster(path).bounds, [(60, 2940)], atol=60)


class TestUntaggedExtremes:
    """Values that programs write where they have no data, without a tag."""

    @pytest.mark.parametrize(
        ("dtype", "fill"),
        [
            ("float32", -9999),
            ("float32", 9999),
            ("float32", -np.finfo(np.float32).max),
            ("int16", -32768),
            ("int16", 32767),
            ("uint16", 65535),
        ],
    )
    def test_they_do_not_spoil_the_scale_and_are_named(self, dtype, fill, path):
        scene = (NOISE[:3].astype(np.float64) / (255 if dtype == "float32" else 0.1)).astype(dtype)
        expected = Raster(save(path, scene)).bounds
        filled = scene.copy()
        filled[:, :14] = fill
        raster = Raster(save(path, filled))
        np.testing.assert_allclose(raster.bounds, expected, rtol=0.1)
        (note,) = raster.notes
        found = re.match(r"values of (\S+) fill 20% of a sample: with --nodata=(\S+) ", note)
        shown, nodata = map(float, found.groups())
        assert shown == nodata == fill
        assert Raster(path, nodata=nodata).read(slice(0, 70), slice(0, 90))[1][:14].sum() == 0

    @pytest.mark.parametrize("low", [-50, 900])
    def test_a_common_low_value_near_to_others_is_a_value(self, low, path):
        scene = NOISE[:3].astype(np.int16) + 1000
        scene[:, 20:40] = low
        scene[:, 50:55] = np.arange(90) * 10 + low
        assert Raster(save(path, scene)).notes == []

    @pytest.mark.parametrize(("dtype", "white"), [("uint8", 255), ("uint16", 65535)])
    def test_a_white_collar_is_named(self, dtype, white, path):
        scene = NOISE[:3].astype(dtype) * (white // 255)
        scene[:, :14] = white
        (note,) = Raster(save(path, scene)).notes
        assert note.startswith(f"values of {white:g} fill 2")
        scene = NOISE[:3].clip(0, 250)
        scene[:, 20:60, 20:60] = 255  # snow
        assert Raster(save(path, scene)).notes == []


def test_further_pages_are_named(path):
    pages = [Image.fromarray(NOISE[number]) for number in range(3)]
    pages[0].save(path, save_all=True, append_images=pages[1:])
    (note,) = Raster(path).notes
    assert re.match(r"its first page is read, and not GTIFF_DIR:2:.*a\.tif", note)


class TestUnwrittenBlocks:
    @pytest.mark.parametrize("tiling", [dict(tiled=True, blockxsize=64, blockysize=64), {}])
    @pytest.mark.parametrize("gsd", [None, 0.25, 1])
    def test_they_are_no_data_in_every_window(self, gsd, tiling, path):
        profile = dict(driver="GTiff", height=400, width=500, count=3, dtype="uint8")
        with rasterio.open(path, "w", **profile, SPARSE_OK=True, **tiling, **UTM) as file:
            window = ((64, 128), (64, 128)) if tiling else ((100, 120), (0, 500))
            rows, columns = (slice(*span) for span in window)
            shape = 3, rows.stop - rows.start, columns.stop - columns.start
            file.write(noise(*shape), window=window)
        expected = np.zeros((400, 500), bool)
        expected[rows, columns] = True
        factor = (gsd or 0.5) / 0.5  # pixels of the file in a pixel
        places = (np.arange(int(side / factor)) * factor for side in expected.shape)
        expected = expected[np.ix_(*(place.astype(int) for place in places))]
        _, valid = read_raster(path, gsd=gsd)
        assert expected[valid].sum() == expected.sum() and valid.sum() <= expected.sum() * 1.2
        raster = Raster(path, gsd=gsd)
        for window in ((slice(30, 90), slice(90, 160)), (slice(0, 200), slice(0, 250))):
            np.testing.assert_array_equal(raster.read(*window)[1], valid[window])
        assert raster.stores(slice(0, raster.height // 2), slice(0, raster.width))
        assert not raster.stores(slice(raster.height // 2, raster.height), slice(0, raster.width))


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
            assert re.match(r"zeros at its border fill \d\d% of a sample: .* --nodata=0 ", note)
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
