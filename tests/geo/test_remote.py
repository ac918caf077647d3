"""Rasters at URLs are read by windows, and what stands beside a file gives it a place."""

from pathlib import Path

import cv2
import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")
from file_server import serve  # noqa: E402
from rasterio.shutil import copy  # noqa: E402
from rasterio.transform import Affine  # noqa: E402

from xcit_mm.geo import Raster, is_raster  # noqa: E402
from xcit_mm.utils.images import read_image  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
UTM = dict(crs="EPSG:32633", transform=Affine(0.5, 0, 500000, 0, -0.5, 5400000))
NOISE = np.random.default_rng(0).integers(0, 256, (3, 1100, 1200), np.uint8)


def save(path: Path, bands: np.ndarray = NOISE[:, :20, :30], **profile: object) -> Path:
    count, height, width = bands.shape
    with rasterio.open(path, "w", "GTiff", width, height, count, dtype=bands.dtype, **profile) as file:
        file.write(bands)
    return path


@pytest.mark.parametrize("prefix", ["", "/vsicurl/"])
def test_a_cloud_optimized_geotiff_is_read_by_windows(prefix, tmp_path):
    copy(save(tmp_path / "a.tif", NOISE, **UTM), tmp_path / "cog.tif", driver="COG", compress="deflate")
    with serve(tmp_path) as server:
        path = f"{prefix}{server.url}/cog.tif?token=1"
        assert is_raster(path)
        with Raster(path) as raster:
            image, _ = raster.read(slice(600, 700), slice(900, 1000))
            assert raster.georeference.transform == UTM["transform"]
        assert server.sent.value < (tmp_path / "cog.tif").stat().st_size / 2
    np.testing.assert_array_equal(image, NOISE[::-1, 600:700, 900:1000].transpose(1, 2, 0))


def test_photos_and_missing_files_at_urls_are_left_to_the_image_reader(tmp_path):
    save(tmp_path / "photo.tif")
    with serve(tmp_path) as server:
        for name in ("photo.tif", "gone.tif", "photo.png"):
            assert not is_raster(f"{server.url}/{name}")
        assert read_image(f"{server.url}/photo.tif").shape == (20, 30, 3)
        with pytest.raises(OSError, match=r"^[^\n]*/gone\.tif cannot be read: [^\n]*404"):
            Raster(f"{server.url}/gone.tif")


@pytest.mark.parametrize("ending", [".tif.aux.xml", ".tfw", ".TFW", ".tiffw"])
def test_a_place_beside_a_tiff_makes_it_a_raster(ending, tmp_path):
    path = tmp_path / f"a.{'tiff' if ending == '.tiffw' else 'tif'}"
    cv2.imwrite(str(path), NOISE[0, :20, :30])
    if ending.endswith("xml"):
        place = "<PAMDataset>{}<Metadata/></PAMDataset>"
        (tmp_path / f"a{ending}").write_text(place.format(""))
        assert not is_raster(path)
        (tmp_path / f"a{ending}").write_text(place.format("<GeoTransform>100, .5, 0, 200, 0, -.5</GeoTransform>"))
    else:
        (tmp_path / f"a{ending}").write_text("0.5\n0\n0\n-0.5\n100.25\n199.75\n")
    assert is_raster(path)
    assert Raster(path).georeference.transform == Affine(0.5, 0, 100, 0, -0.5, 200)


def test_a_large_image_without_a_place_is_noted_to_be_a_raster(tmp_path):
    path = tmp_path / "a.tif"
    rasterio.open(path, "w", "GTiff", 2**20 + 1, 8, 3, dtype="uint8", tiled=True, SPARSE_OK=True).close()
    (note,) = Raster(path).notes
    assert note.startswith("it has no place on a map, but more pixels than a photo may have")
