"""Scenes of every make read by windows: the same pixels as of a picture, scaled alike everywhere, or one clear line."""

import json
import multiprocessing
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")
from PIL import Image, features  # noqa: E402
from rasterio.enums import ColorInterp, Resampling  # noqa: E402
from rasterio.transform import Affine  # noqa: E402

from xcit_mm.batch.reading import read_image  # noqa: E402
from xcit_mm.geo import Raster, is_raster  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
UTM = dict(crs="EPSG:32633", transform=Affine(0.5, 0, 500000, 0, -0.5, 5400000))
NOISE = np.random.default_rng(0).integers(0, 256, (4, 70, 90), np.uint8)


def save(path: Path, bands: np.ndarray, **profile) -> Path:
    """Bands (n, h, w) as a GeoTIFF, or what the profile says."""
    bands = bands if bands.ndim == 3 else bands[None]
    count, height, width = bands.shape
    with rasterio.open(path, "w", count=count, height=height, width=width, dtype=bands.dtype, **profile) as file:
        file.write(bands)
    return path


def read(path: Path, *args, **kwargs) -> tuple[np.ndarray, np.ndarray]:
    """All of a raster, of windows that do not meet its blocks."""
    with Raster(path, *args, **kwargs) as raster:
        rows = np.array_split(np.arange(raster.height), 3)
        found = [raster.read(slice(a[0], a[-1] + 1), slice(0, raster.width)) for a in rows if len(a)]
    images, valid = zip(*found, strict=True)
    return np.concatenate(images), np.concatenate(valid)


class TestPictures:
    """Of 8 bits: what a model saw of pictures in training it sees of scenes."""

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
    def test_tiffs(self, bands, profile, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:bands], **profile)
        image, valid = read(path)
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image, read_image(path))
        np.testing.assert_array_equal(valid, NOISE[3] > 0 if bands == 4 else np.ones((70, 90), bool))

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
    @pytest.mark.parametrize("suffix", ["png", "tif", "jp2"])
    def test_what_pillow_writes(self, mode, suffix, tmp_path):
        if suffix == "jp2" and (mode in "1P" or not features.check("jpg_2000")):
            pytest.skip("JPEG2000 has no such images, or Pillow no JPEG2000")
        picture = Image.fromarray(NOISE.transpose(1, 2, 0).copy())
        picture = picture.convert("RGB").quantize(50) if mode == "P" else picture.convert(mode)
        path = tmp_path / f"a.{suffix}"
        picture.save(path)
        np.testing.assert_array_equal(read(path)[0], read_image(path))

    @pytest.mark.parametrize("bits", [1, 8])
    def test_zero_is_white(self, bits, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[0] >> (8 - bits), photometric="miniswhite", nbits=bits)
        np.testing.assert_array_equal(read(path)[0], read_image(path))

    def test_alpha_that_is_in_the_colours_already(self, tmp_path):
        path = save(tmp_path / "a.tif", NOISE, ALPHA="PREMULTIPLIED")
        np.testing.assert_array_equal(read(path)[0], read_image(path))
        np.testing.assert_array_equal(read(path)[0], NOISE[2::-1].transpose(1, 2, 0))

    def test_orientation_is_not_applied(self, tmp_path):
        path = tmp_path / "a.tif"
        save(path, NOISE[:3], **UTM)
        content = bytearray(path.read_bytes())
        at = content.find((284).to_bytes(2, "little") + b"\x03\x00")  # planar configuration, which stays chunky
        content[at : at + 12] = b"".join(n.to_bytes(s, "little") for n, s in ((274, 2), (3, 2), (1, 4), (6, 4)))
        path.write_bytes(content)
        with Image.open(path) as picture:
            assert picture.getexif()[274] == 6
        np.testing.assert_array_equal(read(path)[0], NOISE[2::-1].transpose(1, 2, 0))


