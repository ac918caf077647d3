"""What a path, folder or glob stands for, under which names, and frames of videos that say little of themselves."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from xcit_mm.prediction import inputs
from xcit_mm.prediction.inputs import Video, find_inputs


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"an image, as far as its name tells")


@pytest.mark.parametrize(
    "given, names",
    [
        (".", ["a/x.png", "a/y.jpg", "b/x.png"]),
        ("*/x.png", ["a/x.png", "b/x.png"]),
        ("a/x.png", ["x.png"]),
        ("a/*", ["x.png", "y.jpg"]),
        ("**/y*", ["a/y.jpg"]),
        ("[ab]/x.pn?", ["a/x.png", "b/x.png"]),
    ],
)
def test_names_are_below_what_all_inputs_share(given, names, tmp_path):
    write(tmp_path, "a/x.png", "a/y.jpg", "b/x.png")
    found, notes = find_inputs(str(tmp_path / given))
    assert [one.name for one in found] == names
    assert [one.key for one in found] == [name.split(".")[0] for name in names]
    assert not notes


def test_relative_globs(tmp_path, monkeypatch):
    write(tmp_path, "a/x.png", "b/x.png")
    monkeypatch.chdir(tmp_path / "a")
    assert [one.name for one in find_inputs("*.png")[0]] == ["x.png"]
    assert [one.name for one in find_inputs("../*/x.png")[0]] == ["a/x.png", "b/x.png"]


def test_two_inputs_never_share_an_output(tmp_path):
    write(tmp_path, "a.jpg", "a.png", "a.jpg.png", "b.mp4", "b.webm", "c.tar.png", "sub/a.png")
    keys = {one.name: one.key for one in find_inputs(str(tmp_path))[0]}
    assert keys == {
        "a.jpg": "a.jpg",
        "a.png": "a.png",
        "a.jpg.png": "a.jpg.png",  # its own would be a.jpg
        "b.mp4": "b.mp4",
        "b.webm": "b.webm",
        "c.tar.png": "c.tar",
        "sub/a.png": "sub/a",
    }


def test_what_is_left_out_is_said(tmp_path):
    write(tmp_path, "a.png", "b.PNG", ".hidden.png", "note.txt", "readme.md", "out/pictures/a.png")
    found, notes = find_inputs(f"{tmp_path}/**/[!.]*", out=tmp_path / "out")
    assert [one.name for one in found] == ["a.png", "b.PNG"]
    assert notes == [
        f"left out 2 neither image nor video: {tmp_path}/note.txt, ...",
        f"left out 1 below --out {tmp_path}/out: {tmp_path}/out/pictures/a.png",
    ]
    found, notes = find_inputs(str(tmp_path), out=tmp_path / "out")
    assert [one.name for one in found] == ["a.png", "b.PNG"]
    assert len(notes) == 1
    with pytest.raises(FileNotFoundError, match=r"left out 1 below --out .*give a file, a folder or a quoted glob"):
        find_inputs(str(tmp_path / "out" / "pictures"), out=tmp_path / "out")


def test_links_are_followed(tmp_path):
    write(tmp_path, "there/a.png")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "there")
    assert [one.name for one in find_inputs(str(tmp_path / "in"))[0]] == ["link/a.png"]


@pytest.fixture(params=["mkv", "webm"])
def film(request, tmp_path) -> Path:
    """Twelve frames, each brighter than the one before, in a file that does not tell how long it is."""
    path = tmp_path / f"film.{request.param}"
    code = cv2.VideoWriter_fourcc(*("VP80" if request.param == "webm" else "mp4v"))
    writer = cv2.VideoWriter(str(path), code, 5, (96, 64))
    for number in range(12):
        writer.write(np.full((64, 96, 3), 20 * number, np.uint8))
    writer.release()
    # As recorders and streams leave it: the element of the duration is void.
    content = path.read_bytes()
    assert content.count(b"\x44\x89\x88") == 1
    path.write_bytes(content.replace(b"\x44\x89\x88", b"\xec\x89\x00"))
    assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_COUNT) < 0
    return path


def test_frames_of_a_video_without_a_duration(film, monkeypatch):
    opened = []
    capture = cv2.VideoCapture
    monkeypatch.setattr(inputs.cv2, "VideoCapture", lambda path: opened.append(path) or capture(path))
    video = Video(film)
    means = [frame.mean() for frame in video]
    assert video.rate == 5
    assert np.allclose(means, 20 * np.arange(12), atol=4)
    assert len(opened) == 1
