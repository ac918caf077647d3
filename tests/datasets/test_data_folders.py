"""What else lies in the folder of a data set, and where its files may lie."""

from pathlib import Path

import pytest
from helpers.layouts import coco, write_files

from xcit_mm.datasets import read_objects
from xcit_mm.datasets.old_writing import is_current, read_state, write_dataset


def test_a_file_that_is_given_decides_between_formats(folder):
    write_files(folder, "{0,1}.jpg 0.txt", {"a.json": coco("1.jpg"), "data.yaml": "names: [b]"})
    assert read_objects(folder / "a.json").classes == ("thing",)
    assert read_objects(folder / "data.yaml").classes == ("b",)


@pytest.mark.parametrize("source", [{"a.json": coco("0.jpg")}, {"data.yaml": "names: [a]"}])
def test_results_in_the_folder_of_the_data_are_no_data(source, folder):
    """A user trains in the folder of the data, and predicts there."""
    write_files(folder, "0.jpg 0.txt" if "data.yaml" in source else "0.jpg", source)
    first = read_objects(folder)
    write_dataset(first, folder, folder / "a-coco")
    log = {"a.py": "", "work_dirs/a/1/scalars.json": "{}", "other/last_checkpoint": ""}
    results = {
        "out/run.json": "{}",
        "out/journal/1.jsonl": "",
        "out/predictions.json": coco("0.jpg"),
    }
    write_files(folder, "work_dirs/a/predictions.jpg", log | results)
    second = read_objects(folder)
    assert second.left_out.reasons[("folder", "of results")] == [
        "a-coco",
        "other",
        "out",
        "work_dirs",
    ]
    assert second.describe().startswith(first.describe())
    state = read_state(folder / "a-coco")
    assert state is not None and is_current(state, str(folder))


def test_photos_of_an_absolute_path_are_found(folder):
    photos = folder / "elsewhere/images/train"
    write_files(photos, "0.jpg")
    write_files(Path(str(photos).replace("images", "labels")), "0.txt")
    write_files(folder / "data", "", {"data.yaml": f"train: {photos}\nnames: [a]\n"})
    assert read_objects(folder / "data").describe() == "1 photo, 1 object of 1 class"
