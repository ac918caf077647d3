"""Files, folders and a COCO json become items, or one line before anything is predicted."""

from pathlib import Path

import pytest
from helpers.runs import write_json

from xcit_mm.prediction import Item, Listing, find_items
from xcit_mm.utils.errors import ArgumentError

EXPECTED = ["a.jpg", "b.PNG", "c.jfif", "sub/a.jpg", "sub/c.webp"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The folder `in` of the current one."""
    monkeypatch.chdir(tmp_path)
    results = "sub/predictions"
    others = (".hidden.jpg", ".cache/d.jpg", "clip.mp4", "Makefile", f"{results}/run.json")
    for name in (*EXPECTED, *others, f"{results}/visualizations/a.jpg"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "in"


def test_a_folder_names_what_is_left_out(folder):
    (folder / "link").symlink_to("sub")
    (folder / "sub" / "up").symlink_to(folder)
    listing = find_items(["in"])
    assert [item.name for item in listing.items] == EXPECTED
    assert listing.items[0].path == str(folder / "a.jpg")
    left_out = ["Makefile", "clip.mp4", "link", "sub/predictions", "sub/up"]
    assert sorted(listing.left_out) == [f"in/{name}" for name in left_out]


@pytest.mark.parametrize(
    ("sources", "error", "message"),
    [
        (["in/clip.mp4"], ValueError, r"clip\.mp4 is not in a format .*docs/recipes\.md"),
        (
            ["in/a.jpg", "in/sub"],
            ValueError,
            r"inputs: 2 images have the name a\.jpg: predict them",
        ),
        (["in", "in/sub/c.webp"], ValueError, r"inputs: 2 images have the path .*c\.webp: give it"),
        (
            ["in/sub/predictions"],
            FileNotFoundError,
            r"no images at in/sub/predictions: give images",
        ),
        (["gone.json"], FileNotFoundError, r"no images at gone\.json: .* the root of its paths"),
        (["out.json"], ValueError, r"the file_name in/\.\./\.\./x\.jpg leads out of"),
    ],
)
def test_a_source_that_is_not_images_is_named_with_the_remedy(sources, error, message, folder):
    write_json(Path("gone.json"), {0: "z.jpg"}, {})
    write_json(Path("out.json"), {0: "in/../../x.jpg"}, {})
    with pytest.raises(error, match=message):
        find_items(sources)


@pytest.mark.parametrize("field", ["path", "name", "id"])
def test_images_of_a_listing_that_would_share_a_result_are_refused(field):
    item = Item("/in/a.jpg", "a.jpg", 0)
    other = Item("/in/b.jpg", "b.jpg", 1)._replace(**{field: getattr(item, field)})
    with pytest.raises(ArgumentError, match=f"^inputs: 2 images have the {field} "):
        find_items(Listing([item, other]))


def test_a_coco_json_lists_images_below_its_folder_or_root(folder):
    """Some of them may be missing."""
    path = write_json(Path("a.json"), {0: "in/a.jpg", 7: "in/gone.jpg"}, dict(cat=3))
    listing = find_items([path])
    assert [(item.name, item.id) for item in listing.items] == [("in/a.jpg", 0), ("in/gone.jpg", 7)]
    assert listing.items[0].path == str(folder / "a.jpg")
    assert listing.categories == dict(cat=3)
    write_json(path, {1: "a.jpg"}, {})
    assert find_items([path], root="in").items == [(str(folder / "a.jpg"), "a.jpg", 1)]
