"""Segmentation maps as GeoTIFF: every pixel in its place, files complete or absent, in the memory of a few rows."""

import html
import json
import multiprocessing
import os
import re
import resource
import signal
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")
from rasterio.crs import CRS  # noqa: E402
from rasterio.shutil import copy  # noqa: E402
from rasterio.transform import Affine  # noqa: E402

from xcit_mm.geo import Georeference, Raster  # noqa: E402
from xcit_mm.geo.geotiff import join_maps, no_class, open_map  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
NORTH_UP = Affine(0.5, 0, 500000, 0, -0.5, 5400000)
ROTATED = Affine(0.3, 0.4, 500000, 0.4, -0.3, 5400000)
UTM = CRS.from_epsg(32633)
CLASSES = ["road", "<house>", "Bäume"]
PALETTE = [[128, 64, 128], [70, 70, 70], [107, 142, 35]]


def blobs(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A map of three classes in large parts."""
    noise = np.random.default_rng(seed).random((height // 8 + 1, width // 8 + 1), np.float32)
    smooth = cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.digitize(smooth, [0.33, 0.66]).astype(np.uint8)


def write_map(path: Path, labels: np.ndarray, place: Georeference, valid: np.ndarray | None = None, **options) -> Path:
    with open_map(path, place, options.pop("classes", CLASSES), **options) as writer:
        for start in range(0, len(labels), 100):
            mask = None if valid is None else valid[start : start + 100]
            writer.write(labels[start : start + 100], mask)
    return path


@pytest.mark.parametrize("transform", [NORTH_UP, ROTATED])
def test_pixels_place_palette_and_classes_are_read_as_written(transform, tmp_path):
    labels, valid = blobs(1300, 700), blobs(1300, 700, seed=1) > 0
    write_map(tmp_path / "map.tif", labels, Georeference(1300, 700, UTM, transform), valid, palette=PALETTE)
    assert os.listdir(tmp_path) == ["map.tif"]
    with rasterio.open(tmp_path / "map.tif") as file:
        np.testing.assert_array_equal(file.read(1), np.where(valid, labels, 255))
        np.testing.assert_array_equal(file.read_masks(1) > 0, valid)
        assert file.crs == UTM and file.transform.almost_equals(transform, 1e-9)
        assert file.nodata == 255 and file.dtypes == ("uint8",)
        assert file.block_shapes == [(512, 512)] and file.compression.name == "deflate"
        assert [file.colormap(1)[number][:3] for number in range(3)] == [tuple(color) for color in PALETTE]
        assert json.loads(file.tags()["CLASSES"]) == CLASSES


def test_a_map_without_a_place_has_none_when_read(tmp_path):
    place = Georeference(30, 40, None, Affine.identity())
    assert Raster(write_map(tmp_path / "a.tif", blobs(30, 40), place)).georeference == place


@pytest.mark.parametrize("count, value, dtype", [(255, 255, "uint8"), (256, 65535, "uint16"), (900, 65535, "uint16")])
def test_the_value_of_no_class_is_not_a_class(count, value, dtype, tmp_path):
    classes = [f"class {number}" for number in range(count)]
    labels = np.arange(count).reshape(1, -1).repeat(2, axis=0)
    valid = np.array([[True], [False]]).repeat(count, axis=1)
    write_map(tmp_path / "map.tif", labels, Georeference(2, count, UTM, NORTH_UP), valid, classes=classes)
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.nodata == value and file.dtypes == (dtype,)
        assert file.read(1).tolist() == [list(range(count)), [value] * count]
        colors = file.colormap(1)
        assert len({colors[number] for number in range(count)}) > 0.9 * min(count, 250)
    with pytest.raises(ValueError, match="70000 classes"):
        no_class(["a"] * 70000)


@pytest.mark.parametrize("transform", [NORTH_UP, ROTATED, Affine.identity()])
def test_joined_rows_equal_the_whole_map(transform, tmp_path):
    place = Georeference(1700, 600, UTM, transform)
    labels, valid = blobs(1700, 600), blobs(1700, 600, seed=1) > 0
    shards = []
    for first, stop in pairwise([0, 1, 513, 513 + 512, 1690, 1700]):
        path = tmp_path / "parts" / f"{first}.tif"
        write_map(path, labels[first:stop], place, valid[first:stop], rows=(first, stop), palette=PALETTE)
        shards.append(path)
        with rasterio.open(path) as shard:
            for x, y in ((0, 0), (600, stop - first)):
                np.testing.assert_allclose(shard.transform @ (x, y), transform @ (x, y + first))
    join_maps(tmp_path / "joined.tif", shards, place, CLASSES, PALETTE)
    write_map(tmp_path / "whole.tif", labels, place, valid, palette=PALETTE)
    copy(tmp_path / "joined.tif", tmp_path / "joined.vrt", driver="VRT")
    categories = re.findall("<Category>(.*?)</Category>", (tmp_path / "joined.vrt").read_text())
    assert [html.unescape(name) for name in categories] == CLASSES  # as GDAL reads them
    with rasterio.open(tmp_path / "joined.tif") as joined, rasterio.open(tmp_path / "whole.tif") as whole:
        np.testing.assert_array_equal(joined.read(1), whole.read(1))
        assert joined.colormap(1) == whole.colormap(1) and joined.tags()["CLASSES"] == whole.tags()["CLASSES"]
        assert (joined.crs, joined.transform, joined.nodata) == (whole.crs, whole.transform, whole.nodata)
        assert joined.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG" and joined.overviews(1) == [2, 4]


def test_rows_of_other_maps_are_rejected(tmp_path):
    place, labels = Georeference(1000, 60, UTM, NORTH_UP), blobs(1000, 60)
    one = write_map(tmp_path / "1.tif", labels[:600], place, rows=(0, 600))
    two = write_map(tmp_path / "2.tif", labels[600:], place, rows=(600, 1000))
    other = write_map(tmp_path / "3.tif", labels[600:], place, rows=(600, 1000), classes=["a", "b", "c"])
    narrow = write_map(tmp_path / "4.tif", labels[600:, :50], place._replace(width=50), rows=(600, 1000))
    for shards, message in (
        ([two, one], r"2\.tif begins with row 600"),
        ([one, one], r"1\.tif begins with row 0"),
        ([one], "600 of its 1000 rows"),
        ([one, other], r'3\.tif is 60 wide and has the classes \["a", "b", "c"\]'),
        ([one, narrow], r"4\.tif is 50 wide"),
    ):
        with pytest.raises(ValueError, match=message):
            join_maps(tmp_path / "out" / "all.tif", shards, place, CLASSES)
    two.write_bytes(two.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"2\.tif cannot be read: "):
        join_maps(tmp_path / "out" / "all.tif", [one, two], place, CLASSES)
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize(
    "labels, valid, message",
    [
        (np.zeros((5, 9)), None, r"rows of \(5, 9\)"),
        (np.zeros((5, 8)), np.ones((5, 1)), r"with a mask of \(5, 1\)"),
        (np.zeros((11, 8)), None, "11 rows"),
        (np.full((5, 8), 3), None, "labels from 3 to 3"),
        (np.full((5, 8), -1), None, "labels from -1 to -1"),
    ],
)
def test_rows_that_do_not_match_the_map_raise(labels, valid, message, tmp_path):
    place = Georeference(10, 8, UTM, NORTH_UP)
    with pytest.raises(ValueError, match=message), open_map(tmp_path / "map.tif", place, CLASSES) as writer:
        writer.write(labels.astype(int), None if valid is None else valid.astype(bool))
    assert os.listdir(tmp_path) == []


def test_a_former_file_stays_if_writing_is_interrupted(tmp_path):
    place = Georeference(600, 40, UTM, NORTH_UP)
    path = write_map(tmp_path / "map.tif", blobs(600, 40), place)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), open_map(path, place, CLASSES) as writer:
        writer.write(np.zeros((550, 40), np.uint8))
        raise KeyboardInterrupt
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["map.tif"]


def test_a_disk_that_is_full_at_any_moment_raises(tmp_path):
    """GDAL reports no error of its last block and of the header."""
    place, labels = Georeference(700, 600, None, Affine.identity()), np.random.default_rng(0).integers(0, 3, (700, 600))
    size = write_map(tmp_path / "whole.tif", labels, place).stat().st_size

    def write_with_little_space() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for space in [*range(0, size, size // 20), size - 1]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (space, resource.RLIM_INFINITY))
            with pytest.raises(OSError, match=r"full\.tif cannot be written: "):
                write_map(tmp_path / "full.tif", labels, place)
            assert os.listdir(tmp_path) == ["whole.tif"], space

    process = multiprocessing.get_context("fork").Process(target=write_with_little_space)
    process.start()
    process.join(120)
    assert process.exitcode == 0
