"""LoadRasterFromFile gives the bands that are in the file, where OpenCV's loader cannot."""

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
from mmengine.dataset import Compose
from mmengine.registry import TRANSFORMS, init_default_scope

import xcit_mm  # noqa: F401  registers it

rasterio = pytest.importorskip("rasterio")


def write(path: Path, bands: np.ndarray) -> dict:
    """A TIFF of bands (n, H, W), without a place on earth; returns what a pipeline begins with."""
    count, height, width = bands.shape
    size = dict(count=count, height=height, width=width, dtype=bands.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with rasterio.open(path, "w", driver="GTiff", **size) as file:
            file.write(bands)
    return dict(img_path=str(path), seg_fields=[])


def levels(count: int, dtype: str = "uint16") -> np.ndarray:
    """Bands of 5 x 7 pixels whose value tells band, row and column."""
    band, row, column = np.mgrid[1 : count + 1, :5, :7]
    return (10000 * band + 100 * row + column).astype(dtype)


@pytest.mark.parametrize("count, dtype", [(1, "uint16"), (2, "uint16"), (4, "uint16"), (5, "uint16"), (13, "float32")])
def test_all_bands_in_their_order_and_exactly(count, dtype, tmp_path):
    loaded = TRANSFORMS.build(dict(type="LoadRasterFromFile"))(write(tmp_path / "a.tif", levels(count, dtype)))
    assert (loaded["img"].shape, loaded["img"].dtype) == ((5, 7, count), np.float32)
    assert (loaded["img_shape"], loaded["ori_shape"]) == ((5, 7), (5, 7))
    assert loaded["img"][3, 6].tolist() == [10000 * band + 306 for band in range(1, count + 1)]


def test_chosen_bands_in_the_given_order_and_the_file_s_type(tmp_path):
    load = TRANSFORMS.build(dict(type="LoadRasterFromFile", bands=(4, 1), to_float32=False))
    image = load(write(tmp_path / "a.tif", levels(5)))["img"]
    assert image.dtype == np.uint16
    assert image[0, 1].tolist() == [40001, 10001]


@pytest.mark.parametrize("to_float32", [True, False])
@pytest.mark.parametrize("pack", ["mmseg.PackSegInputs", "mmdet.PackDetInputs"])
def test_it_opens_the_libraries_pipelines(pack, to_float32, tmp_path):
    init_default_scope(pack.partition(".")[0])
    steps = [dict(type="LoadRasterFromFile", to_float32=to_float32), dict(type="RandomFlip", prob=1.0)]
    steps += [dict(type=pack, meta_keys=("img_shape", "ori_shape"))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # thousands of images without georeferencing would warn as often
        packed = Compose(steps)(write(tmp_path / "a.tif", levels(5)))
    assert packed["inputs"][4].float().tolist() == levels(5)[4, :, ::-1].tolist()
    assert packed["data_samples"].img_shape == (5, 7)


@pytest.mark.parametrize("bands", [(), (0, 1), (1.5,), "123", 3, True, np.array([1, 2])])
def test_bands_that_are_no_numbers_of_bands_are_named(bands):
    with pytest.raises(ValueError, match=r"^bands=.*: give a list of band numbers, counted from 1"):
        TRANSFORMS.build(dict(type="LoadRasterFromFile", bands=bands))


def test_what_the_file_does_not_have_is_named(tmp_path):
    load = TRANSFORMS.build(dict(type="LoadRasterFromFile", bands=(1, 6)))
    with pytest.raises(ValueError, match=r"a.tif has 5 bands, not a band 6: correct bands"):
        load(write(tmp_path / "a.tif", levels(5)))
    with pytest.raises(rasterio.errors.RasterioIOError, match=r"none.tif"):
        load(dict(img_path=str(tmp_path / "none.tif")))


def test_without_rasterio_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install xcit_mm\[raster\]"):
        TRANSFORMS.build(dict(type="LoadRasterFromFile"))
