"""Rasters of all kinds, read by windows: the pixels of image readers, what GDAL's mask leaves out,
or an error of one line.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import rasterio
from helpers.raster_files import UTM, noise, read_raster, save
from PIL import Image
from rasterio.control import GroundControlPoint
from rasterio.enums import ColorInterp
from rasterio.rpc import RPC

from xcit_mm.rasters.raster import Raster
from xcit_mm.utils.images import read_image

pytestmark = pytest.mark.filterwarnings(
    "ignore:(Dataset has no geotransform|The given matrix is equal)"
)
NOISE = noise(4, 70, 90)
MASKED = np.concatenate([NOISE[:3], 255 * (NOISE[3:] > 99).astype(np.uint8)])  # the alpha of a mask
POINTS = [
    GroundControlPoint(*corner)
    for corner in ((0, 0, 10.0, 50.0), (0, 90, 10.1, 50.02), (70, 0, 10.02, 49.9))
]
LINE = [1.0] + [0.0] * 19
RPCS = RPC(0, 1, 50, 1, LINE, LINE, 3, 6, 10, 1, LINE, LINE, 5, 10)
NINE = np.zeros((9, 4, 5), np.uint8)
BANDS = np.array([[1], [10], [20]]) * np.arange(1, 1002).repeat(5)
BANDS = BANDS.astype(np.uint16).reshape(3, 77, 65)
COLLAR = np.pad(BANDS.astype(np.int16), ((0, 0), (9, 0), (0, 0)), constant_values=-9999)
LOWEST = float(np.finfo(np.float32).min)
INFRARED = np.concatenate([NOISE[:3], NOISE[3:] * (NOISE[:1] > 99)])


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "a.tif"


@pytest.mark.parametrize(("mode", "suffix"), [("L", "jp2"), ("LA", "png"), ("RGBA", "tif")])
def test_pixels_of_8_bits_are_those_of_a_training_image(mode, suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    photo = tmp_path / "photo.png"  # TIFFs with opacity are for rasters alone
    for file in (path, photo):
        Image.fromarray(MASKED.transpose(1, 2, 0).copy()).convert(mode).save(file)
    image, valid = read_raster(path)
    assert image.dtype == np.uint8 and valid.any()
    np.testing.assert_array_equal(image[valid], read_image(photo)[valid])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (dict(bands=[5, 3, 2]), [2, 3, 5]),  # BGR
        (dict(bands=[4]), [4, 4, 4]),
        (dict(bands=[5, 3, 2, 1], channels=4), [5, 3, 2, 1]),
        (dict(channels=8, raw=True), [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_given_bands_are_red_green_and_blue_or_in_the_model_s_order(options, expected, path):
    numbers = np.arange(1, 9, dtype=np.uint8)[:, None, None]
    save(path, np.broadcast_to(numbers, (8, 4, 5)))
    assert read_raster(path, **options)[0][0, 0].tolist() == expected


def test_color_names_of_the_file_determine_the_order(path):
    save(path, NOISE, photometric="minisblack")
    with rasterio.open(path, "r+") as file:
        names = ("undefined", "blue", "green", "red")
        file.colorinterp = [ColorInterp[name] for name in names]
    np.testing.assert_array_equal(read_raster(path)[0], NOISE[1:].transpose(1, 2, 0))


ROW = np.array([-100, 0, 250, 500, 501, 32767], np.int16)


@pytest.mark.parametrize(
    ("bands", "options", "expected", "valid"),
    [
        pytest.param(
            [ROW, ROW, ROW],
            dict(bounds=[0, 500, -100, 32767, 500, 501]),
            [[0, 0, 0], [0, 1, 0], [0, 3, 128], [0, 5, 255], [255, 5, 255], [255] * 3],
            [True] * 6,
            id="bounds of each band become 0 and 255",
        ),
        pytest.param(
            [[5.0, 7, np.inf, 7], [np.nan, 7, np.nan, np.nan], [10, 7, -np.inf, np.nan]],
            dict(bounds=(0, 10), nodata=7),
            [[255, 0, 128], [0] * 3, [0] * 3, [0] * 3],
            [True, False, False, False],
            id="a pixel with a finite value in some band is valid",
        ),
        pytest.param(
            np.array([[np.nan, 1], [np.nan, np.inf]], np.float32),
            dict(channels=2, raw=True),
            [[0, 0], [1, 0]],
            [False, True],
            id="raw NaN and infinity become 0",
        ),
    ],
)
def test_values_are_scaled_or_stay_as_stored(bands, options, expected, valid, path):
    stored = np.array(bands)
    image, has_data = read_raster(save(path, stored[:, None]), **options)
    assert image.tolist() == [expected] and has_data.tolist() == [valid]
    assert image.dtype == (stored.dtype if "raw" in options else np.uint8)


@pytest.mark.parametrize("nodata", [np.nan, np.inf])
def test_a_nodata_value_that_is_not_finite_is_refused(nodata, path):
    save(path, np.ones((1, 3, 3), np.float32))
    with pytest.raises(ValueError, match=r"^nodata: .* such pixels have no data anyway"):
        Raster(path, nodata=nodata, bounds=(0, 1), channels=1)


class TestMask:
    """Pixels have data where GDAL says so."""

    @pytest.mark.parametrize(
        ("sign", "nodata"),
        [
            ("nodata", 0),
            ("mask", None),
            ("mask alpha", 0),
            ("alpha", 0),
            ("none", 0),
            ("none", None),
        ],
    )
    def test_every_sign_of_a_file_counts_and_nodata_besides(self, sign, nodata, path, capsys):
        """The left fifth has no data by the file, the right tenth by nodata. A mask counts before
        alpha.
        """
        bands = noise(3, 100, 200, high=200) + np.uint8(20)
        bands[:, :, :40] = 250
        bands[:, :, 180:] = 0
        opacity = np.broadcast_to(np.where(np.arange(200) >= 40, 255, 0), (100, 200))
        opacity = opacity.astype(np.uint8)
        profile = dict(UTM)
        if sign == "nodata":
            profile["nodata"] = 250
        if "alpha" in sign:
            alpha = opacity if sign == "alpha" else np.full_like(opacity, 255)
            bands = np.concatenate([bands, alpha[None]])
            profile |= dict(photometric="RGB", alpha="YES")
        save(path, bands, **profile)
        if "mask" in sign:
            with rasterio.open(path, "r+") as file:
                file.write_mask(opacity)
        _, valid = read_raster(path, nodata=nodata)
        expected = np.ones((100, 200), bool)
        expected[:, :40] = sign == "none"
        expected[:, 180:] = nodata is None
        np.testing.assert_array_equal(valid, expected)
        note = "a.tif has no nodata, alpha or mask: if it has a collar, give the collar's value"
        assert (note in capsys.readouterr().err) == (sign == "none" and nodata is None)

    def test_water_is_data_if_only_its_infrared_has_the_nodata_value(self, path):
        bands = NOISE.copy()
        bands[3, :30] = 0
        save(path, bands, photometric="RGB", alpha="NO", nodata=0)
        assert read_raster(path)[1].all()

    @pytest.mark.parametrize("bands", [[0, 3], [0, 1, 2, 3]])
    def test_alpha_is_the_mask_even_if_it_has_the_nodata_value(self, bands, path):
        save(path, MASKED[bands], alpha="YES", nodata=255)
        np.testing.assert_array_equal(read_raster(path)[1], MASKED[3] > 0)

    def test_data_between_the_squares_of_a_sample_tell_rasters_apart(self, path):
        """Of 3000 x 3000 pixels, a sample sees rows 0 to 63, then 419 to 482, and so on."""
        fingerprints = []
        for seed in range(2):
            pixels = np.zeros((3, 3000, 3000), np.uint8)
            pixels[:, 80:400, 80:400] = seed + noise(3, 320, 320) // 2 + 1
            raster = Raster(save(path, pixels, nodata=0))
            assert raster.sample.size
            fingerprints.append(raster.fingerprint())
        assert fingerprints[0] != fingerprints[1]

    def test_an_alpha_band_with_soft_edges_is_a_mask(self, path):
        opacity = np.full((70, 90), 255, np.uint8)
        opacity[:10] = 0
        opacity[10:32] = noise(22, 90)
        save(path, np.concatenate([NOISE[:3], opacity[None]]))
        np.testing.assert_array_equal(read_raster(path)[1], opacity > 0)

    @pytest.mark.parametrize(
        ("declared", "nodata", "share"),
        [(None, -3.4028235e38, 50 / 70), (LOWEST, -3.4028235e38, 50 / 70), (None, -3.4e38, 1)],
    )
    def test_a_value_without_data_that_no_pixel_has_is_one_line(
        self, declared, nodata, share, path, capsys
    ):
        """Seven digits are enough."""
        values = np.full((1, 70, 90), LOWEST, np.float32)
        values[:, 20:] = NOISE[0, 20:] / 4
        save(path, values, nodata=declared)
        options = dict(nodata=nodata, bounds=(0, 64))
        assert read_raster(path, **options)[1].mean() == share
        values = "its values are -3.4028234663852886e+38 to 63.75"
        line = f"no pixel in a sample has nodata=-3.4e+38: {values}\n"
        assert (line in capsys.readouterr().err) == (share == 1)
        if declared is not None:
            assert Raster(path, **options).resampled(35, 45).height == 35

    def test_a_value_without_data_is_in_no_sample(self, path):
        """A training takes its mean and deviation from it."""
        with Raster(save(path, NOISE[:1]), channels=1, raw=True, nodata=99) as raster:
            assert raster.sample.size and 99 in NOISE[0] and 99 not in raster.sample


def test_scale_and_offset_are_named_where_bounds_are_asked_for(path):
    save(path, BANDS)
    with rasterio.open(path, "r+") as file:
        file.scales = (0.0001, 0.0001, 1)
        file.offsets = (-0.1, -0.1, 0)
    scaling = [[0.0001, -0.1], [0.0001, -0.1], [1.0, 0.0]]
    with pytest.raises(ValueError, match=re.escape(f"stored with scale and offset {scaling}: say")):
        Raster(path)


class TestFiles:
    @pytest.mark.parametrize(
        ("bands", "profile", "options", "message"),
        [
            (NINE, {}, {}, "bands: .* has 9 bands without alpha, .*: choose others$"),
            (NINE[:5], {}, dict(bands=[1, 2]), r"bands: \[1, 2\]: .*, and the model takes 3"),
            # rasterio marks the fourth of four bands as alpha. Water has an infrared of 0.
            (INFRARED, {}, dict(bands=[4, 2, 1]), "`gdal_translate -colorinterp_4 undefined .*`$"),
            (
                INFRARED,
                {},
                {},
                "too many values for a mask in band 4, marked as alpha: .*OUT.tif`$",
            ),
            (BANDS, {}, {}, "bounds: .* of uint16: .* 22 980 220 9800 440 19600, percentiles 2"),
            (COLLAR, {}, {}, "bounds: .* of int16: .* 17 980 170 9800 340 19600, percentiles 2"),
            (COLLAR.clip(0, 7), {}, {}, "such as 1 6 LOW HIGH LOW HIGH, "),
            (
                NOISE[:3],
                {},
                dict(bounds=(5, 5)),
                r"bounds: \[5.0, 5.0\] for .*: give LOW HIGH of uint8",
            ),
            (NOISE[:3], {}, dict(bounds=(0, 3000)), r"bounds: \[0.0, 3000.0\] for "),
            (NOISE[0], dict(gcps=POINTS, crs="EPSG:4326"), {}, "`gdalwarp -r bilinear .*a.tif OUT"),
            (NOISE[0], dict(rpcs=RPCS), {}, "`gdalwarp -r bilinear .*a.tif OUT.tif`$"),
            (NOISE[0].astype(np.complex64), UTM, {}, "`gdal_calc.py -A .*a.tif .*OUT.tif`$"),
            (NOISE[0], dict(photometric="palette"), {}, "`gdal_translate -expand rgb .*a.tif OUT"),
        ],
    )
    def test_what_does_not_fit_is_one_line_with_the_remedy(
        self, bands, profile, options, message, path
    ):
        save(path, bands, **profile)
        with pytest.raises(ValueError, match=message):
            Raster(path, **options)

    def test_bands_of_several_types_become_one(self, tmp_path):
        bands = '<VRTRasterBand dataType="Byte"/><VRTRasterBand dataType="Float32"/>'
        path = tmp_path / "a.vrt"
        path.write_text(f'<VRTDataset rasterXSize="5" rasterYSize="4">{bands}</VRTDataset>')
        assert read_raster(path, channels=2, raw=True)[0].dtype == np.float32

    def test_a_sample_is_of_the_raster_as_it_is_read(self, path):
        bands = np.repeat([10, 200], 300)[:, None].repeat(500, 1).astype(np.uint8)
        save(path, np.stack([bands] * 3), **UTM)
        with Raster(path) as raster:
            assert set(raster.sample.ravel()) == {10, 200}
            for size in ((300, 250), (1200, 1000)):
                sample = raster.resampled(*size).sample
                assert {10, 200} <= set(sample.ravel())

    def test_several_rasters_in_a_file_are_refused_by_name(self, path):
        pages = [Image.fromarray(NOISE[number]) for number in range(3)]
        pages[0].save(path, save_all=True, append_images=pages[1:])
        with pytest.raises(
            ValueError, match=r"holds 3 rasters: convert .* `gdal_translate GTIFF_DIR:1:"
        ):
            Raster(path)

    @pytest.mark.parametrize("content", [b"II*\0\x08\0\0\0\xff", None])
    def test_other_and_truncated_files_raise_in_one_line(self, content, path):
        save(path, NOISE[:3], tiled=True, blockxsize=16, blockysize=16, **UTM)
        path.write_bytes(path.read_bytes()[:-2000] if content is None else content)
        with pytest.raises(OSError, match=r"^[^\n]*a\.tif: [^\n]+$"):
            read_raster(path)
