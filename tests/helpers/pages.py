"""Pages of the documentation and their commands and code."""

import re
from pathlib import Path

from helpers.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and code of each fenced block of a page."""
    fenced = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return fenced.findall(page.read_text(encoding="utf-8"))


def commands(bash: str) -> list[str]:
    """Return the commands of a bash block, without comments."""
    lines = bash.replace("\\\n", " ").splitlines()
    lines = [re.sub(r"(^|\s+)#.*", "", line).strip() for line in lines]
    return [line for line in lines if line]
