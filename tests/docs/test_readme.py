"""What the README and the pages say of the repository is there, wherever they are read."""

import re

import pytest
from paths import ROOT

SOURCE = "https://github.com/xcit-mm/xcit_mm/"
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if SOURCE in page.read_text()]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub and the site give to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_link_of_the_readme_works_on_pypi_too():
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(links) > 30
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_the_repository_lead_to_what_is_there(page):
    for path, anchor in re.findall(rf"{SOURCE}(?:blob|raw)/main/([^)#]+)#?([^)]*)\)", page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} leads to {path}"
        if anchor:
            assert anchor in anchors((ROOT / path).read_text()), f"{page.name} leads to {path}#{anchor}"
