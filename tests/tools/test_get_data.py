"""tools/get_data.py writes the data of the demo configs from clones of their repositories."""

import json
from pathlib import Path

import numpy as np
import pytest
import rasterio
from get_data import write_data
from helpers.clones import write_camvid_clone, write_nuts_clone, write_trees_clone

CLONES = dict(nuts=write_nuts_clone, camvid=write_camvid_clone, trees=write_trees_clone)


def clone(name: str, folder: Path) -> Path:
    CLONES[name](folder / f"{name}-clone")
    return folder / f"{name}-clone"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_pixels(path: Path) -> np.ndarray:
    """Read an image or raster in RGB, (h, w, 3)."""
    with rasterio.open(path) as file:
        return file.read().transpose(1, 2, 0)


def test_four_nuts_are_held_out_as_for_the_measured_scores(tmp_path):
    nuts = clone("nuts", tmp_path)
    root = tmp_path / "data" / "nuts"
    assert write_data("nuts", nuts, root) == {"train2017": 14, "val2017": 4}
    assert names(root / "val2017") == ["11.jpg", "16.jpg", "4.jpg", "8.jpg"]
    coco = json.loads((root / "annotations" / "instances_val2017.json").read_text())
    ids = {int(Path(image["file_name"]).stem) for image in coco["images"]}
    assert {annotation["image_id"] for annotation in coco["annotations"]} == ids == {4, 8, 11, 16}


@pytest.fixture(scope="module")
def trees(tmp_path_factory) -> Path:
    """A folder with the data from a clone of a mosaic of 900 x 820 pixels."""
    folder = tmp_path_factory.mktemp("trees")
    # The left 600 pixels in tiles of 400, a step of 200 apart; the right 300 in rows of 400.
    counts = write_data("trees", clone("trees", folder), folder / "data")
    assert counts == {"train": 8, "val": 3}
    return folder / "data"


@pytest.mark.parametrize("split, left_of_split, right", [("train", 0, 600), ("val", 600, 900)])
def test_tiles_show_their_trees_and_no_pixel_is_in_two_splits(split, left_of_split, right, trees):
    mosaic = read_pixels(trees / "mosaic.tif")
    coco = json.loads((trees / f"{split}.json").read_text())
    assert names(trees / split) == sorted(image["file_name"] for image in coco["images"])
    for image in coco["images"]:
        top, left = map(int, Path(image["file_name"]).stem.split("-"))
        left += left_of_split
        tile = read_pixels(trees / split / image["file_name"])
        assert left + image["width"] <= right
        rows = slice(top, top + image["height"])
        assert np.array_equal(tile, mosaic[rows, left : left + image["width"]])
        covered = np.zeros(tile.shape[:2], bool)
        for annotation in coco["annotations"]:
            if annotation["image_id"] == image["id"]:
                x, y, width, height = map(int, annotation["bbox"])
                covered[y : y + height + 1, x : x + width + 1] = True
        shown = (tile == [20, 90, 20]).all(axis=2)  # discs, which fill pi / 4 of their boxes
        assert shown[covered].mean() > 0.6 and shown[~covered].mean() < 0.06


def test_a_missing_file_is_named_and_nothing_is_left(tmp_path):
    source = clone("camvid", tmp_path)
    (source / "CamVid" / "train").rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError, match=f"{source} is not a clone of .*CamVid/train"):
        write_data("camvid", source, tmp_path / "data" / "camvid")
    assert names(tmp_path / "data") == []