class TestBands:
    def test_numbers_are_red_green_and_blue(self, tmp_path):
        path = save(tmp_path / "a.tif", np.arange(1, 7, dtype=np.uint8)[:, None, None] * np.ones((4, 5), np.uint8))
        assert read(path, bands=[5, 3, 2])[0][0, 0].tolist() == [2, 3, 5]  # BGR
        assert read(path, bands=[4])[0][0, 0].tolist() == [4, 4, 4]
        assert read(path, bands=[5, 3, 2, 1], channels=4)[0][0, 0].tolist() == [5, 3, 2, 1]
        assert read(path, channels=6)[0][0, 0].tolist() == [1, 2, 3, 4, 5, 6]

    def test_names_of_colours_count_more_than_their_order(self, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3])
        with rasterio.open(path, "r+") as file:
            file.colorinterp = [ColorInterp.blue, ColorInterp.green, ColorInterp.red]
        np.testing.assert_array_equal(read(path)[0], NOISE[:3].transpose(1, 2, 0))

    @pytest.mark.parametrize(
        "count, given, told",
        [
            (2, None, r"has 2 bands \(1 gray, 2 undefined\), but the model takes 3$"),
            (5, None, r"has 5 bands .*: name them, its red, green and blue, as --bands 1 2 3"),
            (13, None, r"has 13 bands \(1 gray, .* 8 undefined, \.\.\.\)"),
            (5, [1, 2], "--bands 1 2: the model takes 3 bands, give as many, or one for all of them"),
            (5, [3, 2, 6], "has no band 6, but 5 bands, from 1 on"),
            (5, [0, 1, 2], "has no band 0"),
        ],
    )
    def test_a_choice_is_not_made_for_the_user(self, count, given, told, tmp_path):
        path = save(tmp_path / "a.tif", np.zeros((count, 4, 5), np.uint8), photometric="minisblack")
        with pytest.raises(ValueError, match=told):
            Raster(path, bands=given)

    def test_the_cure_names_the_bands_that_are_colours(self, tmp_path):
        path = save(tmp_path / "a.tif", np.zeros((4, 4, 5), np.uint16))
        with rasterio.open(path, "r+") as file:
            file.colorinterp = [ColorInterp.blue, ColorInterp.green, ColorInterp.red, ColorInterp.undefined]
        with pytest.raises(ValueError, match=r"1 blue, 2 green, 3 red, 4 undefined.*--bands 3 2 1$"):
            Raster(path)

    def test_a_palette_has_three_colours(self, tmp_path):
        Image.fromarray(NOISE[0]).convert("P").save(tmp_path / "a.tif")
        with pytest.raises(ValueError, match="palette of 3 colours, but the model takes 1"):
            Raster(tmp_path / "a.tif", channels=1)
        with pytest.raises(ValueError, match="which has a palette of colours: give none"):
            Raster(tmp_path / "a.tif", scale=(0, 9))


class TestScale:
    def test_bounds_that_are_given(self, tmp_path):
        values = np.array([[0, 100, 350, 600, 601, 65535]], np.uint16)
        path = save(tmp_path / "a.tif", np.stack([values, values, values]))
        image, _ = read(path, scale=[(100, 600), (0, 65535), (600, 601)])
        assert image[0, :, 2].tolist() == [0, 0, 128, 255, 255, 255]
        assert image[0, :, 1].tolist() == [0, 0, 1, 2, 2, 255]
        assert image[0, :, 0].tolist() == [0, 0, 0, 0, 255, 255]
        assert read(path, scale=(100, 600))[0][0, :, 0].tolist() == [0, 0, 128, 255, 255, 255]

    @pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "float32", "float64"])
    def test_below_zero(self, dtype, tmp_path):
        path = save(tmp_path / "a.tif", np.array([[-128, -100, 0, 100, 127]], dtype))
        assert read(path, scale=(-100, 100))[0][0, :, 0].tolist() == [0, 0, 128, 255, 255]

    @pytest.mark.parametrize("scale", [(5, 5), (9, 1), (1,), [(0, 1)] * 2, (0, float("nan")), "abc", (0, 1e999)])
    def test_what_is_no_scale(self, scale, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3].astype(np.uint16))
        with pytest.raises(ValueError, match=r"--bounds .*(give one pair, LOW HIGH|lower value must come first)"):
            Raster(path, scale=scale)

    def test_percentiles_are_of_valid_pixels_band_by_band(self, tmp_path):
        values = np.arange(1, 1002, dtype=np.uint16).repeat(5).reshape(1, 77, 65)
        path = save(tmp_path / "a.tif", np.concatenate([values, 10 * values, values % 7 * 0]), nodata=0)
        with pytest.raises(ValueError, match=r"a\.tif: a sample of its band 3 has no valid pixel.* --bounds LOW HIGH"):
            _ = Raster(path).bounds
        with Raster(path, bands=[1]) as raster:
            np.testing.assert_allclose(raster.bounds, [(21, 981)], atol=0.5)
        with Raster(path, bands=[2], percentiles=(0, 50)) as raster:
            np.testing.assert_allclose(raster.bounds, [(10, 5010)], atol=5)

    def test_a_flat_scene(self, tmp_path):
        image, valid = read(save(tmp_path / "a.tif", np.full((20, 20), 7.5, np.float32)))
        assert not image.any() and valid.all()

    def test_mostly_one_value(self, tmp_path):
        values = np.full((100, 100), 5, np.uint16)
        values[0, 0] = 105
        assert Raster(save(tmp_path / "a.tif", values)).bounds == [(5, 105)]

    @pytest.mark.parametrize("percentiles", [(98, 2), (2,), (-1, 50), (2, 101)])
    def test_what_are_no_percentiles(self, percentiles, tmp_path):
        with pytest.raises(ValueError, match="give two from 0 to 100, the lower one first"):
            Raster(save(tmp_path / "a.tif", NOISE[0]), percentiles=percentiles)


