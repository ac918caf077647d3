"""`xcit-mm COMMAND` runs the tools."""

import os
import sys
from collections.abc import Callable

import pytest

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


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--version"], f"xcit_mm {__version__}"),
        (["predict", "--help"], "usage: xcit-mm predict INPUT"),
    ],
)
def test_version_and_help_name_the_program(arguments, line, command):
    assert command(*arguments)[1].startswith(line)


def test_usage_fits_the_terminal(command):
    code, usage, _ = command()
    assert code == 0
    assert usage.count("\n") <= 24
    assert max(map(len, usage.splitlines())) <= 100


def test_unknown_command_is_one_line(command):
    code, _, error = command("infer")
    assert (code, error.count("\n")) == (2, 1)
    assert "choose from predict, raster, train" in error


def test_unknown_model_is_one_line(command, shapes):
    error = command("predict", shapes / "images" / "validation", "--model", "maskrcn")[0]
    assert "neither a config" in error
    assert "\n" not in error
