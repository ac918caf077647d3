"""Files that tools write are complete or absent: after Ctrl-C, on a full disk, beside files of a
user.
"""

import resource
from pathlib import Path

import pytest
import torch
from helpers.weight_files import official


def interrupt(*args: object, **kwargs: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def source(tmp_path, monkeypatch) -> str:
    """A file in the current folder."""
    monkeypatch.chdir(tmp_path)
    torch.save(dict(model=official(16)), "file.pth")
    return "file.pth"


@pytest.mark.parametrize("out", ["out.pth", "out.safetensors"])
def test_full_disk_is_one_line(out, refusal, source):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200 * 1024, limits[1]))
    try:
        error = refusal("weights", "convert", source, out, "--to", "timm")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.startswith(f"NotSaved: {out} could not be written: File too large; free disk")
    assert list(Path().iterdir()) == [Path(source)]


def test_ctrl_c_is_one_line(call, source, monkeypatch):
    Path("out.pth.partial").write_text("a user's own")
    monkeypatch.setattr(torch, "save", interrupt)
    code, _, error = call("weights", "convert", source, "out.pth", "--to", "timm")
    assert code == 130
    assert error == "\ninterrupted: nothing is written\n"
    assert {path.name for path in Path().iterdir()} == {source, "out.pth.partial"}
    assert Path("out.pth.partial").read_text() == "a user's own"