class TestProcesses:
    """The parts of a scene are predicted by different processes, at different times, and must fit together."""

    @pytest.fixture
    def scene(self, tmp_path) -> Path:
        ramp = np.add.outer(np.arange(2500), 2 * np.arange(2000)).astype(np.uint16)
        return save(tmp_path / "a.tif", ramp, tiled=True, compress="deflate", predictor=2)

    def test_bounds_survive_json_and_spare_the_reading(self, scene, monkeypatch):
        bounds = Raster(scene).bounds
        np.testing.assert_allclose(bounds, [(632, 5866)], rtol=0.03)  # of the triangles s^2 / 4 at the corners
        assert Raster(scene).bounds == bounds
        monkeypatch.setattr(Raster, "_iter_samples", None)
        given = Raster(scene, scale=json.loads(json.dumps(bounds)))
        assert given.bounds == bounds

    def test_another_process_reads_the_same(self, scene):
        with Raster(scene) as raster:
            here, _ = raster.read(slice(100, 400), slice(100, 200))
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                there, _ = pool.apply(raster.read, (slice(100, 400), slice(100, 200)))
            assert raster.bounds == pickle.loads(pickle.dumps(raster)).__dict__["bounds"]
        np.testing.assert_array_equal(here, there)

    def test_forked_processes_do_not_share_an_open_file(self, tmp_path):
        """Those of a DataLoader inherit what is open, and would move each other's place in it."""
        values = np.random.default_rng(0).integers(0, 256, (6000, 2000), np.uint8)
        path = save(tmp_path / "a.tif", values, blockysize=10)

        def read_all() -> None:
            for start in range(0, 6000, 10):
                image, _ = raster.read(slice(start, start + 10), slice(0, 2000))
                np.testing.assert_array_equal(image[..., 0], values[start : start + 10])

        with Raster(path) as raster:
            processes = [multiprocessing.get_context("fork").Process(target=read_all) for _ in range(2)]
            for process in processes:
                process.start()
            read_all()
            for process in processes:
                process.join(60)
        assert [process.exitcode for process in processes] == [0, 0]

    def test_closed_it_opens_again(self, scene):
        raster = Raster(scene, scale=(0, 6500))
        raster.close()
        raster.close()
        assert raster.read(slice(0, 1), slice(0, 1))[0].shape == (1, 1, 3)
        raster.close()


