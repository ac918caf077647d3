"""Maps of rasters: every pixel in its place, as other programs read them."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")
pytest.importorskip("geopandas")
from helpers.pixel_segmentor import CLASSES, PALETTE, PixelSegmentor  # noqa: E402
from helpers.raster_files import NORTH_UP, UTM, save  # noqa: E402
from rasterio.shutil import copy  # noqa: E402
from rasterio.transform import Affine  # noqa: E402

from xcit_mm import Predictor, predict_raster  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:(Dataset has no geotransform|The given matrix is equal)"
)


def noise(*shape: int, high: int = 256, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(1, high, shape).astype(dtype)


def read_map(path: Path) -> np.ndarray:
    with rasterio.open(path) as file:
        return file.read(1)


@pytest.mark.parametrize(
    "transform", [NORTH_UP, Affine(0.3, 0.4, 5e5, 0.4, -0.3, 5e6), Affine(0.5, 0, 0, 0, 0.5, 0)]
)
@pytest.mark.parametrize("count", [3, 255, 300])
def test_pixels_place_palette_and_classes_are_read_as_predicted(transform, count, tmp_path):
    values = noise(3, 700, 620)
    values[:, :150, 100:] = 0
    segmentor = PixelSegmentor([*CLASSES, *map(str, range(count - 3))])
    raster = save(tmp_path / "a.tif", values, nodata=0, crs="EPSG:32633", transform=transform)
    out = predict_raster(raster, segmentor, tmp_path / "map.tif", tile=128)
    nodata = 255 if count <= 255 else 65535
    expected = np.where(values.any(axis=0), segmentor.classes_of(values.transpose(1, 2, 0)), nodata)
    copy(out, tmp_path / "map.vrt", driver="VRT")
    categories = re.findall("<Category>(.*?)</Category>", (tmp_path / "map.vrt").read_text())
    assert [html.unescape(name) for name in categories][:3] == CLASSES  # as GDAL reads them
    with rasterio.open(out) as file:
        np.testing.assert_array_equal(file.read(1), expected)
        assert file.crs.to_epsg() == 32633 and file.transform.almost_equals(transform, 1e-9)
        assert file.nodata == nodata and file.dtypes == ("uint8" if count <= 255 else "uint16",)
        assert json.loads(file.tags()["CLASSES"])[:3] == CLASSES
        assert file.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG" and file.overviews(1)
        if count == 3:
            assert [file.colormap(1)[number][:3] for number in range(3)] == [
                tuple(color) for color in PALETTE
            ]
    assert sorted(path.name for path in tmp_path.glob("map.tif*")) == ["map.tif", "map.tif.aux.xml"]


@pytest.mark.parametrize("bands", [1, 8])
def test_rasters_of_one_and_of_eight_bands_of_16_bits(bands, tmp_path):
    values = noise(bands, 200, 250, high=9000, dtype=np.uint16)
    segmentor = PixelSegmentor(bands=8 if bands == 8 else 3)
    out = predict_raster(
        save(tmp_path / "a.tif", values, **UTM), segmentor, tmp_path / "map.tif", tile=96
    )
    image = values.transpose(1, 2, 0)
    if bands == 1:
        low, high = np.percentile(values, (2, 98))
        image = (
            np.rint((image.clip(low, high) - low) / (high - low) * 255)
            .astype(np.uint8)
            .repeat(3, axis=2)
        )
    assert (
        read_map(out) == segmentor.classes_of(image)
    ).mean() > 0.99  # the bounds are those of a sample


def test_bands_of_the_training_are_read_again(tmp_path):
    values = noise(3, 100, 120)
    segmentor = PixelSegmentor(bands=2)
    segmentor.cfg.raster = dict(bands=[3, 1], tile=64, overlap=16)
    out = predict_raster(save(tmp_path / "a.tif", values, **UTM), segmentor, tmp_path / "map.tif")
    expected = segmentor.classes_of(values[[2, 0]].transpose(1, 2, 0))
    np.testing.assert_array_equal(read_map(out), expected)


def test_a_raster_without_a_valid_pixel_has_an_empty_map(tmp_path):
    segmentor = PixelSegmentor()
    raster = save(tmp_path / "a.tif", np.zeros((3, 300, 200), np.uint8), nodata=0, **UTM)
    assert (read_map(predict_raster(raster, segmentor, tmp_path / "map.tif", tile=96)) == 255).all()
    assert segmentor.seen == 0
    raster = save(tmp_path / "b.tif", np.zeros((3, 300, 200), np.uint16), nodata=0, **UTM)
    with pytest.raises(ValueError, match="no valid pixel, give --bounds LOW HIGH"):
        predict_raster(raster, segmentor, tmp_path / "b-map.tif", tile=96)


def test_a_raster_of_1_x_100_000_pixels_and_without_a_place(tmp_path):
    values = noise(3, 1, 100_000)
    out = predict_raster(
        save(tmp_path / "a.tif", values), PixelSegmentor(), tmp_path / "map.tif", tile=9000
    )
    assert np.array_equal(read_map(out), PixelSegmentor().classes_of(values.transpose(1, 2, 0)))
    with rasterio.open(out) as file:
        assert file.crs is None and file.transform.is_identity


def test_a_map_equals_that_of_a_photo_in_tiles(models, tmp_path):
    values = noise(3, 9, 8).repeat(28, axis=1).repeat(25, axis=2)
    raster = save(tmp_path / "a.tif", values, **UTM)
    found = predict_raster(
        raster,
        Predictor.from_config(*models["seg"], batch_size=2),
        tmp_path / "map.tif",
        tile=96,
        overlap=24,
    )
    photo = np.ascontiguousarray(values[::-1].transpose(1, 2, 0))
    expected = Predictor.from_config(*models["seg"], tile=96, overlap=24)(photo).segmentation
    assert len(np.unique(expected)) > 2 and np.array_equal(read_map(found), expected)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_raster(tmp_path):
    """Of the 1600 MB of the larger raster, and as many of its map, a part stays in GDAL's cache."""
    peaks = []
    for side in (2000, 40_000):
        profile = dict(
            height=side, width=side, count=1, dtype="uint8", tiled=True, nodata=0, SPARSE_OK=True
        )
        with rasterio.open(tmp_path / f"{side}.tif", "w", **profile, **UTM) as file:
            for start in range(0, side, 500):
                file.write(
                    np.full((1, 500, 500), 7, np.uint8),
                    window=((start, start + 500), (start, start + 500)),
                )
        code = f"""
import resource, sys
sys.path[:0] = {sys.path!r}
from helpers.pixel_segmentor import PixelSegmentor
from xcit_mm import predict_raster
raster, out = {str(tmp_path / f"{side}.tif")!r}, {str(tmp_path / f"{side}-map.tif")!r}
predict_raster(raster, PixelSegmentor(), out, tile=1000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout.split()[-1]) / 1024)
    assert peaks[1] - peaks[0] < 600


class TestCommand:
    def test_a_folder_of_rasters_is_a_folder_of_results(self, models, call, tmp_path):
        values = noise(3, 5, 4).repeat(28, axis=1).repeat(25, axis=2)
        (tmp_path / "in").mkdir()
        for name in ("a.tif", "b.tif"):
            save(tmp_path / "in" / name, values, **UTM)
        (tmp_path / "in" / "text.tif").write_text("text")
        (tmp_path / "in" / "notes.txt").write_text("text")
        for kind, suffix in (("seg", ".tif"), ("det", ".gpkg")):
            out = tmp_path / kind
            code, _, errors = call(
                "raster", tmp_path / "in", *models[kind], "--out", out, "--tile", 96
            )
            assert code == 3 and f"skipped {tmp_path / 'in' / 'text.tif'}: OSError: " in errors
            assert sorted(path.name for path in out.glob(f"*{suffix}")) == [
                f"a{suffix}",
                f"b{suffix}",
            ]

    def test_errors_are_one_line(self, models, refusal, tmp_path):
        raster = save(tmp_path / "a.tif", noise(3, 100, 100), **UTM)
        for options, message in (
            (("--out", tmp_path / "map.gpkg"), "a segmentor writes .tif, .tiff"),
            (
                ("--out", tmp_path / "map.tif", "--crs", "EPSG:4326"),
                "a map has the raster's, use gdalwarp -t_srs",
            ),
            (("--out", tmp_path / "map.tif", "--bounds", 5, 5), "--bounds 5 5"),
            (("--out", tmp_path / "map.tif", "--min-score", 0.5), "only detectors have scores"),
        ):
            assert message in refusal("raster", raster, *models["seg"], *options)
        assert "No such file" in refusal(
            "raster", "gone.tif", *models["seg"], "--out", tmp_path / "map.tif"
        )
