"""What a path, folder or glob stands for, under which names, and frames of videos that say little of themselves."""

import json
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import cv2
import numpy as np
import pytest

from xcit_mm.batch import inputs
from xcit_mm.batch.inputs import Video, find_inputs, read_categories, read_image


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
    with pytest.raises(FileNotFoundError, match=r"left out 1 below --out .*give a file, a folder, a quoted glob"):
        find_inputs(str(tmp_path / "out" / "pictures"), out=tmp_path / "out")


def test_links_are_followed(tmp_path):
    write(tmp_path, "there/a.png")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "there")
    assert [one.name for one in find_inputs(str(tmp_path / "in"))[0]] == ["link/a.png"]


def test_a_list_of_paths_and_urls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    far = "https://host.org/a/../photo.jpg", "http://host.org/photo?id=1", "http://host.org/photo?id=2"
    lines = ["sub/x.png", "  sub/deep/x.png ", "", f"{tmp_path}/sub/x.png", *far, "sub/film.mp4"]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    found, notes = find_inputs("list.txt")
    assert [one.path for one in found] == [
        f"{tmp_path}/sub/x.png", f"{tmp_path}/sub/deep/x.png", *far, f"{tmp_path}/sub/film.mp4"
    ]  # fmt: skip
    assert [one.name for one in found[:3]] == ["x.png", "deep/x.png", "host.org/photo.jpg"]
    assert found[3].key != found[4].key and all(one.key.startswith("host.org/photo-") for one in found[3:5])
    assert [one.is_video for one in found] == [False] * 5 + [True]
    assert notes == ["left out 1 that are listed twice"]
    assert find_inputs("list.txt", root="/data")[0][0].path == "/data/sub/x.png"
    (tmp_path / "list.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"list\.txt is no list of paths"):
        find_inputs("list.txt")


def coco(path: Path, images: object, categories: object = ()) -> Path:
    path.write_text(json.dumps(dict(images=images, categories=categories)))
    return path


def test_a_coco_json(tmp_path):
    names = ["b.png", "val/a.png", "/abs/c.png", "../../d.png", "https://host.org/e.png"]
    images = [dict(id=100 - number, file_name=name) for number, name in enumerate(names)]
    (tmp_path / "ann").mkdir()
    given = coco(tmp_path / "ann" / "truth.json", images)
    found, notes = find_inputs(str(given))
    assert [one.image_id for one in found] == [100, 99, 98, 97, 96]
    assert [one.name for one in found] == names
    assert found[0].path == f"{tmp_path}/ann/b.png" and found[2].path == "/abs/c.png"
    assert [one.key for one in found] == ["b", "val/a", "abs/c", "d", "host.org/e"]  # none leaves the results' folder
    assert not notes
    assert find_inputs(str(given), root=str(tmp_path))[0][1].path == f"{tmp_path}/val/a.png"


def test_categories_are_by_name(tmp_path):
    path = coco(tmp_path / "a.json", [], [dict(id=50, name="a"), dict(id=49, name="b")])
    assert read_categories(path, ("b", "a")) == [49, 50]
    with pytest.raises(ValueError, match=r"a\.json has no category cat of the config's classes, but a, b"):
        read_categories(path, ("a", "cat"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is not a COCO json with images"),
        ("{", "is not a COCO json with images"),
        ('{"images": []}', "lists no images"),
        ('{"images": [{"id": 1}]}', "needs a file_name and an id: KeyError"),
        ('{"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]}', "two images with the id 1"),
        ('{"images": [{"id": 1, "file_name": "a"}, {"id": 2, "file_name": "a"}]}', "two images with the file_name a"),
    ],
)
def test_a_json_that_lists_no_images(content, message, tmp_path):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=message) as raised:
        find_inputs(str(tmp_path / "a.json"))
    assert "\n" not in str(raised.value)


def test_an_image_from_a_server(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.full((4, 6, 3), 7, np.uint8))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        ((one,), _) = find_inputs(f"{url}/a.png")
        assert (read_image(one.path) == 7).all() and one.key == f"127.0.0.1:{server.server_port}/a"
        with pytest.raises(OSError, match="404"):
            read_image(f"{url}/none.png")
        server.shutdown()


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


def test_inputs_of_one_name_have_results_of_their_own(tmp_path):
    (tmp_path / "list.txt").write_text("http://host.org/a.png\nhttps://host.org/a.png\nhttp://host.org/b.png\n")
    first, second, third = (one.key for one in find_inputs(str(tmp_path / "list.txt"))[0])
    assert first != second and all(key.startswith("host.org/a-") for key in (first, second))
    assert third == "host.org/b"
    given = coco(tmp_path / "a.json", [dict(id=1, file_name="a.png"), dict(id=2, file_name="../a.png")])
    first, second = (one.key for one in find_inputs(str(given))[0])
    assert first != second


def test_no_result_has_the_name_of_a_folder(tmp_path):
    write(tmp_path, "a.png", "a.jpg/b.png", "c.png", "d.png/deep/d.png", "d.jpg", "film.webm", "film.mp4/x.png")
    keys = {one.name: one.key for one in find_inputs(str(tmp_path))[0]}
    assert keys == {
        "a.png": "a.png",
        "a.jpg/b.png": "a.jpg/b",
        "c.png": "c",
        "d.png/deep/d.png": "d.png/deep/d",
        "d.jpg": "d.jpg",
        "film.webm": "film.webm",
        "film.mp4/x.png": "film.mp4/x",
    }


def test_long_names_fit_with_the_suffix_of_a_result(tmp_path):
    write(tmp_path, "y" * 251 + ".jpg", "y" * 251 + ".png", "\u540d" * 83 + ".png")
    keys = [one.key for one in find_inputs(str(tmp_path))[0]]
    assert len(set(keys)) == 3
    assert all(len(f"{key}.png".encode()) <= 255 for key in keys)
    assert keys[2] == "\u540d" * 83


def test_lists_with_a_byte_order_mark(tmp_path):
    (tmp_path / "list.txt").write_text("a.png\n", encoding="utf-8-sig")
    assert [one.name for one in find_inputs(str(tmp_path / "list.txt"))[0]] == ["a.png"]
    (tmp_path / "list.json").write_text(json.dumps(dict(images=[dict(id=1, file_name="a.png")])), encoding="utf-8-sig")
    assert [one.name for one in find_inputs(str(tmp_path / "list.json"))[0]] == ["a.png"]


def test_a_video_is_not_read_from_a_server():
    with pytest.raises(ValueError, match="download it first"):
        Video("https://host.org/film.mp4")


@pytest.mark.parametrize("suffix", [".png", ".pgm", ".tif"])
@pytest.mark.parametrize("bands", [1, 3])
def test_twelve_bits_are_not_read_as_black(suffix, bands, tmp_path):
    path = tmp_path / f"image{'.ppm' if bands == 3 and suffix == '.pgm' else suffix}"
    dark = np.full((5, 7, bands), 4000, np.uint16)
    assert cv2.imwrite(str(path), dark)
    with pytest.raises(ValueError, match="fewer bits than its 16, and would be nearly black: scale it, or"):
        read_image(path)
    for bright in (dark << 4, (dark >> 4).astype(np.uint8), (dark // 100).astype(np.uint8)):
        assert cv2.imwrite(str(path), bright)
        expected = 40 if bright.max() < 64 else 250
        assert np.abs(read_image(path).astype(int) - expected).max() <= 1  # OpenCV's rounding