class TestValid:
    def test_nodata_of_all_bands(self, tmp_path):
        path = save(tmp_path / "a.tif", np.array([[[0, 0, 1]], [[0, 9, 1]], [[0, 0, 1]]], np.uint8), nodata=0)
        image, valid = read(path)
        assert valid.tolist() == [[False, True, True]]
        assert image[0, 1].tolist() == [0, 9, 0]
        assert Raster(path).nodata == 0

    def test_nan_and_infinity(self, tmp_path):
        values = np.array([[np.nan, np.inf, -np.inf, 0, 1, 2, -9999]], np.float32)
        path = save(tmp_path / "a.tif", values, nodata=-9999)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            image, valid = read(path, scale=(0, 2))
        assert valid.tolist() == [[False, False, False, True, True, True, False]]
        assert image[0, :, 0].tolist() == [0, 0, 0, 0, 128, 255, 0]
        np.testing.assert_allclose(Raster(path, percentiles=(0, 100)).bounds, [(0, 2)])

    def test_a_band_without_a_value_in_a_pixel_with_others(self, tmp_path):
        values = np.array([[[5.0]], [[np.nan]], [[10.0]]])
        image, valid = read(save(tmp_path / "a.tif", values), scale=(0, 10))
        assert valid.all()
        assert image.tolist() == [[[255, 0, 128]]]

    def test_nodata_that_the_type_has_not(self, tmp_path):
        save(tmp_path / "a.tif", NOISE[0])
        vrt(tmp_path / "a.vrt", "a.tif", nodata=-9999)
        assert read(tmp_path / "a.vrt")[1].all()

    @pytest.mark.parametrize("internal", [True, False])
    def test_masks(self, internal, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3])
        there = NOISE[0] > 99
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=internal), rasterio.open(path, "r+") as file:
            file.write_mask(there)
        assert (tmp_path / "a.tif.msk").exists() != internal
        image, valid = read(path)
        np.testing.assert_array_equal(valid, there)
        np.testing.assert_array_equal(image, NOISE[2::-1].transpose(1, 2, 0))

    @pytest.mark.parametrize("kind", ["nodata", "nan", "alpha", "mask"])
    def test_empty_windows_are_told(self, kind, tmp_path):
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
            assert raster.is_empty(slice(0, 60), slice(0, 100))
            assert raster.is_empty(slice(0, 100), slice(0, 70))
            assert not raster.is_empty(slice(0, 61), slice(0, 71))
            for rows, columns in ((slice(0, 60), slice(0, 100)), (slice(50, 70), slice(60, 80))):
                assert raster.is_empty(rows, columns) == (not raster.read(rows, columns)[1].any())


def vrt(path: Path, *sources: str, nodata: float | None = None) -> Path:
    """A VRT of one band, of sources of 90 x 70 side by side."""
    told = "" if nodata is None else f"<NoDataValue>{nodata}</NoDataValue>"
    lines = [
        f'<SimpleSource><SourceFilename relativeToVRT="1">{source}</SourceFilename><SourceBand>1</SourceBand>'
        f'<SrcRect xOff="0" yOff="0" xSize="90" ySize="70"/><DstRect xOff="{90 * n}" yOff="0" xSize="90" ySize="70"/>'
        "</SimpleSource>"
        for n, source in enumerate(sources)
    ]
    path.write_text(
        f'<VRTDataset rasterXSize="{90 * len(sources)}" rasterYSize="70"><VRTRasterBand dataType="Byte" band="1">'
        f"{told}{''.join(lines)}</VRTRasterBand></VRTDataset>"
    )
    return path


