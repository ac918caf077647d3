"""The documentation's pages, and the commands and code in them."""

import re
from pathlib import Path

from paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of a page's fenced blocks, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(bash: str) -> list[str]:
    """The commands of a bash block, one a line unless a line ends with a backslash, without comments."""
    lines = bash.replace("\\\n", " ").splitlines()
    found = [re.sub(r"(^|\s+)#.*", "", line).strip() for line in lines]
    return [line for line in found if line]
