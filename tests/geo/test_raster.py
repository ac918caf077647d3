"""Rasters of all kinds, read by windows: the pixels of image readers, one scale everywhere, or an error of one line."""

import json
import multiprocessing
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")
from PIL import Image, features  # noqa: E402
from rasterio.enums import ColorInterp, Resampling  # noqa: E402
from rasterio.transform import Affine  # noqa: E402

from xcit_mm.geo import Raster, gdal, is_raster, scaling  # noqa: E402
from xcit_mm.utils.images import read_image  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
UTM = dict(crs="EPSG:32633", transform=Affine(0.5, 0, 500000, 0, -0.5, 5400000))
NOISE = np.random.default_rng(0).integers(0, 256, (4, 70, 90), np.uint8)
MASKED = np.concatenate([NOISE[:3], 255 * (NOISE[3:] > 99).astype(np.uint8)])  # the alpha of a mask
BGR = NOISE[2::-1].transpose(1, 2, 0)


def save(path: Path, bands: np.ndarray, **profile) -> Path:
    """Write bands (n, h, w) as a GeoTIFF, or in the format of the profile."""
    bands = bands if bands.ndim == 3 else bands[None]
    count, height, width = bands.shape
    with rasterio.open(path, "w", count=count, height=height, width=width, dtype=bands.dtype, **profile) as file:
        file.write(bands)
    return path


def read(path: Path, *args, **kwargs) -> tuple[np.ndarray, np.ndarray]:
    """Read a whole raster, in windows that are not aligned with its blocks."""
    with Raster(path, *args, **kwargs) as raster:
        rows = np.array_split(np.arange(raster.height), 3)
        found = [raster.read(slice(a[0], a[-1] + 1), slice(0, raster.width)) for a in rows if len(a)]
    images, valid = zip(*found, strict=True)
    return np.concatenate(images), np.concatenate(valid)


def run_forked(*functions: Callable[[], None], timeout: float = 60) -> list[int | None]:
    """Run functions in forked processes and return the exit codes."""
    processes = [multiprocessing.get_context("fork").Process(target=function) for function in functions]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
    return [process.exitcode for process in processes]


class TestPixelsOf8Bits:
    """A model gets the same pixels from a raster as from a training image."""

    @pytest.mark.parametrize(
        "profile",
        [
            dict(),
            dict(tiled=True, blockxsize=16, blockysize=32, compress="deflate", predictor=2),
            dict(interleave="band", compress="lzw"),
            dict(blockysize=7, BIGTIFF="YES"),
        ],
        ids=["strips", "tiles", "planes", "bigtiff"],
    )
    @pytest.mark.parametrize("bands", [1, 3, 4])
    def test_tiffs_equal_read_image(self, bands, profile, tmp_path):
        path = save(tmp_path / "a.tif", MASKED[:bands], **profile)
        image, valid = read(path)
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image, read_image(path))
        np.testing.assert_array_equal(valid, NOISE[3] > 99 if bands == 4 else np.ones((70, 90), bool))

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
    @pytest.mark.parametrize("suffix", ["png", "tif", "jp2"])
    def test_files_of_pillow_equal_read_image(self, mode, suffix, tmp_path):
        if suffix == "jp2" and (mode in "1P" or not features.check("jpg_2000")):
            pytest.skip("JPEG2000 has no such images, or Pillow no JPEG2000")
        image = Image.fromarray(MASKED.transpose(1, 2, 0).copy())
        image = image.convert("RGB").quantize(50) if mode == "P" else image.convert(mode)
        path = tmp_path / f"a.{suffix}"
        image.save(path)
        np.testing.assert_array_equal(read(path)[0], read_image(path))

    @pytest.mark.parametrize("bits", [1, 8])
    def test_tiffs_whose_zero_is_white(self, bits, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[0] >> (8 - bits), photometric="miniswhite", nbits=bits)
        np.testing.assert_array_equal(read(path)[0], read_image(path))

    def test_premultiplied_alpha_is_not_applied_again(self, tmp_path):
        path = save(tmp_path / "a.tif", np.where(MASKED[3] > 0, MASKED, 0), ALPHA="PREMULTIPLIED")
        np.testing.assert_array_equal(read(path)[0], read_image(path))
        np.testing.assert_array_equal(read(path)[0][MASKED[3] > 0], BGR[MASKED[3] > 0])

    def test_exif_orientation_is_not_applied(self, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3], **UTM)
        content = bytearray(path.read_bytes())
        at = content.find((284).to_bytes(2, "little") + b"\x03\x00")  # planar configuration: its default stays
        content[at : at + 12] = b"".join(n.to_bytes(s, "little") for n, s in ((274, 2), (3, 2), (1, 4), (6, 4)))
        path.write_bytes(content)
        with Image.open(path) as image:
            assert image.getexif()[274] == 6
        np.testing.assert_array_equal(read(path)[0], BGR)

    def test_a_plain_image_keeps_rows_columns_and_channels(self, tmp_path):
        image = np.zeros((40, 60, 3), np.uint8)
        image[:20, :, 2] = image[20:, :30, 0] = 255  # red above, blue below at the left
        cv2.imwrite(str(tmp_path / "a.tif"), image)
        np.testing.assert_array_equal(read(tmp_path / "a.tif")[0], image)


