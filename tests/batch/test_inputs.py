"""Listing of inputs, names of their results, and reading of images and videos."""

import importlib
import json
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import cv2
import numpy as np
import pytest
from PIL import Image

from xcit_mm.batch import find_inputs, inputs, reading
from xcit_mm.batch.inputs import read_category_ids
from xcit_mm.batch.reading import Video
from xcit_mm.utils.images import read_image


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def keys_in(source: Path) -> dict[str, str]:
    return {input_.name: input_.key for input_ in find_inputs(str(source)).inputs}


def write_coco(path: Path, images: object, categories: object = (), encoding: str = "utf-8") -> str:
    path.write_text(json.dumps(dict(images=images, categories=categories)), encoding=encoding)
    return str(path)


class TestFoldersAndGlobs:
    @pytest.mark.parametrize(
        "source, names",
        [
            (".", ["a/x.png", "a/y.jpg", "b/x.png"]),
            ("*/x.png", ["a/x.png", "b/x.png"]),
            ("a/x.png", ["x.png"]),
            ("a/*", ["x.png", "y.jpg"]),
            ("**/y*", ["a/y.jpg"]),
            ("[ab]/x.pn?", ["a/x.png", "b/x.png"]),
        ],
    )
    @pytest.mark.parametrize("is_relative", [False, True])
    def test_names_are_relative_to_the_folder(self, source, names, is_relative, tmp_path, monkeypatch):
        touch(tmp_path, "a/x.png", "a/y.jpg", "b/x.png")
        monkeypatch.chdir(tmp_path)
        inputs, notes = find_inputs(source if is_relative else str(tmp_path / source))
        assert [input_.name for input_ in inputs] == names and not notes
        assert [input_.key for input_ in inputs] == [name.split(".")[0] for name in names]
        assert all(Path(input_.path).is_file() and Path(input_.path).is_absolute() for input_ in inputs)

    def test_excluded_files_are_reported(self, tmp_path):
        touch(tmp_path, "a.png", "b.PNG", "sub/note.TXT", "b.txt", "readme.md", "README", "out/visualizations/a.png")
        touch(tmp_path, ".hidden.png", ".thumbnails/a.png", "sub/.thumbnails/a.png")
        out = tmp_path / "out"
        found, notes = find_inputs(str(tmp_path), out)
        assert [input_.name for input_ in found] == ["a.png", "b.PNG"]
        results = f"left out 1 below the results' folder {out}"
        assert notes[0].startswith("left out 4 neither image nor video: 2 .txt, 1 ") and notes[1:] == [results]
        assert ", 1 .md" in notes[0] and ", 1 without a suffix" in notes[0]
        assert find_inputs(f"{tmp_path}/**/*", out) == (found, notes)
        assert keys_in(f"{tmp_path}/.thumbnails/*") == {"a.png": "a"}
        assert keys_in(f"{tmp_path}/.*/*.png") == {".thumbnails/a.png": ".thumbnails/a"}
        with pytest.raises(FileNotFoundError, match=r"left out 1 below .*give a file, a folder, a quoted glob"):
            find_inputs(str(out / "visualizations"), out)

    def test_links_are_followed_except_to_a_folder_above(self, tmp_path):
        touch(tmp_path, "target/a.png", "in/sub/b.png")
        for link, target in (
            ("link", "target"),
            ("twice", "target"),
            ("sub/up", "in"),
            ("me", "in/me"),
            ("c.png", "no"),
        ):
            (tmp_path / "in" / link).symlink_to(tmp_path / target)
        (tmp_path / "target" / "back").symlink_to(tmp_path / "in")
        assert list(keys_in(tmp_path / "in")) == ["c.png", "link/a.png", "sub/b.png", "twice/a.png"]

    def test_without_pillow_heif_photos_in_heic_are_left_out_with_a_remedy(self, tmp_path, monkeypatch):
        touch(tmp_path, "a.png", "b.avif", "c.heic", "d.HEIC")
        monkeypatch.setattr(inputs, "IMAGE_SUFFIXES", (".png", ".avif"))
        monkeypatch.setattr(inputs, "_SUPPORTED", (".png", ".avif"))
        found, (note,) = find_inputs(str(tmp_path))
        assert [input_.name for input_ in found] == ["a.png", "b.avif"]
        assert "left out 2 neither image nor video: 2 .heic (HEIC needs pillow-heif: pip install" in note
        with pytest.raises(ModuleNotFoundError, match=r"c\.heic: HEIC needs pillow-heif: pip install"):
            find_inputs(str(tmp_path / "c.heic"))


