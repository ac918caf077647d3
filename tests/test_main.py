"""`xcit-mm COMMAND` runs the tools."""

import os
import sys
from pathlib import Path

import pytest
from paths import ROOT
from processes import Ended, run_script

from xcit_mm import __version__
from xcit_mm.__main__ import main


def command(*arguments: object, cwd: Path) -> Ended:
    return run_script(ROOT / "xcit_mm" / "__main__.py", *map(str, arguments), cwd=cwd)


@pytest.mark.parametrize("arguments", [["--help"], ["weights", "--help"]])
def test_closed_output_ends_the_command_without_a_traceback(arguments, monkeypatch):
    closed, output = os.pipe()
    os.close(closed)  # as `| head -1` does
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("sys.argv", ["xcit-mm", *arguments])
    with os.fdopen(output, "w") as nobody:
        monkeypatch.setattr("sys.stdout", nobody)
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 141


def test_the_command_runs_the_tools(shapes, models, tmp_path):
    assert command("--version", cwd=tmp_path).stdout == f"xcit_mm {__version__}\n"
    usage = command(cwd=tmp_path)
    assert usage.returncode == 0 and usage.stdout.count("\n") <= 24
    assert max(map(len, usage.stdout.splitlines())) <= 120
    wrong = command("infer", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (
        2,
        1,
    ) and "choose from predict, raster, train" in wrong.stderr
    assert "usage: xcit-mm predict" in command("predict", "--help", cwd=tmp_path).stdout
    images = shapes / "images" / "validation"
    unknown = command("predict", images, "--model", "maskrcn", cwd=tmp_path)
    assert unknown.returncode == 1 and "neither a config" in unknown.stderr and unknown.stderr.count("\n") == 1
    config, checkpoint = models["seg"]
    options = ("--model", config, "--checkpoint", checkpoint)
    found = command("predict", images, *options, "--out", "found", "--workers", 2, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert len(list((tmp_path / "found" / "labels").iterdir())) == 4
