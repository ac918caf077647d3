"""LoadRasterFromFile loads exactly the bands of the file, also where OpenCV's loader fails."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers.raster_files import save
from mmengine.dataset import Compose
from mmengine.registry import TRANSFORMS, init_default_scope

import xcit_mm  # noqa: F401  registers the loader

pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")


def write(path: Path, count: int, dtype: str = "uint16") -> dict:
    """Write bands of 5 x 7 pixels with values 10000 * band + 100 * row + column, and return a
    pipeline's input.
    """
    band, row, column = np.mgrid[1 : count + 1, :5, :7]
    save(path, (10000 * band + 100 * row + column).astype(dtype))
    return dict(img_path=str(path), seg_fields=[])


def loader(**options):
    return TRANSFORMS.build(dict(type="LoadRasterFromFile", **options))


@pytest.mark.parametrize(
    ("count", "dtype", "options", "bands"),
    [
        (1, "uint16", {}, [1]),
        (13, "float32", {}, range(1, 14)),
        (5, "uint16", dict(bands=(4, 1), to_float32=False), [4, 1]),
    ],
)
def test_bands_are_loaded_exactly_in_their_order(count, dtype, options, bands, tmp_path):
    loaded = loader(**options)(write(tmp_path / "a.tif", count, dtype))
    image = loaded["img"]
    assert image.dtype == (dtype if options else np.float32) and image.shape == (5, 7, len(bands))
    assert (loaded["img_shape"], loaded["ori_shape"]) == ((5, 7), (5, 7))
    assert image[3, 6].tolist() == [10000 * band + 306 for band in bands]


@pytest.mark.parametrize("pack", ["mmseg.PackSegInputs", "mmdet.PackDetInputs"])
def test_pipelines_of_both_libraries_accept_the_result_without_warnings(pack, tmp_path):
    init_default_scope(pack.partition(".")[0])
    steps = [dict(type="LoadRasterFromFile"), dict(type="RandomFlip", prob=1.0)]
    steps += [dict(type=pack, meta_keys=("img_shape", "ori_shape"))]
    image = write(tmp_path / "a.tif", 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a training would warn for each image without georeference
        packed = Compose(steps)(image)
    assert packed["inputs"][4, 2].float().tolist() == [50200 + column for column in range(7)][::-1]
    assert packed["data_samples"].img_shape == (5, 7)


def test_a_band_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"a\.tif has no bands \[5\]: give 1 to 3"):
        loader(bands=(1, 5))(write(tmp_path / "a.tif", 3))
