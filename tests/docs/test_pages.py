"""Options in the commands of the pages exist."""

import re
import shlex
from collections import defaultdict

import pytest
from helpers.pages import PAGES, blocks, commands

from xcit_mm.__main__ import COMMANDS
from xcit_mm.deployment import run

# The options of `xcit-mm tool` are those of scripts of other libraries.
OWN = [command for command in COMMANDS if command != "tool"]
MODULES = {f"{start} {command}": command for start in ("xcit-mm", "-m xcit_mm") for command in OWN}
SCRIPTS = ("train", "test", "get_data", "make_shapes")
MODULES |= {f"tools/{name}.py": name for name in SCRIPTS} | {"run.py": "run"}


def options_by_command() -> dict[tuple[str, ...], set[str]]:
    """Return the options that pages use of each tool, with the arguments that select its help."""
    options = defaultdict(set)
    codes = [code for page in PAGES for language, code in blocks(page) if language == "bash"]
    for line in sorted({line for code in codes for line in commands(code)}):
        for name, module in MODULES.items():
            # Up to a pipe or separator of the shell.
            command = re.search(rf"(?<![\w/]){re.escape(name)}\b([^|;&>]*)", line)
            if command:
                arguments = shlex.split(command[1])
                used = [argument for argument in arguments if argument.startswith("--")]
                selected = [module]
                if module == "weights":  # whose commands have options of their own
                    selected += arguments[:1]
                options[tuple(selected)].update(used)
    return options


@pytest.mark.parametrize("command, used", options_by_command().items())
def test_the_pages_use_options_that_a_tool_has(command, used, call, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["run.py", "--help"])
    with pytest.raises(SystemExit):
        run.main() if command == ("run",) else call(*command, "--help")
    printed = capsys.readouterr().out
    assert [option for option in sorted(used) if option not in printed] == [], printed
