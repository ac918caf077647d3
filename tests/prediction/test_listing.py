"""Files, folders, globs, URLs, lists and COCO jsons become items with unique names."""

import json
import os
from pathlib import Path

import pytest

from xcit_mm.prediction.listing import drawing_name, find_items

FILES = "a.jpg b.PNG sub/a.jpg sub/c.heic clip.mp4 .hidden.jpg .cache/d.jpg note.md Makefile"


@pytest.fixture
def folder(tmp_path) -> Path:
    root = tmp_path / "in"
    for name in FILES.split():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def names(*sources: object, **options: object) -> list[str]:
    return [item.name for item in find_items(list(sources), **options).items]


def test_a_folder_counts_what_is_no_image_and_leaves_out_hidden_files(folder):
    found = find_items([folder])
    assert (
        " ".join(item.name for item in found.items) == "a.jpg b.PNG clip.mp4 sub/a.jpg sub/c.heic"
    )
    assert found.items[0].path == str(folder / "a.jpg")
    assert [item.is_video for item in found.items] == [False, False, True, False, False]
    assert found.notes == ["left out 4 files: 2 hidden, 1 without a suffix, 1 .md"]


@pytest.mark.parametrize("name", ["a.jfif", "a.jpe", "a.JPG", "a.m4v"])
def test_a_less_common_suffix_is_an_input(name, tmp_path):
    (tmp_path / name).touch()
    assert names(tmp_path) == [name]


def test_results_below_the_folder_are_not_predicted(folder):
    expected = names(folder)
    out = folder / "predictions"
    (out / "visualizations").mkdir(parents=True)
    (out / "visualizations" / "a.jpg").touch()
    (note,) = find_items([folder], out=out).notes
    assert f"1 below the results' folder {out}" in note
    assert names(folder, out=out) == expected


@pytest.mark.parametrize("source", [".", "sub", "sub/a.jpg", "sub/*.jpg"])
def test_a_folder_of_results_that_is_or_holds_an_input_is_refused(source, folder):
    with pytest.raises(ValueError, match="give another --out"):
        find_items([folder / source], out=folder if "*" not in source else folder / "sub")


def test_globs_files_and_folders_together(folder, monkeypatch):
    assert names(folder / "*.jpg") == names(folder / "a.jpg") == ["a.jpg"]
    assert names(folder / "**" / "*.jpg") == ["a.jpg", "sub/a.jpg"]
    assert names(folder / "a.jpg", folder / "sub" / "a.jpg") == ["a.jpg", "sub/a.jpg"]
    assert names(folder / "sub" / "a.jpg") == ["a.jpg"]
    assert find_items([folder / "a.jpg", folder]).notes[-1] == "left out 1 listed twice"
    monkeypatch.chdir(folder)
    assert find_items(["a.jpg"]).items[0].path == str(folder / "a.jpg")


def test_a_real_folder_is_searched_once_whatever_links_lead_to_it(folder):
    (folder / "sub" / "up").symlink_to(folder)
    (folder / "sub" / "self").symlink_to(".")
    (folder / "again").symlink_to("sub")
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "e.jpg").touch()
    (folder / "link").symlink_to(elsewhere)
    expected = ["a.jpg", "b.PNG", "clip.mp4", "link/e.jpg", "sub/a.jpg", "sub/c.heic"]
    assert names(folder) == expected
    assert names(f"{folder}/**/*.jpg") == ["a.jpg", "sub/a.jpg"]


def test_only_regular_files_are_inputs(folder):
    os.mkfifo(folder / "pipe.jpg")
    (folder / "broken.jpg").symlink_to("nowhere")
    (folder / "x.jpg").symlink_to("y.jpg")
    (folder / "y.jpg").symlink_to("x.jpg")
    found = find_items([folder])
    assert [item.name for item in found.items] == names(folder / "**")
    assert len(found.items) == 5 and "4 no regular file" in found.notes[0]
    with pytest.raises(FileNotFoundError, match="1 no regular file"):
        find_items([folder / "pipe.jpg"])


def test_names_and_drawings_are_unique(folder, tmp_path):
    for name in ("a.png", "a.png.jpg", "x" * 251 + ".jpg"):
        (folder / name).touch()
    unique = names(folder)
    drawings = [drawing_name(name) for name in unique]
    assert len(set(unique)) == len(set(drawings)) == len(unique) == 8
    assert {"a.png", "a.png-2.jpg"} <= set(unique) and {"a.png.jpg", "clip.mp4"} <= set(drawings)
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
    path = tmp_path / "annotations" / "instances_train2017.json"
    folder = path.parent / place
    path.parent.mkdir()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "1.jpg").touch()
    images = [dict(id=7, file_name="0.jpg"), dict(id=5, file_name="1.jpg")]
    path.write_text(json.dumps(dict(images=images, categories=[dict(id=3, name="cat")])))
    listing = find_items([path])
    assert [(item.name, item.id) for item in listing.items] == [("0.jpg", 7), ("1.jpg", 5)]
    assert Path(listing.items[1].path).is_file() and listing.categories == dict(cat=3)


def coco(names: list[str], categories: dict[str, int] | None = None) -> dict:
    images = [dict(id=number, file_name=name) for number, name in enumerate(names)]
    return dict(
        images=images,
        categories=[dict(id=id_, name=name) for name, id_ in (categories or {}).items()],
    )


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("in/none.jpg", FileNotFoundError, "no images or videos at"),
        ("in/*.txt", FileNotFoundError, "give a file, folder, glob, URL or list"),
        ("in/*.md", FileNotFoundError, r"left out 1 files: 1 \.md"),
    ],
)
def test_a_source_without_images_says_what_it_has(source, error, message, folder, tmp_path):
    with pytest.raises(error, match=message):
        find_items([tmp_path / source])


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("empty.txt", "\n", ValueError, r"empty\.txt is empty"),
        ("no.json", [1], ValueError, r"no\.json is not in COCO's format"),
        ("none.json", coco([]), ValueError, "lists no images"),
        ("twice.json", coco(["a.jpg", "a.jpg"]), ValueError, r"2 images with the file_name a\.jpg"),
        ("lost.json", coco(["z.jpg"]), FileNotFoundError, "by --root"),
    ],
)
def test_a_wrong_list_is_named_with_the_remedy(name, content, error, message, tmp_path):
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message) as raised:
        find_items([tmp_path / name])
    assert "\n" not in str(raised.value)


def test_two_jsons_with_other_categories_are_refused(folder, tmp_path):
    for number in (1, 2):
        content = json.dumps(coco(["in/a.jpg"], dict(a=number)))
        (tmp_path / f"{number}.json").write_text(content)
    with pytest.raises(ValueError, match="other categories than the json before"):
        find_items([tmp_path / "1.json", tmp_path / "2.json"])


def test_a_root_without_a_list_is_refused(folder):
    with pytest.raises(ValueError, match="only a list has a root"):
        find_items([folder / "a.jpg"], root="x")
