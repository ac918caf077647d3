"""Rasters of any validity, resolution and source, read by windows, or an error of one line."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import rasterio
from helpers.file_server import serve
from helpers.raster_files import UTM, noise, read_raster, save
from rasterio.control import GroundControlPoint
from rasterio.rpc import RPC
from rasterio.shutil import copy
from rasterio.transform import Affine

from xcit_mm.rasters.old_raster import Raster

pytestmark = pytest.mark.filterwarnings(
    "ignore:(Dataset has no geotransform|The given matrix is equal)"
)
NOISE = noise(4, 70, 90)
POINTS = [
    GroundControlPoint(*corner)
    for corner in ((0, 0, 10.0, 50.0), (0, 90, 10.1, 50.02), (70, 0, 10.02, 49.9))
]
LINE = [1.0] + [0.0] * 19


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "a.tif"


class TestValidity:
    def test_pixels_are_invalid_if_all_bands_are_nodata(self, path):
        save(path, np.array([[[0, 0, 1]], [[0, 9, 1]], [[0, 0, 1]]], np.uint8), nodata=0)
        image, valid = read_raster(path)
        assert valid.tolist() == [[False, True, True]] and image[0, 1].tolist() == [0, 9, 0]

    def test_nan_and_infinity_are_invalid(self, path):
        save(path, np.array([[np.nan, np.inf, -np.inf, 1, 2, 3, -9999]], np.float32), nodata=-9999)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            image, valid = read_raster(path, bounds=(1, 3))
        assert valid.tolist() == [[False, False, False, True, True, True, False]]
        assert image[0, :, 0].tolist() == [0, 0, 0, 0, 128, 255, 0]
        np.testing.assert_allclose(Raster(path, percentiles=(0, 100)).bounds, [(1, 3)])

    def test_an_invalid_band_of_a_valid_pixel_is_0(self, path):
        image, valid = read_raster(
            save(path, np.array([[[5.0]], [[np.nan]], [[10.0]]])), bounds=(0, 10)
        )
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
        np.testing.assert_array_equal(read_raster(path, gsd=gsd)[1], expected)


def mosaic(path: Path, source: Path, nodata: int | None) -> Path:
    """Write a VRT of 70 x 180 pixels with a source of 70 x 90 pixels on the right side."""
    tag = "" if nodata is None else f"<NoDataValue>{nodata}</NoDataValue>"
    name = f'<SourceFilename relativeToVRT="1">{source.name}</SourceFilename>'
    rects = '<SrcRect xOff="0" yOff="0" xSize="90" ySize="70"/>'
    rects += '<DstRect xOff="90" yOff="0" xSize="90" ySize="70"/>'
    bands = ""
    for band in (1, 2, 3):
        simple = f"<SimpleSource>{name}<SourceBand>{band}</SourceBand>{rects}</SimpleSource>"
        bands += f'<VRTRasterBand dataType="Byte" band="{band}">{tag}{simple}</VRTRasterBand>'
    corner = ", ".join(map(str, UTM["transform"].to_gdal()))
    place = f"<SRS>{UTM['crs']}</SRS><GeoTransform>{corner}</GeoTransform>"
    path.write_text(f'<VRTDataset rasterXSize="180" rasterYSize="70">{place}{bands}</VRTDataset>')
    return path


@pytest.mark.parametrize("gsd", [None, 0.25])
@pytest.mark.parametrize("nodata", [0, 255, None])
def test_gaps_between_the_sources_of_a_mosaic_are_no_data_or_noted_as_zeros(nodata, gsd, path):
    vrt = mosaic(path.with_name("a.vrt"), save(path, NOISE[:3].clip(0, 254), **UTM), nodata)
    raster = Raster(vrt, gsd=gsd)
    _, valid = raster.read(slice(0, raster.height), slice(0, raster.width))
    gap = raster.width // 2
    assert valid[:, gap + 1 :].all()
    if nodata is None:
        assert valid.all()
        (note,) = raster.notes
        assert "zeros at its border fill 50% of a sample: with --nodata=0" in note
    else:
        assert not valid[:, : gap - 1].any() and raster.notes == []


class TestSeveralSignsOfNoData:
    """The left fifth has no data by the file, the right tenth by --nodata."""

    DATA = slice(40, 180)

    @pytest.mark.parametrize("gsd", [None, 1.0, 0.25])
    @pytest.mark.parametrize("sign", ["nodata", "mask", "alpha", "alpha and nodata"])
    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
    @pytest.mark.parametrize("nodata", [0, None])
    def test_all_count(self, nodata, dtype, sign, gsd, path):
        bands = noise(3, 100, 200, high=200, dtype=dtype) + 20
        bands[:, :, : self.DATA.start] = 255 if "alpha" in sign else 250
        bands[:, :, self.DATA.stop :] = 0
        is_data = np.arange(200) >= self.DATA.start
        opacity = np.broadcast_to(np.where(is_data, 255, 0), (100, 200)).astype(dtype)
        profile = dict(UTM)
        if "nodata" in sign:
            profile["nodata"] = 250
        if "alpha" in sign:
            bands = np.concatenate([bands, opacity[None]])
            profile |= dict(photometric="RGB", alpha="YES")
        save(path, bands, **profile)
        if sign == "mask":
            with rasterio.open(path, "r+") as file:
                file.write_mask(opacity.astype(np.uint8))
        _, valid = read_raster(path, gsd=gsd, nodata=nodata, bounds=[0, 255])
        pixel = (gsd or 0.5) / 0.5
        left, right = (round(column / pixel) for column in (self.DATA.start, self.DATA.stop))
        assert not valid[:, : left - 1].any()
        assert valid[:, right + 1 :].any() == valid[:, right + 1 :].all() == (nodata is None)
        assert valid[:, left + 1 : right - 1].all()

    def test_a_value_that_the_type_cannot_have_is_of_no_pixel(self, path):
        save(path, noise(3, 40, 40), **UTM)
        assert read_raster(path, gsd=1.0, nodata=-9999)[1].all()


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
        image, valid = read_raster(save(path, stored, **UTM), gsd=1, nodata=9)
        assert image[valid].max() == 200 and set(np.unique(image[:, :10][valid[:, :10]])) == {7}

    def test_degrees_are_converted_to_metres(self, path):
        """At a latitude of 60 degrees, a degree of longitude is half as long as one of latitude."""
        save(path, self.NOISE, crs="EPSG:4326", transform=Affine(1e-5, 0, 10, 0, -1e-5, 60))
        raster = Raster(path, gsd=1.115)
        assert (raster.height, raster.width) == (240, 160)
        a, _, _, _, e, _ = raster.transform[:6]
        assert (a, e) == pytest.approx((2e-5, -1e-5), rel=0.01)

    @pytest.mark.parametrize("gsd", [0, -1, 1e-5, 1e9, np.nan])
    def test_a_size_far_from_that_of_the_file_raises(self, gsd, path):
        message = r"--gsd .*: the pixels of .*a\.tif have 0.5 metres, give a similar size"
        with pytest.raises(ValueError, match=message):
            Raster(save(path, self.NOISE, **UTM), gsd=gsd)

    def test_the_scale_of_a_projection_is_no_reason_to_resample(self, path):
        image, _ = read_raster(save(path, self.NOISE, **UTM), gsd=0.502)
        np.testing.assert_array_equal(image, self.NOISE[::-1].transpose(1, 2, 0))


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

    @pytest.mark.parametrize(
        ("option", "place"),
        [
            ("", dict(gcps=POINTS, crs="EPSG:4326")),
            ("-rpc ", dict(rpcs=RPC(0, 1, 50, 1, LINE, LINE, 3, 6, 10, 1, LINE, LINE, 5, 10))),
        ],
    )
    def test_places_that_are_no_transform_raise_with_the_command(self, option, place, path):
        save(path, NOISE[0], **place)
        with pytest.raises(ValueError, match=rf"`gdalwarp {option}-r bilinear .*a\.tif OUT.tif`$"):
            Raster(path)

    @pytest.mark.parametrize(("compress", "start"), [("deflate", 0), ("jpeg", 0.3), ("jpeg", 0)])
    def test_a_hole_of_zero_bytes_is_an_error_of_its_tile(self, compress, start, path):
        blocks = dict(tiled=True, blockxsize=256, blockysize=256, compress=compress)
        save(path, noise(3, 16, 16).repeat(32, 1).repeat(32, 2), **blocks, photometric="RGB")
        with rasterio.open(path) as file:
            names = [f"BLOCK_{name}_1_0" for name in ("OFFSET", "SIZE")]
            offset, size = (int(file.get_tag_item(name, "TIFF", bidx=1)) for name in names)
        content = bytearray(path.read_bytes())
        hole = slice(offset + int(start * size), offset + size // 2)
        content[hole] = bytes(hole.stop - hole.start)
        path.write_bytes(content)
        with pytest.raises(OSError, match=r"^[^\n]*a\.tif cannot be read: [^\n]*$"):
            Raster(path).read(slice(0, 90), slice(300, 400))

    @pytest.mark.parametrize("content", [b"", b"hello", b"II*\0\x08\0\0\0\xff", None])
    def test_other_and_truncated_files_raise_in_one_line(self, content, path):
        save(path, NOISE[:3], tiled=True, blockxsize=16, blockysize=16, **UTM)
        path.write_bytes(path.read_bytes()[:-2000] if content is None else content)
        with pytest.raises(OSError, match=r"^[^\n]*a\.tif cannot be read: [^\n]+$"):
            read_raster(path)