class TestBands:
    @pytest.mark.parametrize("bands", [None, [1, 2, 3], [4, 3, 2]])
    def test_a_fourth_band_of_infrared_is_not_opacity(self, bands, tmp_path):
        """rasterio marks the fourth of four bands as alpha. Water has an infrared of 0."""
        values = NOISE.copy()
        values[3, 40:] = 0
        path = save(tmp_path / "a.tif", values)
        with rasterio.open(path) as file:
            assert file.colorinterp[3] == ColorInterp.alpha
        with Raster(path, bands) as raster:
            image, valid = raster.read(slice(0, 70), slice(0, 90))
            assert raster.notes == (
                []
                if bands == [4, 3, 2]
                else ["its band 4 is marked as alpha, but varies as an image does: it is neither used nor a mask"]
            )
        selected = [number - 1 for number in bands or [1, 2, 3]]
        np.testing.assert_array_equal(image, values[selected[::-1]].transpose(1, 2, 0))
        assert valid.all()

    def test_a_resampled_mask_is_a_mask(self, tmp_path):
        mask = np.clip(np.add.outer(np.arange(70), np.arange(90)) * 40.0 - 2000, 0, 255).astype(np.uint8)
        path = save(tmp_path / "a.tif", np.concatenate([NOISE[:3], mask[None]]))
        with Raster(path) as raster:
            np.testing.assert_array_equal(raster.valid(slice(0, 70), slice(0, 90)), mask > 0)
            assert raster.notes == []

    def test_given_bands_are_red_green_and_blue_or_in_the_model_s_order(self, tmp_path):
        path = save(tmp_path / "a.tif", np.arange(1, 7, dtype=np.uint8)[:, None, None] * np.ones((4, 5), np.uint8))
        assert read(path, bands=[5, 3, 2])[0][0, 0].tolist() == [2, 3, 5]  # BGR
        assert read(path, bands=[4])[0][0, 0].tolist() == [4, 4, 4]
        assert read(path, bands=[5, 3, 2, 1], channels=4)[0][0, 0].tolist() == [5, 3, 2, 1]
        assert read(path, channels=6)[0][0, 0].tolist() == [1, 2, 3, 4, 5, 6]

    def test_color_names_of_the_file_determine_the_order(self, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3])
        with rasterio.open(path, "r+") as file:
            file.colorinterp = [ColorInterp.blue, ColorInterp.green, ColorInterp.red]
        np.testing.assert_array_equal(read(path)[0], NOISE[:3].transpose(1, 2, 0))

    @pytest.mark.parametrize(
        "count, given, message",
        [
            (2, None, r"has 2 bands \(1 gray, 2 undefined\), but the model takes 3$"),
            (5, None, r"has 5 bands .*--bands 1 2 3"),
            (13, None, r"has 13 bands \(1 gray, .* 8 undefined, \.\.\.\)"),
            (5, [1, 2], "--bands 1 2: the model takes 3 bands"),
            (5, [3, 2, 6], "has no band 6"),
            (5, [0, 1, 2], "has no band 0"),
        ],
    )
    def test_ambiguous_or_missing_bands_raise(self, count, given, message, tmp_path):
        path = save(tmp_path / "a.tif", np.zeros((count, 4, 5), np.uint8), photometric="minisblack")
        with pytest.raises(ValueError, match=message):
            Raster(path, bands=given)

    def test_the_error_names_the_bands_of_the_colors(self, tmp_path):
        path = save(tmp_path / "a.tif", np.zeros((4, 4, 5), np.uint16))
        with rasterio.open(path, "r+") as file:
            file.colorinterp = [ColorInterp.blue, ColorInterp.green, ColorInterp.red, ColorInterp.undefined]
        with pytest.raises(ValueError, match=r"1 blue, 2 green, 3 red, 4 undefined.*--bands 3 2 1$"):
            Raster(path)

    def test_a_palette_has_three_colors_and_no_scale(self, tmp_path):
        Image.fromarray(NOISE[0]).convert("P").save(tmp_path / "a.tif")
        with pytest.raises(ValueError, match="palette of 3 colors, but the model takes 1"):
            Raster(tmp_path / "a.tif", channels=1)
        with pytest.raises(ValueError, match="which has a palette of colors"):
            Raster(tmp_path / "a.tif", scale=(0, 9))


