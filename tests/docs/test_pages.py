"""Options in the commands of the pages exist."""

import re
import shlex
from collections import defaultdict

import pytest
from helpers.pages import PAGES, blocks, commands

from xcit_mm.__main__ import COMMANDS

MODULES = {f"xcit-mm {command}": tool for command, (tool, _) in COMMANDS.items()}
MODULES |= {
    f"tools/{name}.py": name
    for name in ("doctor", "get_data", "infer", "make_shapes", "raster", "weights")
}
MODULES |= {"tools/train.py": "train", "tools/test.py": "test", "run.py": "xcit_mm.deployment.run"}


def arguments_by_module() -> dict[str, list[list[str]]]:
    """Return the arguments of each tool's commands, up to a pipe or separator of the shell."""
    found = defaultdict(list)
    lines = {
        line
        for page in PAGES
        for language, code in blocks(page)
        if language == "bash"
        for line in commands(code)
    }
    for line in sorted(lines):
        for name, module in MODULES.items():
            if match := re.search(rf"(?<![\w/]){re.escape(name)}\b([^|;&>]*)", line):
                found[module].append(shlex.split(match[1]))
    return found


@pytest.mark.parametrize("module, lines", arguments_by_module().items())
def test_the_pages_use_options_that_a_tool_has(module, lines, call, capsys):
    for arguments in lines:
        used = [argument for argument in arguments if argument.startswith("--")]
        start = arguments[: arguments.index(used[0])] if used else []
        with pytest.raises(SystemExit):
            call(module, *start, *(["--from", "MODEL"] if "--from" in used else []), "--help")
        text = capsys.readouterr().out
        assert [option for option in used if option not in text] == [], text
