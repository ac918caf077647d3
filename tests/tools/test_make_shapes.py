"""tools/make_shapes.py: reproducible files, correct rasters."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from make_shapes import write_dataset


def files(root: Path) -> dict[Path, bytes]:
    paths = [path for path in root.rglob("*") if path.is_file()]
    return {path.relative_to(root): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def rasters(tmp_path_factory) -> Path:
    pytest.importorskip("rasterio")
    root = tmp_path_factory.mktemp("rasters") / "shapes"
    write_dataset(root, train=12, val=2, size=64, rasters=True)
    return root


def test_files_are_reproducible_and_do_not_depend_on_rasters(rasters, tmp_path):
    write_dataset(tmp_path / "plain", train=12, val=2, size=64)
    plain = files(tmp_path / "plain")
    with_rasters = files(rasters)
    assert len(with_rasters) == len(plain) + 14
    assert plain.items() <= with_rasters.items()


def test_rasters_have_a_place_and_the_colors_of_the_images(rasters):
    import rasterio

    with rasterio.open(rasters / "rasters" / "training" / "00002.tif") as file:
        assert (file.count, set(file.dtypes)) == (4, {"uint16"})
        assert (file.crs.to_epsg(), file.res) == (32632, (1.0, 1.0))
        assert file.bounds.left == 500000 + 64 * 2
        colors = [color.name for color in file.colorinterp]
        *rgb, _ = file.read()
    assert colors == ["red", "green", "blue", "undefined"]
    image = cv2.imread(str(rasters / "images" / "training" / "00002.jpg"))[..., ::-1]
    np.testing.assert_allclose(np.dstack(rgb).mean((0, 1)) / 257, image.mean((0, 1)), atol=2)