class TestScale:
    def test_given_bounds_become_0_and_255(self, tmp_path):
        values = np.array([[0, 100, 350, 600, 601, 65535]], np.uint16)
        path = save(tmp_path / "a.tif", np.stack([values, values, values]))
        image, _ = read(path, scale=[(100, 600), (0, 65535), (600, 601)])
        assert image[0, :, 2].tolist() == [0, 0, 128, 255, 255, 255]
        assert image[0, :, 1].tolist() == [0, 0, 1, 2, 2, 255]
        assert image[0, :, 0].tolist() == [0, 0, 0, 0, 255, 255]
        assert read(path, scale=(100, 600))[0][0, :, 0].tolist() == [0, 0, 128, 255, 255, 255]

    @pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "float32", "float64"])
    def test_negative_values(self, dtype, tmp_path):
        path = save(tmp_path / "a.tif", np.array([[-128, -100, 0, 100, 127]], dtype))
        assert read(path, scale=(-100, 100))[0][0, :, 0].tolist() == [0, 0, 128, 255, 255]

    @pytest.mark.parametrize(
        "options",
        [
            *(dict(scale=scale) for scale in ((5, 5), (9, 1), (1,), [(0, 1)] * 2, (0, np.nan), "abc", (0, 1e999))),
            *(dict(percentiles=percentiles) for percentiles in ((98, 2), (2,), (-1, 50), (2, 101))),
        ],
    )
    def test_invalid_bounds_and_percentiles_raise(self, options, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3].astype(np.uint16))
        name = "--bounds" if "scale" in options else "--percentiles"
        with pytest.raises(ValueError, match=rf"{name} .*(give one pair|lower value must come first|lower one first)"):
            Raster(path, **options)

    def test_bounds_are_percentiles_of_the_valid_pixels_of_each_band(self, tmp_path):
        values = np.arange(1, 1002, dtype=np.uint16).repeat(5).reshape(1, 77, 65)
        path = save(tmp_path / "a.tif", np.concatenate([values, 10 * values, values % 7 * 0]), nodata=0)
        with pytest.raises(ValueError, match=r"a\.tif: a sample of its band 3 has no valid pixel"):
            _ = Raster(path).bounds
        with Raster(path, bands=[1]) as raster:
            np.testing.assert_allclose(raster.bounds, [(21, 981)], atol=0.5)
        with Raster(path, bands=[2], percentiles=(0, 50)) as raster:
            np.testing.assert_allclose(raster.bounds, [(10, 5010)], atol=5)

    def test_a_constant_or_nearly_constant_raster(self, tmp_path):
        image, valid = read(save(tmp_path / "a.tif", np.full((20, 20), 7.5, np.float32)))
        assert not image.any() and valid.all()
        values = np.full((100, 100), 5, np.uint16)
        values[0, 0] = 105
        assert Raster(save(tmp_path / "b.tif", values)).bounds == [(5, 105)]

    @pytest.mark.parametrize("external", [False, True])
    def test_overviews_are_read_for_bounds_only(self, external, tmp_path):
        """The overviews of this file have other pixels."""
        path = save(tmp_path / "a.tif", np.full((2100, 2100), 1000, np.uint16), tiled=True, compress="deflate")
        with rasterio.Env(TIFF_USE_OVR=external), rasterio.open(path, "r+") as file:
            file.build_overviews([2, 4], Resampling.nearest)
        level = tmp_path / "a.tif.ovr"
        assert level.exists() == external
        with rasterio.open(level, "r+") if external else rasterio.open(path, "r+", OVERVIEW_LEVEL=0) as overview:
            overview.write(np.tile(np.array([10, 20], np.uint16), (1, 1050, 525)))
        with Raster(path) as raster:
            assert raster.bounds == [(10, 20)]
            assert (raster.read(slice(500, 1600), slice(500, 1600))[0] == 255).all()

    def test_a_large_raster_without_overviews_is_sampled(self, tmp_path, monkeypatch):
        values = np.tile(np.arange(3000, dtype=np.uint16), (3000, 1))
        path = save(tmp_path / "a.tif", values, tiled=True, compress="deflate", predictor=2)
        sizes, estimate = [], scaling.estimate_bounds

        def record(samples, percentiles):
            samples = list(samples)
            sizes.extend(values.size for values, _ in samples)
            return estimate(samples, percentiles)

        monkeypatch.setattr("xcit_mm.geo.raster.estimate_bounds", record)
        np.testing.assert_allclose(Raster(path).bounds, [(60, 2940)], atol=40)
        assert sum(sizes) < 5e6


