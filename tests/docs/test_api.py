"""The page of the API has every public name, and names nothing that does not exist."""

import re
from importlib import import_module

from helpers.paths import ROOT

import xcit_mm

PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")


def test_the_page_lists_every_public_name():
    listed = set(re.findall(r"`(\w+)`", PAGE[: PAGE.index("Importing `xcit_mm`")]))
    assert set(xcit_mm.__all__) - listed == set()


def test_everything_that_the_page_documents_exists():
    named = re.findall(r"\.\. auto(?:function|class|method|module):: ([\w.]+)", PAGE)
    for module, members in re.findall(r"\.\. automodule:: ([\w.]+)\n   :members: (\w.*)", PAGE):
        named += [f"{module}.{member}" for member in members.split(", ")]
    assert len(named) > 60
    assert [name for name in named if not is_there(name)] == []


def is_there(name: str) -> bool:
    """Return whether a dotted name is a module, or something in a module or a class."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            value = getattr(value, part, None)
        return value is not None
    return False
