"""Files, folders and COCO jsons become items with unique names."""

import os
from pathlib import Path

import pytest
from helpers.runs import write_json

from xcit_mm.prediction.items import drawing_name
from xcit_mm.prediction.listing import find_items

EXPECTED = ["a.jpg", "b.PNG", "c.jfif", "d.jpe", "sub/a.jpg", "sub/c.webp"]


@pytest.fixture
def folder(tmp_path) -> Path:
    root = tmp_path / "in"
    for name in (*EXPECTED, ".hidden.jpg", ".cache/d.jpg", "clip.mp4", "note.md", "Makefile"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def names(*sources: object, **options: object) -> list[str]:
    return [item.name for item in find_items(list(sources), **options).items]


def test_a_folder_counts_what_is_no_image_and_leaves_out_hidden_files(folder):
    listing = find_items([folder])
    assert [item.name for item in listing.items] == EXPECTED
    assert listing.items[0].path == str(folder / "a.jpg")
    assert listing.notes == ["left out 5 files: 2 hidden, 1 without a suffix, 1 .mp4, 1 .md"]


def test_results_below_the_folder_are_not_predicted(folder):
    out = folder / "predictions"
    (out / "visualizations").mkdir(parents=True)
    (out / "visualizations" / "a.jpg").touch()
    (note,) = find_items([folder], out=out).notes
    assert f"1 below the results' folder {out}" in note
    assert names(folder, out=out) == EXPECTED


@pytest.mark.parametrize("source", [".", "sub", "sub/a.jpg"])
def test_a_folder_of_results_that_is_or_holds_an_input_is_refused(source, folder):
    with pytest.raises(ValueError, match="give another --out"):
        find_items([folder / source], out=folder)


def test_files_and_folders_together(folder, monkeypatch):
    assert names(folder / "a.jpg") == ["a.jpg"]
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
    assert names(folder) == sorted([*EXPECTED, "link/e.jpg"])
    listing = find_items([elsewhere, folder / "link", folder / "link" / "e.jpg"])
    assert [item.name for item in listing.items] == ["e.jpg"]
    assert listing.notes == ["left out 2 listed twice"]


def test_results_of_another_run_are_left_out(folder):
    results = folder / "sub" / "earlier"
    (results / "journal").mkdir(parents=True)
    (results / "run.json").touch()
    for name in ("visualizations/a.jpg", "labels/deep/a.png"):
        (results / name).parent.mkdir(parents=True)
        (results / name).touch()
    assert names(folder) == EXPECTED
    assert "3 in results of another run" in find_items([folder]).notes[0]
    with pytest.raises(FileNotFoundError, match="3 in results of another run"):
        find_items([results])
    assert names(results / "visualizations") == ["a.jpg"]  # which the user asks for


def test_a_folder_that_cannot_be_read_is_a_failure(folder, monkeypatch):
    """As root, every folder can be read."""
    scandir = os.scandir

    def refuse(path: object) -> object:
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    listing = find_items([folder])
    assert [item.name for item in listing.items] == EXPECTED[:-2]
    (failure,) = listing.failures
    assert failure.startswith(f"{folder / 'sub'}: PermissionError: ")
    assert find_items([folder / "sub", folder / "a.jpg"]).failures == [failure]
    with pytest.raises(PermissionError, match=r"nothing can be read: .*Permission denied"):
        find_items([folder / "sub"])


def test_only_regular_files_are_inputs(folder):
    os.mkfifo(folder / "pipe.jpg")
    (folder / "broken.jpg").symlink_to("nowhere")
    (folder / "x.jpg").symlink_to("y.jpg")
    (folder / "y.jpg").symlink_to("x.jpg")
    assert names(folder) == EXPECTED
    assert "4 no regular file" in find_items([folder]).notes[0]
    with pytest.raises(FileNotFoundError, match=r"no file or folder at .*pipe\.jpg"):
        find_items([folder / "pipe.jpg"])


def test_names_and_drawings_are_unique(folder):
    for name in ("a.png", "a.png.jpg", "x" * 251 + ".jpg"):
        (folder / name).touch()
    unique = names(folder)
    drawings = [drawing_name(name) for name in unique]
    assert len(set(unique)) == len(set(drawings)) == len(unique) == 9
    assert {"a.png", "a.png-2.jpg"} <= set(unique) and "a.png.jpg" in drawings
    assert max(len(os.path.basename(name)) for name in drawings) < 100


@pytest.mark.parametrize("is_reversed", [False, True])
def test_results_of_one_item_are_no_folder_of_another_s(is_reversed, tmp_path):
    """Tiles often lie in a folder named after their photo."""
    files = ("p/a.jpg", "t/a.jpg/0.jpg", "t/a.jpg.png/0.jpg")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    sources = [tmp_path / folder for folder in "pt"]
    unique = names(*(sources[::-1] if is_reversed else sources))
    maps = [f"{name}.png" for name in unique]
    for results in (list(map(drawing_name, unique)), maps):
        folders = {str(parent) for name in results for parent in Path(name).parents}
        assert len(set(results)) == len(files) and folders.isdisjoint(results)


@pytest.mark.parametrize(
    "place", ["", "images", "train2017", "images/train2017", "../train2017", "../images"]
)
def test_the_images_of_a_coco_json_are_found_beside_it(place, tmp_path):
    path = tmp_path / "annotations" / "instances_train2017.json"
    folder = path.parent / place
    path.parent.mkdir()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "1.jpg").touch()
    write_json(path, {0: "0.jpg", 1: "1.jpg"}, dict(cat=3))
    listing = find_items([path])
    assert [(item.name, item.id) for item in listing.items] == [("0.jpg", 0), ("1.jpg", 1)]
    assert Path(listing.items[1].path).is_file() and listing.categories == dict(cat=3)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("none.jpg", None, FileNotFoundError, "no file or folder at .*none.jpg: give an image"),
        ("*.png", None, FileNotFoundError, "no file or folder at "),
        ("https://host/a.jpg", None, FileNotFoundError, "no file or folder at "),
        ("other", None, FileNotFoundError, r"no images at .*left out 1 files: 1 \.md"),
        (
            "clip.mp4",
            None,
            ValueError,
            r"clip\.mp4 is not in a format that is read: .*docs/recipes\.md",
        ),
        ("photo.HEIC", b"", ValueError, r"photo\.HEIC is not in a format that is .*docs/recipes"),
        (
            "list.txt",
            b"a.jpg\n",
            ValueError,
            r"list\.txt is not in a format that is .*docs/recipes\.md",
        ),
        ("coco.json", [], ValueError, "lists no images"),
        ("coco.json", ["a.jpg", "a.jpg"], ValueError, r"2 images with the file_name a\.jpg"),
        ("coco.json", ["z.jpg"], FileNotFoundError, "by --root"),
    ],
)
def test_a_source_without_images_is_named_with_the_remedy(name, content, error, message, folder):
    path = name if "://" in name else folder / name
    (folder / "other").mkdir()
    (folder / "other" / "note.md").touch()
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        write_json(path, dict(enumerate(content)), {})
    with pytest.raises(error, match=message) as raised:
        find_items([path])
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_json_may_only_list_images(folder, tmp_path):
    path = write_json(tmp_path / "l.json", {7: "in/a.jpg"}, {})
    listing = find_items([path])
    assert [item.id for item in listing.items] == [7] and listing.categories is None
    other = write_json(tmp_path / "categories.json", {8: "in/b.PNG"}, dict(a=1))
    assert find_items([other, path]).categories == find_items([path, other]).categories == dict(a=1)


def test_two_jsons_with_other_categories_are_refused(folder, tmp_path):
    paths = [write_json(tmp_path / f"{id_}.json", {1: "in/a.jpg"}, dict(a=id_)) for id_ in (1, 2)]
    with pytest.raises(ValueError, match="other categories than the json before"):
        find_items(paths)


def test_an_empty_input_is_not_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match="an input is empty text"):
        find_items([""])