class TestProcesses:
    """Processes predict rows of one raster at different times, so they must read the same pixels."""

    @pytest.fixture
    def ramp(self, tmp_path) -> Path:
        values = np.add.outer(np.arange(2500), 2 * np.arange(2000)).astype(np.uint16)
        return save(tmp_path / "a.tif", values, tiled=True, compress="deflate", predictor=2)

    def test_bounds_survive_json_and_are_not_estimated_again(self, ramp, monkeypatch):
        bounds = Raster(ramp).bounds
        np.testing.assert_allclose(bounds, [(632, 5866)], rtol=0.03)
        assert Raster(ramp).bounds == bounds
        monkeypatch.setattr("xcit_mm.geo.raster.estimate_bounds", None)
        assert Raster(ramp, scale=json.loads(json.dumps(bounds))).bounds == bounds

    def test_a_pickled_raster_reads_the_same_pixels(self, ramp):
        with Raster(ramp) as raster:
            expected, _ = raster.read(slice(100, 400), slice(100, 200))
            received = pickle.loads(pickle.dumps(raster))
            assert received.bounds == raster.bounds
        np.testing.assert_array_equal(received.read(slice(100, 400), slice(100, 200))[0], expected)

    def test_forked_processes_do_not_share_an_open_file(self, tmp_path):
        """Processes of a DataLoader inherit open files, and would move each other's position."""
        values = np.random.default_rng(0).integers(0, 256, (6000, 2000), np.uint8)
        path = save(tmp_path / "a.tif", values, blockysize=10)

        def read_all() -> None:
            for start in range(0, 6000, 10):
                image, _ = raster.read(slice(start, start + 10), slice(0, 2000))
                np.testing.assert_array_equal(image[..., 0], values[start : start + 10])

        with Raster(path) as raster:
            raster.read(slice(0, 1), slice(0, 1))
            assert run_forked(read_all, read_all) == [0, 0]
            read_all()

    def test_a_closed_raster_opens_again(self, ramp):
        raster = Raster(ramp, scale=(0, 6500))
        raster.close()
        raster.close()
        assert raster.read(slice(0, 1), slice(0, 1))[0].shape == (1, 1, 3)
        raster.close()


