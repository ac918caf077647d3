"""`xcit-mm COMMAND` runs the commands, whose helps and errors a user reads."""

import ast
import os
import re
import sys
from collections.abc import Callable

import pytest
from helpers.paths import ROOT

from xcit_mm import __version__, diagnose
from xcit_mm.__main__ import COMMANDS, main


@pytest.fixture
def command(capsys) -> Callable[..., tuple[object, str, str]]:
    """Runs a command in this process and returns its exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[object, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return run


def test_version_names_the_package(command):
    assert command("--version")[1] == f"xcit_mm {__version__}\n"


def test_a_reader_that_leaves_early_ends_a_command_quietly(monkeypatch, capsys):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        assert main(["weights", "list"]) == 141
    assert capsys.readouterr().err == ""


def test_a_command_without_its_libraries_ends_in_one_line(command, monkeypatch):
    """As beside an installed mmdet, where no extra is installed."""
    monkeypatch.setitem(sys.modules, "xcit_mm.commands.predict", None)
    code, _, _ = command("predict", "model", "photo.jpg")
    assert re.fullmatch(r"xcit-mm predict: .*: install the extra .* docs/install\.md", code)


def test_usage_fits_the_terminal(command):
    code, usage, _ = command()
    assert code == 0
    assert usage.count("\n") <= 24
    assert max(map(len, usage.splitlines())) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_begins_with_two_calls_and_fits_a_screen(name, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, text, _ = command(name, "--help")
    lines = text.splitlines()
    assert code == 0 and len(lines) <= 45 and max(map(len, lines)) <= 102
    assert all(f"xcit-mm {name}" in line for line in lines[:2])


@pytest.mark.parametrize(
    "arguments, hint",
    [
        (["rastr"], "is not a command: choose from predict, raster, "),
        (["predict", "m", "a.jpg", "--batchsize", 2], "arguments: --batchsize"),
        (["predict", "photos", "--model", "m"], "arguments: --model"),
        (["predict", "m", "a.jpg", "--draw-score", 7], "7 is not a score from 0 to 1"),
        (["finetune", "m"], "arguments are required: DATA"),
        (["train", "c", "--cfg-options", "a.b"], "--cfg-options: a.b: write KEY=VALUE"),
        (
            ["train", "c", "--cfg-options", "a=b c"],
            "a=b c: write KEY=VALUE, close each bracket, and",
        ),
    ],
)
def test_a_wrong_argument_is_named_in_the_last_line(arguments, hint, command):
    code, _, error = command(*arguments)
    assert code == 2 and hint in error.splitlines()[-1]


def test_negative_numbers_are_values(command):
    numbers = ("--nodata=-3.4028235e+38", "--bounds", -1000, 1000)
    end, _, _ = command("raster", "none", "a.tif", "--out", "b.tif", *numbers)
    assert "none is neither a config" in str(end)


def test_a_name_that_is_not_utf8_is_printed_with_escapes(tmp_path, monkeypatch):
    with open(tmp_path / "printed", "w", encoding="utf-8") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        assert main(["doctor", os.fsdecode(b"caf\xe9.py")]) == 1
    assert "no config at caf\\udce9.py" in (tmp_path / "printed").read_text("utf-8")


def test_a_config_that_does_not_exist_is_not_to_be_corrected():
    (finding,) = diagnose("nowhere.py")
    assert finding.message() == "FileNotFoundError: no config at nowhere.py: check the path"


OF_OTHER_TOOLS = ("gdal_calc.py", "hf download", " --calc ", " --local-dir ")


def test_no_message_of_the_library_names_an_option():
    """Whoever calls a function has arguments. `cli_main` translates their names."""
    package = ROOT / "xcit_mm"
    parsers = {package / "__main__.py", package / "utils" / "cli.py"}
    parsers |= {package / "deployment" / "run.py", *(package / "commands").iterdir()}
    named = []
    for path in sorted({*package.rglob("*.py")} - parsers):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                is_other = any(tool in node.value for tool in OF_OTHER_TOOLS)
                if re.search(r"(?<![\w-])--[a-z]", node.value) and not is_other:
                    named.append(f"{path.name}:{node.lineno}: {node.value[:60]}")
    assert named == []
