"""Windows of files that GDAL's cache does not help with: each strip is read once."""

from pathlib import Path

import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")

from xcit_mm.geo import Raster, gdal, windows  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")


def save(path: Path, bands: np.ndarray, **profile: object) -> Path:
    count, height, width = bands.shape
    with rasterio.open(path, "w", "GTiff", width, height, count, dtype=bands.dtype, **profile) as file:
        file.write(bands)
    return path


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


class TestStrips:
    NOISE = np.random.default_rng(0).integers(0, 256, (1, 700, 5000), np.uint8)

    @pytest.mark.parametrize("profile", [dict(), dict(blockysize=50), dict(nodata=7), dict(blockysize=700)])
    def test_a_strip_is_read_once_though_a_row_of_tiles_exceeds_the_cache(self, profile, tmp_path, monkeypatch):
        path = save(tmp_path / "a.tif", self.NOISE, compress="deflate", zlevel=1, **profile)
        monkeypatch.setattr(gdal, "CACHE_SIZE", 2**20)
        with Raster(path) as raster:
            raster.read(slice(0, 1), slice(0, 1))
            before = bytes_read()
            for top in (0, 150, 300, 444):
                for left in range(0, 5000 - 256, 200):
                    rows, columns = slice(top, top + 256), slice(left, left + 256)
                    image, valid = raster.read(rows, columns)
                    np.testing.assert_array_equal(image[..., 0], self.NOISE[0, rows, columns])
                    np.testing.assert_array_equal(valid, image[..., 0] != profile.get("nodata"))
                np.testing.assert_array_equal(
                    raster.valid(slice(top, top + 100), slice(0, 5000)),
                    self.NOISE[0, top : top + 100] != profile.get("nodata"),
                )
        assert bytes_read() - before < 2 * path.stat().st_size  # GDAL alone reads 35 times the file

    def test_strips_beyond_the_memory_raise_with_the_command_to_convert_them(self, tmp_path, monkeypatch):
        path = save(tmp_path / "a.tif", self.NOISE)
        monkeypatch.setattr(windows, "MAX_STRIPS", 3_000_000)
        with Raster(path) as raster:
            raster.read(slice(0, 256), slice(0, 10))
            with pytest.raises(
                ValueError,
                match=r"^[^\n]*a\.tif is stored in strips, 5000 pixels wide, of which 500 rows"
                r" take .* GB of memory: convert it by `gdal_translate -co TILED=YES [^\n]*`$",
            ):
                raster.read(slice(0, 500), slice(0, 10))