class TestKeys:
    @pytest.mark.parametrize(
        "expected",
        [
            {  # the name a.jpg is shared by the results of a.jpg.png and a.png
                "a.jpg": "a.jpg",
                "a.png": "a.png",
                "a.jpg.png": "a.jpg.png",
                "b.mp4": "b.mp4",
                "b.webm": "b.webm",
                "c.tar.png": "c.tar",
                "sub/a.png": "sub/a",
            },
            {  # a result must not have the name of a folder
                "a.png": "a.png",
                "a.jpg/b.png": "a.jpg/b",
                "c.png": "c",
                "d.png/deep/d.png": "d.png/deep/d",
                "d.jpg": "d.jpg",
                "video.webm": "video.webm",
                "video.mp4/x.png": "video.mp4/x",
            },
        ],
    )
    def test_inputs_never_share_a_result_file(self, expected, tmp_path):
        touch(tmp_path, *expected)
        assert keys_in(tmp_path) == expected

    def test_equal_names_get_different_keys(self, tmp_path):
        (tmp_path / "list.txt").write_text("http://host.org/a.png\nhttps://host.org/a.png\nhttp://host.org/b.png\n")
        first, second, third = (input_.key for input_ in find_inputs(str(tmp_path / "list.txt")).inputs)
        assert first != second and all(key.startswith("host.org/a-") for key in (first, second))
        assert third == "host.org/b"
        source = write_coco(tmp_path / "a.json", [dict(id=1, file_name="a.png"), dict(id=2, file_name="../a.png")])
        first, second = keys_in(source).values()
        assert first != second

    def test_long_names_leave_room_for_a_suffix(self, tmp_path):
        touch(tmp_path, "y" * 251 + ".jpg", "y" * 251 + ".png", "\u540d" * 83 + ".png")
        keys = list(keys_in(tmp_path).values())
        assert len(set(keys)) == 3 and keys[2] == "\u540d" * 83
        assert all(len(f"{key}.png".encode()) <= 255 for key in keys)


class TestLists:
    def test_a_list_of_paths_and_urls(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        urls = "https://host.org/a/../photo.jpg", "http://host.org/photo?id=1", "http://host.org/photo?id=2"
        lines = ["sub/x.png", "  sub/deep/x.png ", "", f"{tmp_path}/sub/x.png", *urls, "sub/video.mp4"]
        (tmp_path / "list.txt").write_text("\n".join(lines))
        inputs, notes = find_inputs("list.txt")
        paths = [f"{tmp_path}/sub/x.png", f"{tmp_path}/sub/deep/x.png", *urls, f"{tmp_path}/sub/video.mp4"]
        assert [input_.path for input_ in inputs] == paths
        assert [input_.name for input_ in inputs[:3]] == ["x.png", "deep/x.png", "host.org/photo.jpg"]
        keys = [input_.key for input_ in inputs[3:5]]
        assert keys[0] != keys[1] and all(key.startswith("host.org/photo-") for key in keys)
        assert [input_.is_video for input_ in inputs] == [False] * 5 + [True]
        assert notes == ["left out 1 listed twice"]
        assert find_inputs("list.txt", root="/data").inputs[0].path == "/data/sub/x.png"
        (tmp_path / "list.txt").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ValueError, match=r"list\.txt is not a list of paths"):
            find_inputs("list.txt")

    def test_a_coco_json(self, tmp_path):
        names = ["b.png", "val/a.png", "/abs/c.png", "../../d.png", "https://host.org/e.png"]
        (tmp_path / "ann").mkdir()
        images = [dict(id=100 - number, file_name=name) for number, name in enumerate(names)]
        source = write_coco(tmp_path / "ann" / "truth.json", images)
        inputs, notes = find_inputs(source)
        assert [input_.image_id for input_ in inputs] == [100, 99, 98, 97, 96] and not notes
        assert [input_.name for input_ in inputs] == names
        assert inputs[0].path == f"{tmp_path}/ann/b.png" and inputs[2].path == "/abs/c.png"
        # Results stay in their folder.
        assert [input_.key for input_ in inputs] == ["b", "val/a", "abs/c", "d", "host.org/e"]
        assert find_inputs(source, root=str(tmp_path)).inputs[1].path == f"{tmp_path}/val/a.png"

    def test_a_byte_order_mark_is_skipped(self, tmp_path):
        (tmp_path / "list.txt").write_text("a.png\n", encoding="utf-8-sig")
        write_coco(tmp_path / "list.json", [dict(id=1, file_name="a.png")], encoding="utf-8-sig")
        assert all(list(keys_in(tmp_path / name)) == ["a.png"] for name in ("list.txt", "list.json"))

    def test_categories_are_matched_by_name(self, tmp_path):
        path = Path(write_coco(tmp_path / "a.json", [], [dict(id=50, name="a"), dict(id=49, name="b")]))
        assert read_category_ids(path, ("b", "a")) == [49, 50]
        with pytest.raises(ValueError, match=r"a\.json has no category cat, a class of the config: it has a, b"):
            read_category_ids(path, ("a", "cat"))

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("[]", "is not a COCO json with images"),
            ("{", "is not a COCO json with images"),
            ('{"images": []}', "lists no images"),
            ('{"images": [{"id": 1}]}', "needs a file_name and an id: KeyError"),
            ('{"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]}', "2 images with the id 1"),
            ('{"images": [{"id": 1, "file_name": "a"}, {"id": 2, "file_name": "a"}]}', "2 images with the file_name a"),
        ],
    )
    def test_an_invalid_coco_json_raises(self, content, message, tmp_path):
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(ValueError, match=message) as raised:
            find_inputs(str(tmp_path / "a.json"))
        assert "\n" not in str(raised.value)


