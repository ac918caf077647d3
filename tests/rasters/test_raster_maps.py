"""Maps of rasters: every pixel in its place, as other programs read them."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import rasterio.shutil
from helpers.pixel_segmentor import CLASSES, PALETTE, PixelSegmentor
from helpers.raster_files import NORTH_UP, ROTATED, UTM, noise, read_map, save

from xcit_mm import predict_raster

pytestmark = pytest.mark.filterwarnings(
    "ignore:(Dataset has no geotransform|The given matrix is equal)"
)


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "map.tif"


@pytest.mark.parametrize(("count", "transform"), [(3, NORTH_UP), (255, ROTATED)])
def test_pixels_place_palette_and_classes_are_read_as_predicted(count, transform, out, tmp_path):
    bands = noise(3, 600, 520)
    bands[:, :150, 100:] = 0
    segmentor = PixelSegmentor([*CLASSES, *map(str, range(count - 3))])
    raster = save(tmp_path / "a.tif", bands, nodata=0, crs="EPSG:32633", transform=transform)
    predict_raster(segmentor, raster, out, tile=128)
    expected = np.where(bands.any(axis=0), segmentor.classes_of(bands.transpose(1, 2, 0)), 255)
    with rasterio.open(out) as file:
        np.testing.assert_array_equal(file.read(1), expected)
        assert file.crs.to_epsg() == 32633 and file.transform.almost_equals(transform, 1e-9)
        assert file.nodata == 255 and file.dtypes == ("uint8",)
        assert json.loads(file.tags()["CLASSES"])[:3] == CLASSES
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG" and file.overviews(1)
        if count == 3:
            colors = [list(file.colormap(1)[number][:3]) for number in range(3)]
            assert colors == PALETTE
    assert sorted(tmp_path.glob("map.tif*")) == [out, tmp_path / "map.tif.aux.xml"]
    rasterio.shutil.copy(out, tmp_path / "map.vrt", driver="VRT")
    names = ElementTree.parse(tmp_path / "map.vrt").iter("Category")
    assert [name.text for name in names] == segmentor.metainfo["classes"]  # QGIS's legend has them


def test_bands_of_the_training_are_read_and_no_place_is_made_up(out, tmp_path):
    bands = noise(3, 100, 120, high=9000, dtype=np.uint16)
    segmentor = PixelSegmentor(bands=2)
    segmentor.cfg.raster = dict(bands=[3, 1], tile=64, overlap=16)
    predict_raster(segmentor, save(tmp_path / "a.tif", bands), out, nodata=np.uint16(0))
    expected = segmentor.classes_of(bands[[2, 0]].transpose(1, 2, 0))
    np.testing.assert_array_equal(read_map(out), expected)
    with rasterio.open(out) as file:
        assert file.crs is None and file.transform.is_identity


PREDICT = """
import resource, sys
raster, out, *sys.path[:0] = sys.argv[1:]
from helpers.pixel_segmentor import PixelSegmentor
from xcit_mm import predict_raster
predict_raster(PixelSegmentor(), raster, out, tile=1000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_raster(out, tmp_path):
    """Of the 400 MB of the larger raster, and as many of its map, a part stays in GDAL's cache."""
    peaks = []
    for side in (2000, 20_000):
        raster = tmp_path / f"{side}.tif"
        profile = dict(height=side, width=side, count=1, dtype="uint8", tiled=True, nodata=0)
        with rasterio.open(raster, "w", SPARSE_OK=True, **profile, **UTM) as file:
            for start in range(0, side, 500):
                span = (start, start + 500)
                file.write(np.full((1, 500, 500), 7, np.uint8), window=(span, span))
        result = out.with_stem(f"map-{side}")
        command = [sys.executable, "-W", "ignore", "-c", PREDICT, raster, result, *sys.path]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]) / 1024)
    assert peaks[1] - peaks[0] < 500
