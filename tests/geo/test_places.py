"""Tags of a file that change what its pixels mean are used, reported or rejected, never dropped."""

from pathlib import Path

import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")
from PIL import Image  # noqa: E402
from rasterio.control import GroundControlPoint  # noqa: E402
from rasterio.rpc import RPC  # noqa: E402

from xcit_mm.geo import Raster  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
VALUES = np.arange(60, dtype=np.uint16).reshape(1, 6, 10)


def save(path: Path, bands: np.ndarray = VALUES, **profile: object) -> Path:
    count, height, width = bands.shape
    with rasterio.open(path, "w", "GTiff", width, height, count, dtype=bands.dtype, **profile) as file:
        file.write(bands)
    return path


def test_ground_control_points_raise_with_the_command_that_rectifies(tmp_path):
    corners = [(0, 0, 10.0, 50.0), (0, 10, 10.1, 50.02), (6, 0, 10.02, 49.9), (6, 10, 10.12, 49.92)]
    points = [GroundControlPoint(row, column, x, y) for row, column, x, y in corners]
    path = save(tmp_path / "a.tif", gcps=points, crs="EPSG:4326")
    message = (
        r"^[^\n]*a\.tif is placed on the map by ground control points: .*`gdalwarp -r bilinear [^\n]*a\.tif OUT\.tif`$"
    )
    with pytest.raises(ValueError, match=message):
        Raster(path)


def test_rational_polynomials_raise_with_the_command_that_rectifies(tmp_path):
    line = [1.0] + [0.0] * 19
    rpc = RPC(0, 1, 50, 1, line, line, 3, 6, 10, 1, line, line, 5, 10, 0.1, 0.1)
    path = save(tmp_path / "a.tif", rpcs=rpc)
    with pytest.raises(ValueError, match=r"rational polynomial coefficients: .*`gdalwarp -rpc -r bilinear "):
        Raster(path)


@pytest.mark.parametrize(("scale", "offset"), [(0.01, -0.1), (-0.5, 10.0)])
def test_bounds_have_the_units_of_scale_and_offset(scale, offset, tmp_path):
    path = save(tmp_path / "a.tif")
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = [scale], [offset]
    whole = slice(0, 6), slice(0, 10)
    values = VALUES[0] * scale + offset
    low, high = sorted([20 * scale + offset, 45 * scale + offset])
    with Raster(path, scale=(low, high)) as raster:
        found = raster.read(*whole)[0][..., 0]
    np.testing.assert_allclose(found, np.clip((values - low) / (high - low), 0, 1) * 255, atol=0.501)
    with Raster(path, percentiles=(0, 100)) as raster, Raster(path, scale=raster.bounds) as other:
        np.testing.assert_allclose(np.sort(raster.bounds), [sorted([values.min(), values.max()])])
        np.testing.assert_array_equal(other.read(*whole)[0], raster.read(*whole)[0])
        assert raster.read(*whole)[0].max() == 255


def test_each_band_has_bounds_of_its_own_from_a_command_line(tmp_path):
    path = save(tmp_path / "a.tif", np.concatenate([VALUES, 10 * VALUES, VALUES]))
    with Raster(path, scale=[0, 51, 0, 510, 0, 255]) as raster:
        assert raster.bounds == [(0, 51), (0, 510), (0, 255)]
        assert raster.read(slice(5, 6), slice(1, 2))[0].tolist() == [[[51, 255, 255]]]
    with pytest.raises(
        ValueError, match=r"--bounds \[1, 2, 3, 4\]: give one pair, LOW HIGH, or one for each of the 3 ba"
    ):
        Raster(path, scale=[1, 2, 3, 4])


def test_pages_that_are_not_read_are_noted(tmp_path):
    pages = [Image.fromarray(page) for page in np.zeros((3, 6, 10), np.uint16)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    (note,) = Raster(tmp_path / "a.tif").notes
    assert note.startswith("only the first of its 3 pages is read: `gdal_translate GTIFF_DIR:2:")
    assert Raster(save(tmp_path / "b.tif")).notes == []
