"""`xcit-mm COMMAND` runs the tools."""

import os
import sys
from collections.abc import Callable

import pytest
from helpers.paths import ROOT
from helpers.processes import run_script

from xcit_mm import __version__
from xcit_mm.__main__ import main


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., tuple[object, str, str]]:
    """Runs a command in this process and returns its exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr("sys.path", [*sys.path])
        monkeypatch.setattr("sys.argv", ["xcit-mm", *map(str, arguments)])
        try:
            code = main()
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("arguments", [["--help"], ["weights", "--help"]])
def test_closed_output_ends_the_command_without_a_traceback(arguments, command, monkeypatch):
    closed, output = os.pipe()
    os.close(closed)  # as `| head -1` does
    with os.fdopen(output, "w") as nobody:
        monkeypatch.setattr("sys.stdout", nobody)
        assert command(*arguments)[0] == 141


def test_usage_and_errors_fit_the_terminal(command, shapes):
    assert command("--version")[1] == f"xcit_mm {__version__}\n"
    code, usage, _ = command()
    assert code == 0 and usage.count("\n") <= 24 and max(map(len, usage.splitlines())) <= 120
    code, _, error = command("infer")
    assert (code, error.count("\n")) == (2, 1) and "choose from predict, raster, train" in error
    assert "usage: xcit-mm predict" in command("predict", "--help")[1]
    error = command("predict", shapes / "images" / "validation", "--model", "maskrcn")[0]
    assert "neither a config" in error and "\n" not in error


def test_the_command_predicts_a_folder(shapes, models, tmp_path):
    config, checkpoint = models["seg"]
    options = ("--model", config, "--checkpoint", checkpoint, "--out", "found", "--workers", "2")
    script, images = ROOT / "xcit_mm" / "__main__.py", str(shapes / "images" / "validation")
    found = run_script(script, "predict", images, *options, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert len(list((tmp_path / "found" / "labels").iterdir())) == 4
