"""Files, folders, globs, URLs, lists and COCO jsons become items with unique names."""

import json
import os
from pathlib import Path

import pytest

from xcit_mm.prediction.listing import Item, drawing_name, find_items, number_items


@pytest.fixture
def folder(tmp_path) -> Path:
    root = tmp_path / "in"
    for name in (
        "a.jpg",
        "b.PNG",
        "sub/a.jpg",
        "sub/c.heic",
        "clip.mp4",
        ".hidden.jpg",
        ".cache/d.jpg",
        "note.md",
        "Makefile",
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def names(*sources: object, **options: object) -> list[str]:
    return [item.name for item in find_items(list(sources), **options).items]


def test_a_folder_counts_what_is_no_image_and_leaves_out_hidden_files(folder):
    found = find_items([folder])
    assert [item.name for item in found.items] == [
        "a.jpg",
        "b.PNG",
        "clip.mp4",
        "sub/a.jpg",
        "sub/c.heic",
    ]
    assert found.items[0].path == str(folder / "a.jpg")
    assert [item.is_video for item in found.items] == [False, False, True, False, False]
    assert found.notes == ["left out 2 neither image nor video: 1 without a suffix, 1 .md"]


def test_results_below_the_folder_are_not_predicted(folder):
    (folder / "predictions" / "visualizations").mkdir(parents=True)
    (folder / "predictions" / "visualizations" / "a.jpg").touch()
    assert (
        find_items([folder], out=folder / "predictions")
        .notes[0]
        .startswith("left out 1 below the results' folder")
    )
    assert names(folder, out=folder / "predictions") == [
        *names(folder)[:2],
        "clip.mp4",
        "sub/a.jpg",
        "sub/c.heic",
    ]


def test_globs_files_and_folders_together(folder, monkeypatch):
    assert names(folder / "*.jpg") == ["a.jpg"] and names(f"{folder}/**/*.jpg") == [
        "a.jpg",
        "sub/a.jpg",
    ]
    assert names(folder / "a.jpg") == ["a.jpg"] and names(folder / "sub" / "a.jpg") == ["a.jpg"]
    assert names(folder / "a.jpg", folder / "sub" / "a.jpg") == [
        "a.jpg",
        "sub/a.jpg",
    ]  # an unquoted glob
    assert find_items([folder / "a.jpg", folder]).notes[-1] == "left out 1 listed twice"
    monkeypatch.chdir(folder)
    assert find_items(["a.jpg"]).items[0].path == str(folder / "a.jpg")


def test_a_link_to_a_folder_above_ends_the_search(folder):
    (folder / "sub" / "up").symlink_to(folder)
    (folder / "sub" / "broken.jpg").symlink_to("nowhere")
    assert names(folder) == [
        "a.jpg",
        "b.PNG",
        "clip.mp4",
        "sub/a.jpg",
        "sub/broken.jpg",
        "sub/c.heic",
    ]


def test_names_and_drawings_are_unique(folder, tmp_path):
    for name in ("a.png", "a.png.jpg", "x" * 251 + ".jpg"):
        (folder / name).touch()
    found = names(folder)
    drawings = [drawing_name(name) for name in found]
    assert len(set(found)) == len(set(drawings)) == len(found) == 8
    assert (
        "a.png" in found
        and "a.png-2.jpg" in found
        and "a.png.jpg" in drawings
        and "clip.mp4" in drawings
    )
    assert max(len(os.path.basename(name)) for name in drawings) < 100
    assert names(folder, folder / "sub" / "a.jpg")[-1] != names(folder)[0]
    two = tmp_path / "two.txt"
    two.write_text(
        f"{folder}/a.jpg\nhttp://host/photos/a.jpg?size=1\nhttp://host/photos/a.jpg?size=2\n"
    )
    assert len(set(names(two))) == 3


def test_a_text_list_may_have_urls_and_missing_files(folder, tmp_path, monkeypatch):
    path = tmp_path / "list.txt"
    path.write_text(
        "\ufeffin/a.jpg\r\n\r\nin/none.jpg\nhttps://host/über/b.jpg\nin/a.jpg\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    found = find_items([path])
    assert [item.name for item in found.items] == ["a.jpg", "none.jpg", "host/über/b.jpg"]
    assert found.items[1].path == str(folder / "none.jpg") and found.notes == [
        "left out 1 listed twice"
    ]
    monkeypatch.chdir(folder)
    assert find_items([path], root=tmp_path).items == found.items


@pytest.mark.parametrize(
    "place", ["", "images", "train2017", "images/train2017", "../train2017", "../images"]
)
def test_the_images_of_a_coco_json_are_found_beside_it(place, tmp_path):
    json_path, images = (
        tmp_path / "annotations" / "instances_train2017.json",
        tmp_path / "annotations" / place,
    )
    for folder in (json_path.parent, images):
        folder.mkdir(parents=True, exist_ok=True)
    (images / "1.jpg").touch()
    content = dict(
        images=[dict(id=7, file_name="0.jpg"), dict(id=5, file_name="1.jpg")],
        categories=[dict(id=3, name="cat")],
    )
    json_path.write_text(json.dumps(content))
    found = find_items([json_path])
    assert [(item.name, item.id) for item in found.items] == [("0.jpg", 7), ("1.jpg", 5)]
    assert Path(found.items[1].path).is_file() and found.categories == dict(cat=3)


def test_wrong_sources_are_named_with_the_remedy(folder, tmp_path):
    def write(name: str, content: object) -> Path:
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path / name

    twice = dict(images=[dict(id=1, file_name="a.jpg"), dict(id=2, file_name="a.jpg")])
    one, other = (
        dict(images=[dict(id=1, file_name="in/a.jpg")], categories=[dict(id=n, name="a")])
        for n in (1, 2)
    )
    for sources, options, error, message in [
        ([folder / "none.jpg"], {}, FileNotFoundError, "no images or videos at"),
        ([folder / "*.txt"], {}, FileNotFoundError, "give a file, folder, glob, URL or list"),
        ([folder / "*.md"], {}, FileNotFoundError, "left out 1 neither image nor video: 1 .md"),
        ([folder / "a.jpg"], dict(root="x"), ValueError, "only a list has a root"),
        ([write("empty.txt", "\n")], {}, ValueError, "empty.txt is empty"),
        ([write("no.json", [1])], {}, ValueError, "no.json is not a COCO json"),
        ([write("none.json", dict(images=[]))], {}, ValueError, "lists no images"),
        ([write("twice.json", twice)], {}, ValueError, "2 images with the file_name a.jpg"),
        (
            [write("lost.json", dict(images=[dict(id=1, file_name="z.jpg")]))],
            {},
            FileNotFoundError,
            "by --root",
        ),
        (
            [write("one.json", one), write("other.json", other)],
            {},
            ValueError,
            "other categories than the json before",
        ),
    ]:
        with pytest.raises(error, match=message.replace(".", r"\.")) as raised:
            find_items(sources, **options)
        assert "\n" not in str(raised.value)


def test_ids_fill_gaps_and_stay():
    items = [Item(f"/{name}.jpg", f"{name}.jpg") for name in "abcd"]
    known = {"/b.jpg": Item("/b.jpg", "other.jpg", 1), "/z.jpg": Item("/z.jpg", "a.jpg", 3)}
    found = number_items(items, known)
    assert [(item.path, item.id) for item in found] == [
        ("/a.jpg", 2),
        ("/b.jpg", 1),
        ("/c.jpg", 4),
        ("/d.jpg", 5),
    ]
    assert [item.name for item in found] == ["a-2.jpg", "other.jpg", "c.jpg", "d.jpg"]
    for wrong in (Item("/b.jpg", "b.jpg", 9), Item("/new.jpg", "new.jpg", 3)):
        with pytest.raises(ValueError, match="give another --out"):
            number_items([wrong], known)
