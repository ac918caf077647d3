"""Pages of the documentation and their commands and code."""

import re
from pathlib import Path

from helpers.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and content of each fenced block of a page."""
    return re.findall(
        r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


def commands(bash: str) -> list[str]:
    """Return the commands of a bash block, without comments."""
    lines = bash.replace("\\\n", " ").splitlines()
    found = [re.sub(r"(^|\s+)#.*", "", line).strip() for line in lines]
    return [line for line in found if line]
