"""Options in the commands of the pages exist."""

import argparse
import importlib
import re
import shlex
from collections.abc import Callable

import pytest
from pages import PAGES, blocks, commands

from xcit_mm.checks import launch
from xcit_mm.deployment import run

TYPED = sorted(
    {line for page in PAGES for language, code in blocks(page) if language == "bash" for line in commands(code)}
)


class Parsed(Exception):
    """A command line was parsed completely."""


def tool_lines() -> list[tuple[str, str]]:
    """Return the names of the scripts in the commands and their arguments, up to a pipe or separator of the shell."""
    pattern = re.compile(r"(?:python|torchrun)\s(?:[^|;&>]*?\s)?(?:(?:tools/(\w+)|(?:\S*/)?(run))\.py)([^|;&>]*)")
    return [(m[1] or m[2], m[3]) for line in TYPED if (m := pattern.search(line))]


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[str]], None]:
    """Parses the arguments of a tool without running it; raises SystemExit if an argument is unknown."""
    depth = 0

    def checked(original: Callable) -> Callable:
        def parse_known_args(self, *args, **kwargs):
            nonlocal depth
            depth += 1
            try:
                namespace, unknown = original(self, *args, **kwargs)
            finally:
                depth -= 1
            if depth == 0:  # not the parser of a subcommand, nor a step of another method
                if unknown:
                    self.error(f"unrecognized arguments: {' '.join(unknown)}")
                raise Parsed
            return namespace, unknown

        return parse_known_args

    def read(name: str, arguments: list[str]) -> None:
        if name in ("train", "test"):
            return launch.run_tool(name, arguments)
        module = run if name == "run" else importlib.import_module(name)
        if not hasattr(module, "argparse"):
            assert not arguments, f"tools/{name}.py takes no arguments"
            raise Parsed
        monkeypatch.setattr("sys.argv", [f"{name}.py", *arguments])
        return module.main()

    for method in ("parse_known_args", "parse_known_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, method, checked(getattr(argparse.ArgumentParser, method)))
    return read


@pytest.mark.parametrize("name", sorted({name for name, _ in tool_lines()}))
def test_the_pages_use_options_that_a_tool_has(name, parse, capsys):
    for tool, arguments in tool_lines():
        if tool == name:
            try:
                with pytest.raises(Parsed):
                    parse(name, [argument for argument in shlex.split(arguments) if argument != "..."])
            except SystemExit:
                pytest.fail(f"{name}.py{arguments}: {capsys.readouterr().err.splitlines()[-1]}")