class TestValidity:
    def test_pixels_are_invalid_if_all_bands_are_nodata(self, tmp_path):
        path = save(tmp_path / "a.tif", np.array([[[0, 0, 1]], [[0, 9, 1]], [[0, 0, 1]]], np.uint8), nodata=0)
        image, valid = read(path)
        assert valid.tolist() == [[False, True, True]] and image[0, 1].tolist() == [0, 9, 0]

    def test_nan_and_infinity_are_invalid(self, tmp_path):
        values = np.array([[np.nan, np.inf, -np.inf, 0, 1, 2, -9999]], np.float32)
        path = save(tmp_path / "a.tif", values, nodata=-9999)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            image, valid = read(path, scale=(0, 2))
        assert valid.tolist() == [[False, False, False, True, True, True, False]]
        assert image[0, :, 0].tolist() == [0, 0, 0, 0, 128, 255, 0]
        np.testing.assert_allclose(Raster(path, percentiles=(0, 100)).bounds, [(0, 2)])

    def test_an_invalid_band_of_a_valid_pixel_is_0(self, tmp_path):
        image, valid = read(save(tmp_path / "a.tif", np.array([[[5.0]], [[np.nan]], [[10.0]]])), scale=(0, 10))
        assert valid.all() and image.tolist() == [[[255, 0, 128]]]

    def test_nodata_outside_the_type_s_range_is_ignored(self, tmp_path):
        save(tmp_path / "a.tif", NOISE[0])
        write_vrt(tmp_path / "a.vrt", "a.tif", nodata=-9999)
        assert read(tmp_path / "a.vrt")[1].all()

    @pytest.mark.parametrize("internal", [True, False])
    def test_masks(self, internal, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3])
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=internal), rasterio.open(path, "r+") as file:
            file.write_mask(NOISE[0] > 99)
        assert (tmp_path / "a.tif.msk").exists() != internal
        image, valid = read(path)
        np.testing.assert_array_equal(valid, NOISE[0] > 99)
        np.testing.assert_array_equal(image, BGR)

    @pytest.mark.parametrize("kind", ["nodata", "nan", "alpha", "mask"])
    def test_windows_without_a_valid_pixel_are_empty(self, kind, tmp_path):
        values = np.full((4, 100, 100), 0, np.uint8)
        values[:, 60:, 70:] = 200
        path = tmp_path / "a.tif"
        if kind == "nan":
            save(path, np.where(values[:3], values[:3], np.float32("nan")))
        else:
            save(path, values[: 4 if kind == "alpha" else 3], **(dict(nodata=0) if kind == "nodata" else {}))
        if kind == "mask":
            with rasterio.open(path, "r+") as file:
                file.write_mask(values[0] > 0)
        with Raster(path, scale=(0, 255)) as raster:
            for rows, columns, empty in ((60, 100, True), (100, 70, True), (61, 71, False)):
                window = slice(0, rows), slice(0, columns)
                assert raster.read(*window)[1].any() != empty
                np.testing.assert_array_equal(raster.valid(*window), raster.read(*window)[1])


def write_vrt(path: Path, *sources: str, nodata: float | None = None) -> Path:
    """Write a VRT of one band, with sources of 90 x 70 pixels side by side."""
    nodata_line = "" if nodata is None else f"<NoDataValue>{nodata}</NoDataValue>"
    lines = [
        f'<SimpleSource><SourceFilename relativeToVRT="1">{source}</SourceFilename><SourceBand>1</SourceBand>'
        f'<SrcRect xOff="0" yOff="0" xSize="90" ySize="70"/><DstRect xOff="{90 * n}" yOff="0" xSize="90" ySize="70"/>'
        "</SimpleSource>"
        for n, source in enumerate(sources)
    ]
    path.write_text(
        f'<VRTDataset rasterXSize="{90 * len(sources)}" rasterYSize="70"><VRTRasterBand dataType="Byte" band="1">'
        f"{nodata_line}{''.join(lines)}</VRTRasterBand></VRTDataset>"
    )
    return path