class TestReading:
    def test_an_image_from_a_server(self, tmp_path):
        cv2.imwrite(str(tmp_path / "a.png"), np.full((4, 6, 3), 7, np.uint8))
        handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            host = f"127.0.0.1:{server.server_port}"
            (input_,) = find_inputs(f"http://{host}/a.png").inputs
            assert (read_image(input_.path) == 7).all() and input_.key == f"{host}/a"
            with pytest.raises(OSError, match="404"):
                read_image(f"http://{host}/missing.png")
            server.shutdown()

    def test_a_url_may_have_spaces_and_any_letters(self, tmp_path):
        (tmp_path / "d \u00e9").mkdir()
        cv2.imwrite(str(tmp_path / "d \u00e9" / "a b \u540d.png"), np.full((4, 6, 3), 7, np.uint8))
        handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            for name in ("d \u00e9/a b \u540d.png", "d%20%C3%A9/a%20b \u540d.png?x=1 2&y=\u540d"):
                assert (read_image(f"http://127.0.0.1:{server.server_port}/{name}") == 7).all()
            server.shutdown()

    def test_photos_in_heic_and_avif(self, tmp_path):
        photo = np.full((40, 60, 3), (200, 30, 90), np.uint8)
        exif = Image.Exif()
        exif[0x112] = 6  # the camera was turned
        Image.fromarray(photo).save(tmp_path / "a.avif", exif=exif)
        shapes = dict(avif=(60, 40, 3))
        if importlib.util.find_spec("pillow_heif"):
            importlib.import_module("pillow_heif").register_heif_opener()
            Image.fromarray(photo).save(tmp_path / "a.heic")  # whose own rotation libheif applies
            shapes["heic"] = photo.shape
        for suffix, shape in shapes.items():
            image = read_image(tmp_path / f"a.{suffix}")
            assert image.shape == shape and np.abs(image - [90.0, 30, 200]).max() < 9
        (tmp_path / "b.heic").write_bytes(b"\0\0\0\x18ftypheic")
        with pytest.raises(ValueError, match="Pillow does not read the image; HEIC needs pillow-heif"):
            read_image(tmp_path / "b.heic")

    @pytest.mark.parametrize("suffix", ["mkv", "webm"])
    def test_a_video_without_a_duration_is_read_to_its_end(self, suffix, tmp_path, monkeypatch):
        path = tmp_path / f"video.{suffix}"
        code = cv2.VideoWriter.fourcc(*("VP80" if suffix == "webm" else "mp4v"))
        writer = cv2.VideoWriter(str(path), code, 5, (96, 64))
        for number in range(12):
            writer.write(np.full((64, 96, 3), 20 * number, np.uint8))
        writer.release()
        # Recorders and streams leave the element of the duration void.
        content = path.read_bytes()
        assert content.count(b"\x44\x89\x88") == 1
        path.write_bytes(content.replace(b"\x44\x89\x88", b"\xec\x89\x00"))
        assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_COUNT) < 0
        opened, capture = [], cv2.VideoCapture
        monkeypatch.setattr(reading.cv2, "VideoCapture", lambda path: opened.append(path) or capture(path))
        video = Video(path)
        assert np.allclose([frame.mean() for frame in video], 20 * np.arange(12), atol=4)
        assert video.rate == 5 and len(opened) == 1

    def test_a_video_from_a_server_raises(self):
        with pytest.raises(ValueError, match="download the file first"):
            Video("https://host.org/video.mp4")

    @pytest.mark.parametrize("suffix", [".png", ".pgm", ".tif"])
    @pytest.mark.parametrize("bands", [1, 3])
    def test_twelve_bits_are_not_read_as_black(self, suffix, bands, tmp_path):
        path = tmp_path / f"image{'.ppm' if bands == 3 and suffix == '.pgm' else suffix}"
        dark = np.full((5, 7, bands), 4000, np.uint16)
        assert cv2.imwrite(str(path), dark)
        with pytest.raises(ValueError, match="few of its 16 bits and would be nearly black: scale it, or"):
            read_image(path)
        for bright in (dark << 4, (dark >> 4).astype(np.uint8), (dark // 100).astype(np.uint8)):
            assert cv2.imwrite(str(path), bright)
            expected = 40 if bright.max() < 64 else 250
            assert np.abs(read_image(path).astype(int) - expected).max() <= 1  # OpenCV's rounding
