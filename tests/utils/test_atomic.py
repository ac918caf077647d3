"""What tools write is whole or not there: after Ctrl-C, on a full disk, in the face of a file of another."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from golden import fill
from weight_files import official

from xcit_mm import XCiTClassifier
from xcit_mm.utils.atomic import atomic_path


def interrupt(*args: object, **kwargs: object) -> None:
    raise KeyboardInterrupt


def half_then(error: BaseException):
    """Stands for a function that writes to a path, its first or second argument, and fails in the middle of it."""

    def write(*args: object, **kwargs: object) -> None:
        path = next(Path(one) for one in args if isinstance(one, (str, Path)))
        path.write_bytes(b"half")
        raise error

    return write


@pytest.fixture
def classifier(tmp_path) -> Path:
    model = fill(XCiTClassifier(dict(embed_dim=32, depth=1, num_heads=4, eta=1.0), num_classes=3))
    torch.save(dict(model=model.state_dict()), tmp_path / "classifier.pth")
    return tmp_path / "classifier.pth"


def test_the_name_stands_for_the_former_file_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file.npz"
    with atomic_path(path) as partial:
        partial.write_text("former")
        assert partial.suffix == ".npz" and not path.exists()
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as partial:
        partial.write_text("new")
        raise KeyboardInterrupt
    assert path.read_text() == "former" and list(tmp_path.iterdir()) == [path]


class TestConvertedWeights:
    @pytest.fixture(autouse=True)
    def source(self, tmp_path, monkeypatch) -> None:
        torch.save(dict(model=official(16)), tmp_path / "file.pth")
        (tmp_path / "out.pth.partial").write_text("a user's own")
        monkeypatch.chdir(tmp_path)

    def is_as_before(self) -> bool:
        found = {path.name for path in Path().iterdir()}
        return found == {"file.pth", "out.pth.partial"} and Path("out.pth.partial").read_text() == "a user's own"

    def test_what_a_user_has_there_is_let_alone(self, call):
        assert call("weights", "convert", "file.pth", "out.pth", "--to", "timm")[0] == 0
        Path("out.pth").unlink()
        assert self.is_as_before()

    @pytest.mark.parametrize("out", ["out.pth", "out.safetensors"])
    def test_a_full_disk_is_one_line(self, out, tool):
        limited = ["bash", "-c", 'trap "" XFSZ; ulimit -f 200; exec "$@"', "-"]
        command = tool.command("weights", "convert", "file.pth", out, "--to", "timm")
        run = subprocess.run([*limited, *command], cwd=tool.cwd, capture_output=True, text=True, timeout=120)
        assert run.returncode == 1 and len(run.stderr.splitlines()) == 1, run.stderr
        assert self.is_as_before()

    def test_ctrl_c_is_one_line(self, call, monkeypatch):
        monkeypatch.setattr(torch, "save", half_then(KeyboardInterrupt()))
        code, _, errors = call("weights", "convert", "file.pth", "out.pth", "--to", "timm")
        assert (code, errors) == (130, "\ninterrupted: nothing is written\n")
        assert self.is_as_before()

    def test_ctrl_c_during_a_download_is_one_line(self, call, monkeypatch):
        monkeypatch.setattr(importlib.import_module("weights"), "ensure_downloaded", interrupt)
        assert call("weights", "download", "xcit_nano_12_p16_224")[::2] == (130, "\ninterrupted: nothing is written\n")


class TestFeatures:
    @pytest.fixture(autouse=True)
    def images(self, tmp_path) -> None:
        from PIL import Image

        (tmp_path / "images").mkdir()
        Image.new("RGB", (40, 40), (90, 0, 0)).save(tmp_path / "images" / "0.png")

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no space left")])
    def test_former_features_stay_until_new_ones_are_whole(self, error, call, classifier, tmp_path, monkeypatch):
        out = tmp_path / "f.npz"
        out.write_text("former")
        monkeypatch.setattr(np, "savez", half_then(error))
        arguments = ("extract", tmp_path / "images", classifier, "--out", out, "--size", 32, "--workers", 0)
        try:
            code = call("features", *arguments)[0]
        except SystemExit as end:
            code = end.code
        assert code in (130, "OSError: no space left")
        assert out.read_text() == "former" and not list(tmp_path.glob("*.npz.*")) and not list(tmp_path.glob(".*"))

    def test_a_killed_reader_or_a_full_gpu_is_one_line(self, refusal, classifier, tmp_path, monkeypatch):
        def fail(*args: object) -> None:
            raise RuntimeError("DataLoader worker\nis killed")

        features, visualize = importlib.import_module("features"), importlib.import_module("visualize")
        monkeypatch.setattr(features, "extract", fail)
        monkeypatch.setattr(visualize, "capture_from_weights", fail)
        line = "RuntimeError: DataLoader worker is killed"
        assert refusal("features", "extract", tmp_path / "images", classifier, "--out", tmp_path / "f.npz") == line
        assert refusal("visualize", tmp_path / "0.png", classifier, "--out", tmp_path / "f.png") == line


class TestScenes:
    @pytest.fixture(autouse=True)
    def rasterio(self) -> None:
        pytest.importorskip("rasterio")

    def test_a_former_scene_stays_until_the_new_one_is_whole(self, call, tmp_path, monkeypatch):
        import make_scene

        small = (tmp_path / "scene.tif", "--side", 700, "--mosaics", 1)
        monkeypatch.setattr(make_scene, "ROWS", 1)
        monkeypatch.setattr(make_scene, "SIDE", make_scene.BLOCK)
        assert call("make_scene", *small)[0] == 0
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert before.keys() == {"scene.tif", "scene.geojson"}
        monkeypatch.setattr(make_scene, "draw_mosaic", interrupt)
        code, _, errors = call("make_scene", *small, "--seed", 1)
        assert (code, errors) == (130, f"\ninterrupted: {tmp_path}/scene.tif is not written\n")
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_without_rasterio_it_says_what_to_install(self, refusal, monkeypatch):
        monkeypatch.setitem(sys.modules, "rasterio", None)
        monkeypatch.delitem(sys.modules, "make_scene", raising=False)
        line = refusal("make_scene", "scene.tif")
        assert line == "ModuleNotFoundError: a scene needs rasterio: pip install xcit_mm[raster]"

    @pytest.mark.parametrize(
        "arguments, line",
        [
            (["scene.tif", "--side", 100], "ValueError: --side 100: a mosaic has 640 pixels, take that or more"),
            (["none/scene.tif"], "FileNotFoundError: no folder none: make it first"),
            (["scene.tif", "--seed", -1], "ValueError: --seed -1: must be 0 or more"),
        ],
    )
    def test_what_cannot_be_is_one_line(self, arguments, line, refusal, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert refusal("make_scene", *arguments) == line
        assert os.listdir() == []