class TestFiles:
    def test_a_vrt_reads_several_files_and_names_a_missing_one(self, tmp_path):
        save(tmp_path / "a.tif", NOISE[0])
        save(tmp_path / "b.tif", NOISE[1])
        image, _ = read(write_vrt(tmp_path / "all.vrt", "a.tif", "b.tif"))
        np.testing.assert_array_equal(image[..., 0], np.hstack([NOISE[0], NOISE[1]]))
        (tmp_path / "b.tif").unlink()
        with Raster(tmp_path / "all.vrt") as raster:
            raster.read(slice(0, 70), slice(0, 90))
            with pytest.raises(OSError, match=r"all\.vrt cannot be read: .*b\.tif"):
                raster.read(slice(0, 70), slice(80, 120))

    def test_georeference(self, tmp_path):
        rotated = Affine(0.433, 0.25, 500000, 0.25, -0.433, 5400000)
        with Raster(save(tmp_path / "a.tif", NOISE[0], crs="EPSG:32633", transform=rotated)) as raster:
            height, width, crs, transform = raster.georeference
            assert crs.to_epsg() == 32633 and transform.almost_equals(rotated)
            assert (height, width, raster.height, raster.width, raster.dtype) == (70, 90, 70, 90, "uint8")
        path = save(tmp_path / "b.tif", NOISE[0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Raster(path) as raster:
                assert raster.georeference.crs is None and raster.georeference.transform.is_identity

    @pytest.mark.parametrize("rows", [slice(0, 0), slice(-1, 5), slice(0, 71), slice(5, 2)])
    def test_windows_outside_the_raster_raise(self, rows, tmp_path):
        raster = Raster(save(tmp_path / "a.tif", NOISE[0]))
        with pytest.raises(ValueError, match=rf"rows {rows.start} to {rows.stop} of .*a\.tif, which has 70"):
            raster.read(rows, slice(0, 5))

    @pytest.mark.parametrize("dtype", ["complex64", "complex128", "complex_int16"])
    def test_complex_numbers_raise(self, dtype, tmp_path):
        rasterio.open(tmp_path / "a.tif", "w", count=1, height=4, width=4, dtype=dtype, **UTM).close()
        with pytest.raises(ValueError, match=r"a\.tif holds complex numbers"):
            Raster(tmp_path / "a.tif")

    def test_a_container_of_rasters_raises_with_the_name_of_one(self, tmp_path):
        """NetCDF and HDF files are containers too."""
        for name in "ab":
            save(tmp_path / "all.gpkg", NOISE[0], driver="GPKG", **UTM, RASTER_TABLE=name, APPEND_SUBDATASET="YES")
        with pytest.raises(ValueError, match=r"has no bands, but 2 others in it, such as GPKG:.*all\.gpkg:a"):
            Raster(tmp_path / "all.gpkg")

    @pytest.mark.parametrize("content", [b"", b"hello", b"II*\0\x08\0\0\0\xff"])
    def test_other_files_raise_in_one_line(self, content, tmp_path):
        (tmp_path / "a.tif").write_bytes(content)
        with pytest.raises(OSError, match=r"^[^\n]*a\.tif cannot be read: [^\n]+$"):
            Raster(tmp_path / "a.tif")

    def test_a_missing_file_raises(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"a\.tif does not exist"):
            Raster(tmp_path / "a.tif")

    def test_a_truncated_file_raises_in_one_line(self, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3], tiled=True, blockxsize=16, blockysize=16, **UTM)
        path.write_bytes(path.read_bytes()[:-2000])
        with Raster(path) as raster:
            raster.read(slice(0, 16), slice(0, 16))
            with pytest.raises(OSError, match=r"^[^\n]*a\.tif cannot be read: [^\n]+$"):
                raster.read(slice(0, 70), slice(0, 90))

    def test_memory_is_bounded_while_a_large_raster_is_read(self, tmp_path, monkeypatch):
        """The raster has ten times the size of GDAL's cache, which is reduced for the test."""
        path, width, rows = tmp_path / "a.tif", 8192, 20480
        profile = dict(height=rows, width=width, count=1, dtype="uint8", tiled=True, compress="deflate", zlevel=1)
        with rasterio.open(path, "w", **profile, **UTM) as file:
            for row in range(0, rows, 2048):
                file.write(np.ones((1, 2048, width), np.uint8), window=((row, row + 2048), (0, width)))
        assert gdal.CACHE_SIZE <= 2**28
        monkeypatch.setattr(gdal, "CACHE_SIZE", 2**24)

        def peak() -> float:
            return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024

        def read_all() -> None:
            raster = Raster(path)
            raster.read(slice(0, 256), slice(0, width))
            before = peak()
            for row in range(0, rows, 256):
                raster.read(slice(row, row + 256), slice(0, width))
            assert peak() - before < 3 * 16  # MiB, of 160

        assert run_forked(read_all) == [0]


class TestIsRaster:
    @pytest.mark.parametrize(
        "bands, dtype, profile, expected",
        [
            (3, "uint8", {}, False),
            (4, "uint8", dict(tiled=True, BIGTIFF="YES"), False),
            (1, "uint8", dict(ENDIANNESS="BIG"), False),
            (1, "uint8", dict(nbits=1), False),
            (2, "uint8", {}, True),
            (5, "uint8", {}, True),
            (1, "int8", {}, True),
            (3, "uint16", dict(ENDIANNESS="BIG"), True),
            (1, "float32", dict(BIGTIFF="YES"), True),
            (3, "uint8", UTM, True),
            (3, "uint8", dict(UTM, BIGTIFF="YES", ENDIANNESS="BIG"), True),
            (3, "uint8", dict(transform=Affine.rotation(20)), True),
            (3, "uint8", dict(TFW="YES", transform=Affine.scale(2, -2), PROFILE="BASELINE"), True),
        ],
    )
    def test_tiffs_are_rasters_by_their_header(self, bands, dtype, profile, expected, tmp_path):
        values = (NOISE[0, :20, :20] >> 7).astype(dtype)
        name = "a.tif" if "TFW" in profile else "a.TIFF"
        assert is_raster(save(tmp_path / name, np.stack([values] * bands), **profile)) is expected

    @pytest.mark.parametrize(
        "height, width, expected", [(32768, 32768, False), (32768, 32769, True), (8, 2**20 + 1, True)]
    )
    def test_images_beyond_opencv_s_limits_are_rasters(self, height, width, expected, tmp_path):
        path = tmp_path / "a.tif"
        rasterio.open(path, "w", height=height, width=width, count=1, dtype="uint8", tiled=True, SPARSE_OK=True).close()
        assert is_raster(path) is expected

    def test_other_suffixes_and_broken_tiffs(self, tmp_path):
        for name in ("a.png", "a.jpg", "a.mp4", "gone.tif", "http://127.0.0.1:9/a.tif"):
            assert not is_raster(tmp_path / name if "/" not in name else name)
        for name in ("a.jp2", "a.VRT", "a.img"):
            assert is_raster(tmp_path / name)
        broken = (b"", b"II*\0", b"II*\0\xff\xff\xff\xff", b"no TIFF", b"II+\0\x08\0\0\0" + b"\xff" * 8)
        for number, content in enumerate(broken):
            (tmp_path / f"{number}.tif").write_bytes(content)
            assert not is_raster(tmp_path / f"{number}.tif")

    @pytest.mark.parametrize("suffix", ["svs", "NDPI", "mrxs"])
    def test_slides_raise_with_the_command_to_convert_them(self, suffix):
        with pytest.raises(ValueError, match=rf"vips tiffsave a\.{suffix} OUT\.tif --tile --pyramid"):
            is_raster(f"/data/a.{suffix}")

    def test_only_rasters_need_rasterio(self, tmp_path, monkeypatch):
        photo = save(tmp_path / "photo.tif", NOISE[:3])
        georeferenced = save(tmp_path / "map.tif", NOISE[:3], **UTM)
        monkeypatch.setitem(sys.modules, "rasterio", None)
        assert not is_raster(photo)
        for function in (is_raster, Raster):
            with pytest.raises(ModuleNotFoundError, match=r"map\.tif needs rasterio: pip install xcit_mm\[raster\]"):
                function(georeferenced)
