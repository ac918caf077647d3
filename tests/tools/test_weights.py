"""`tools/weights.py` looks into files, writes them in other layouts, and says in one line what is wrong."""

import os
import subprocess

import torch
from safetensors.torch import load_file
from weight_files import KEYS, official

from xcit_mm.weights.layouts import recognise
from xcit_mm.weights.reader import load_from_file


def test_inspect_and_convert(tool, tmp_path):
    torch.save(dict(model=official(16), epoch=3), tmp_path / "file.pth")
    text = tool("weights", "inspect", "file.pth").stdout
    for expected in ("official, under 'model'", "classifier", "32x12x4/p16", "0.197 M", "float32", "epoch       3"):
        assert expected in text
    for layout, out in [("timm", "t.safetensors"), ("mmpretrain", "m.pth"), ("safetensors", "s.safetensors")]:
        run = tool("weights", "convert", "file.pth", out, "--to", layout)
        assert run.returncode == 0, run.stderr
    assert load_file(tmp_path / "t.safetensors").keys() == KEYS["timm_p16"].keys()
    assert load_file(tmp_path / "s.safetensors").keys() == KEYS["official_p16"].keys()
    back = recognise(load_from_file(str(tmp_path / "m.pth"))).trunk
    assert all(torch.equal(back[key], value) for key, value in official(16).items())
    assert "m.pth exists" in tool("weights", "convert", "file.pth", "m.pth", "--to", "timm").stderr


def test_errors_are_one_line(tool, tmp_path):
    (tmp_path / "page.pth").write_text("<html>")
    for arguments in (["inspect", "page.pth"], ["inspect", "none.pth"], ["fetch", "xcit_huge"]):
        run: subprocess.CompletedProcess = tool("weights", *arguments)
        assert run.returncode == 1
        assert len(run.stderr.strip().splitlines()) == 1


def test_a_reader_that_leaves_early_is_no_error(tool):
    there, here = os.pipe()
    os.close(there)  # as `| head -1` does, sooner or later
    process = subprocess.Popen(
        tool.command("weights", "list"), cwd=tool.cwd, stdout=here, stderr=subprocess.PIPE, text=True
    )
    os.close(here)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (141, "")
