"""Files that tools write are complete or absent: after Ctrl-C, on a full disk, beside files of a
user.
"""

import resource
from pathlib import Path

import pytest
import torch
from helpers.weight_files import official

from xcit_mm.utils.atomic import atomic_path


def interrupt(*args: object, **kwargs: object) -> None:
    raise KeyboardInterrupt


def test_former_file_stays_until_the_new_file_is_complete(tmp_path):
    path = tmp_path / "file.npz"
    with atomic_path(path) as unfinished:
        unfinished.write_text("former")
        assert unfinished.suffix == ".npz" and not path.exists()
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as unfinished:
        unfinished.write_text("new")
        raise KeyboardInterrupt
    assert path.read_text() == "former" and list(tmp_path.iterdir()) == [path]


class TestConvertedWeights:
    @pytest.fixture(autouse=True)
    def source(self, tmp_path, monkeypatch) -> None:
        torch.save(dict(model=official(16)), tmp_path / "file.pth")
        (tmp_path / "out.pth.partial").write_text("a user's own")
        monkeypatch.chdir(tmp_path)

    def folder_is_unchanged(self) -> bool:
        names = {path.name for path in Path().iterdir()}
        is_kept = Path("out.pth.partial").read_text() == "a user's own"
        return is_kept and names == {"file.pth", "out.pth.partial"}

    def test_files_of_a_user_are_left_alone(self, call):
        assert call("weights", "convert", "file.pth", "out.pth", "--to", "timm")[0] == 0
        Path("out.pth").unlink()
        assert self.folder_is_unchanged()

    @pytest.mark.parametrize("out", ["out.pth", "out.safetensors"])
    def test_full_disk_is_one_line(self, out, refusal):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200 * 1024, limits[1]))
        try:
            refusal("weights", "convert", "file.pth", out, "--to", "timm")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert self.folder_is_unchanged()

    def test_ctrl_c_is_one_line(self, call, monkeypatch):
        monkeypatch.setattr(torch, "save", interrupt)
        code, _, error = call("weights", "convert", "file.pth", "out.pth", "--to", "timm")
        assert code == 130
        assert error == "\ninterrupted: nothing is written\n"
        assert self.folder_is_unchanged()
