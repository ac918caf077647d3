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


def test_version_is_printed(command):
    assert command("--version")[1] == f"xcit_mm {__version__}\n"


def test_usage_fits_the_terminal(command):
    code, usage, _ = command()
    assert code == 0
    assert usage.count("\n") <= 24
    assert max(map(len, usage.splitlines())) <= 100


def test_help_of_a_command_has_its_name(command):
    assert "usage: xcit-mm predict" in command("predict", "--help")[1]


def test_unknown_command_is_one_line(command):
    code, _, error = command("infer")
    assert (code, error.count("\n")) == (2, 1)
    assert "choose from predict, raster, train" in error


def test_unknown_model_is_one_line(command, shapes):
    error = command("predict", shapes / "images" / "validation", "--model", "maskrcn")[0]
    assert "neither a config" in error
    assert "\n" not in error


def test_the_command_predicts_a_folder(shapes, models, tmp_path):
    config, checkpoint = models["seg"]
    options = ("--model", config, "--checkpoint", checkpoint, "--out", "results", "--workers", "2")
    script = ROOT / "xcit_mm" / "__main__.py"
    images = str(shapes / "images" / "validation")
    run = run_script(script, "predict", images, *options, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert len(list((tmp_path / "results" / "labels").iterdir())) == 4
