"""What else lies in the folder of a data set, and where its files may lie."""

import os
from pathlib import Path

import pytest
from helpers.layouts import YOLO, coco, write_files

from xcit_mm.datasets import read_objects
from xcit_mm.datasets.writing import is_current, read_state, write_dataset


def test_a_file_that_is_given_decides_between_formats(folder):
    write_files(folder, "{0,1}.jpg 0.txt", {"a.json": coco("1.jpg"), "data.yaml": "names: [b]"})
    assert read_objects(folder / "a.json").classes == ("thing",)
    assert read_objects(folder / "data.yaml").classes == ("b",)


def test_of_two_formats_that_stays_whose_files_are_not_moved(folder):
    write_files(folder / "d", "{0,1}.jpg 0.txt 1.txt", {"a.json": coco("1.jpg")})
    (folder / "d/data.yaml").write_text("names: [b]\ntrain: none")
    with pytest.raises(ValueError, match="none must be"):
        read_objects(folder / "d")
    (folder / "d/data.yaml").write_text("names: [b]\n")
    with pytest.raises(ValueError, match=r"COCO .* YOLO"):
        read_objects(folder / "d")
    (folder / "d/a.json").rename(folder / "a.json")
    assert read_objects(folder / "d").describe().startswith("2 photos, 2 objects of 1 class")


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


@pytest.mark.parametrize("name", ["source", "run"])
def test_a_json_named_as_a_file_of_results_is_data(name, folder):
    write_files(
        folder, f"work_dirs/d/{name}.jpg", {f"work_dirs/d/{name}.json": coco(f"{name}.jpg")}
    )
    assert len(read_objects(folder / "work_dirs").training.images) == 1


def test_a_pipe_is_not_read(folder):
    write_files(folder, "0.jpg 0.txt", {"data.yaml": "names: [a]"})
    os.mkfifo(folder / "a.json")
    assert read_objects(folder).describe() == "1 photo, 1 object of 1 class"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_texts_of_windows_are_read(encoding, folder):
    texts = {"data.yaml": "names: [é]", "0.txt": YOLO}
    write_files(folder, "0.jpg", {name: text.encode(encoding) for name, text in texts.items()})
    assert read_objects(folder).classes == ("é",)


def test_a_yaml_that_is_given_describes_its_folder_whatever_its_name(folder):
    write_files(folder / "banner", "0.jpg 0.txt", {"data.yaml": "train: .\nnames: [a]\n"})
    write_files(folder, "other.jpg")
    description = read_objects(folder / "banner/data.yaml").describe()
    assert description == "1 photo, 1 object of 1 class"


@pytest.mark.parametrize("place", ["test set", "elsewhere/images/train"])
def test_photos_of_an_absolute_path_or_in_a_folder_named_as_a_split_are_found(place, folder):
    photos = folder / place
    labels = Path(str(photos).replace("images", "labels"))
    write_files(photos, "0.jpg")
    write_files(labels, "0.txt")
    write_files(folder / "test set", "", {"data.yaml": f"train: {photos}\nnames: [a]\n"})
    assert read_objects(folder / "test set").describe() == "1 photo, 1 object of 1 class"