class TestFiles:
    def test_a_vrt_of_several_files(self, tmp_path):
        save(tmp_path / "a.tif", NOISE[0])
        save(tmp_path / "b.tif", NOISE[1])
        image, _ = read(vrt(tmp_path / "all.vrt", "a.tif", "b.tif"))
        np.testing.assert_array_equal(image[..., 0], np.hstack([NOISE[0], NOISE[1]]))

    def test_a_vrt_with_a_source_that_is_gone(self, tmp_path):
        save(tmp_path / "a.tif", NOISE[0])
        with Raster(vrt(tmp_path / "all.vrt", "a.tif", "gone.tif")) as raster:
            raster.read(slice(0, 70), slice(0, 90))
            with pytest.raises(OSError, match=r"all\.vrt cannot be read: .*gone\.tif"):
                raster.read(slice(0, 70), slice(80, 120))

    @pytest.mark.parametrize("external", [False, True])
    def test_overviews_are_for_bounds_only(self, external, tmp_path):
        """Those of this scene are of other pixels, to see where they are read."""
        path = save(tmp_path / "a.tif", np.full((2100, 2100), 1000, np.uint16), tiled=True, compress="deflate")
        with rasterio.Env(TIFF_USE_OVR=external), rasterio.open(path, "r+") as file:
            file.build_overviews([2, 4], Resampling.nearest)
        level = tmp_path / "a.tif.ovr"
        assert level.exists() == external
        with rasterio.open(level, "r+") if external else rasterio.open(path, "r+", OVERVIEW_LEVEL=0) as overview:
            overview.write(np.tile(np.array([10, 20], np.uint16), (1, 1050, 525)))
        with Raster(path) as raster:
            assert raster.bounds == [(10, 20)]
            assert (raster.read(slice(500, 1600), slice(500, 1600))[0] == 255).all()  # of 1000, not of 10

    def test_without_overviews_a_large_scene_is_sampled(self, tmp_path):
        path = tmp_path / "a.tif"
        values = np.tile(np.arange(3000, dtype=np.uint16), (3000, 1))
        save(path, values, tiled=True, compress="deflate", predictor=2)
        with Raster(path) as raster:
            np.testing.assert_allclose(raster.bounds, [(60, 2940)], atol=40)
            read_of = sum(one.size for one, _ in raster._iter_samples())
            assert read_of < 5e6

    def test_place(self, tmp_path):
        turned = Affine(0.433, 0.25, 500000, 0.25, -0.433, 5400000)
        with Raster(save(tmp_path / "a.tif", NOISE[0], crs="EPSG:32633", transform=turned)) as raster:
            assert raster.crs.to_epsg() == 32633
            assert raster.transform.almost_equals(turned)
            assert (raster.height, raster.width, raster.count, raster.dtype) == (70, 90, 1, "uint8")
        path = save(tmp_path / "b.tif", NOISE[0])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with Raster(path) as raster:
                assert raster.crs is None and raster.transform.is_identity and raster.nodata is None

    @pytest.mark.parametrize("rows", [slice(0, 0), slice(-1, 5), slice(0, 71), slice(5, 2)])
    def test_windows_outside(self, rows, tmp_path):
        raster = Raster(save(tmp_path / "a.tif", NOISE[0]))
        with pytest.raises(ValueError, match=rf"rows {rows.start} to {rows.stop} of .*a\.tif, which has 70"):
            raster.read(rows, slice(0, 5))

    @pytest.mark.parametrize("kind", ["complex64", "complex128", "complex_int16"])
    def test_complex_numbers(self, kind, tmp_path):
        with rasterio.open(tmp_path / "a.tif", "w", count=1, height=4, width=4, dtype=kind, **UTM):
            pass
        with pytest.raises(ValueError, match=r"a\.tif holds complex numbers: give a file of their magnitudes"):
            Raster(tmp_path / "a.tif")

    def test_no_bands(self, tmp_path):
        """As of netCDF and HDF, whose files are folders."""
        for name in "ab":
            save(tmp_path / "all.gpkg", NOISE[0], driver="GPKG", **UTM, RASTER_TABLE=name, APPEND_SUBDATASET="YES")
        with pytest.raises(ValueError, match=r"has no bands, but 2 others in it, such as GPKG:.*all\.gpkg:a"):
            Raster(tmp_path / "all.gpkg")

    @pytest.mark.parametrize("content", [b"", b"hello", b"II*\0\x08\0\0\0\xff"])
    def test_what_is_no_raster(self, content, tmp_path):
        (tmp_path / "a.tif").write_bytes(content)
        with pytest.raises(OSError, match=r"^[^\n]*a\.tif cannot be read: [^\n]+$"):
            Raster(tmp_path / "a.tif")

    def test_what_is_not_there(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"a\.tif does not exist"):
            Raster(tmp_path / "a.tif")

    def test_truncated(self, tmp_path):
        path = save(tmp_path / "a.tif", NOISE[:3], tiled=True, blockxsize=16, blockysize=16, **UTM)
        path.write_bytes(path.read_bytes()[:-2000])
        with Raster(path) as raster:
            raster.read(slice(0, 16), slice(0, 16))
            with pytest.raises(OSError, match=r"^[^\n]*a\.tif cannot be read: [^\n]+$"):
                raster.read(slice(0, 70), slice(0, 90))

    def test_memory_is_bounded(self, tmp_path):
        """All of a scene is read, of ten times the memory that GDAL may keep of it."""
        path = tmp_path / "a.tif"
        profile = dict(height=20480, width=8192, count=1, dtype="uint8", tiled=True, compress="deflate", zlevel=1)
        with rasterio.open(path, "w", **profile, **UTM) as file:
            for row in range(0, 20480, 2048):
                file.write(np.ones((1, 2048, 8192), np.uint8), window=((row, row + 2048), (0, 8192)))
        script = (
            "import re, sys\n"
            "from pathlib import Path\n"
            "from xcit_mm.geo import gdal\n"
            "from xcit_mm.geo import Raster\n"
            "assert gdal.CACHE_SIZE <= 2**28\n"
            "gdal.CACHE_SIZE = 2**24\n"
            "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) / 1024\n"
            "raster = Raster(sys.argv[1])\n"
            "raster.read(slice(0, 256), slice(0, 8192))\n"
            "before = peak()\n"
            "for row in range(0, 20480, 256):\n"
            "    raster.read(slice(row, row + 256), slice(0, 8192))\n"
            "print(peak() - before)\n"
        )
        run = subprocess.run([sys.executable, "-W", "ignore", "-c", script, path], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr[-2000:]
        assert float(run.stdout) < 3 * 16  # MiB, of 160


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
    def test_by_the_header(self, bands, dtype, profile, expected, tmp_path):
        values = (NOISE[0, :20, :20] >> 7).astype(dtype)
        path = save(
            tmp_path / "a.TIFF" if "TFW" not in profile else tmp_path / "a.tif", np.stack([values] * bands), **profile
        )
        assert is_raster(path) is expected

    @pytest.mark.parametrize(
        "height, width, expected", [(32768, 32768, False), (32768, 32769, True), (8, 2**20 + 1, True)]
    )
    def test_what_opencv_refuses(self, height, width, expected, tmp_path):
        path = tmp_path / "a.tif"
        rasterio.open(path, "w", height=height, width=width, count=1, dtype="uint8", tiled=True, SPARSE_OK=True).close()
        assert is_raster(path) is expected

    def test_other_suffixes_and_what_is_broken(self, tmp_path):
        for name in ("a.png", "a.jpg", "a.mp4", "gone.tif", "https://example.org/a.tif"):
            assert not is_raster(tmp_path / name if "/" not in name else name)
        for name in ("a.jp2", "a.VRT", "a.img"):
            assert is_raster(tmp_path / name)
        for number, content in enumerate(
            (b"", b"II*\0", b"II*\0\xff\xff\xff\xff", b"no TIFF", b"II+\0\x08\0\0\0" + b"\xff" * 8)
        ):
            (tmp_path / f"{number}.tif").write_bytes(content)
            assert not is_raster(tmp_path / f"{number}.tif")

    @pytest.mark.parametrize("suffix", ["svs", "NDPI", "mrxs"])
    def test_slides_are_converted_first(self, suffix):
        with pytest.raises(ValueError, match=rf"vips tiffsave a\.{suffix} OUT\.tif --tile --pyramid"):
            is_raster(f"/data/a.{suffix}")

    def test_without_rasterio_only_rasters_ask_for_it(self, tmp_path, monkeypatch):
        plain = save(tmp_path / "plain.tif", NOISE[:3])
        placed = save(tmp_path / "placed.tif", NOISE[:3], **UTM)
        monkeypatch.setitem(sys.modules, "rasterio", None)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert not is_raster(plain)
        for ask in (is_raster, Raster):
            with pytest.raises(ModuleNotFoundError, match=r"placed\.tif needs rasterio: pip install xcit_mm\[raster\]"):
                ask(placed)


def test_a_photo_in_pixels(tmp_path):
    """Not noise: orders of bands and rows that noise would hide show here."""
    image = np.zeros((40, 60, 3), np.uint8)
    image[:20, :, 2] = 255  # red above
    image[20:, :30, 0] = 255  # blue below at the left
    cv2.imwrite(str(tmp_path / "a.tif"), image)
    np.testing.assert_array_equal(read(tmp_path / "a.tif")[0], image)
