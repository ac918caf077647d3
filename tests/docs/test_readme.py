"""Links of the README and the pages lead somewhere, on GitHub, on PyPI and in the site."""

import re
import runpy
from pathlib import Path

import pytest
import setuptools
import yaml
from pages import PAGES
from paths import ROOT

README = ROOT / "README.md"
REPOSITORY = "https://example.org/someone/xcit_mm"


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub and the site generate for the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def relative_links(page: Path) -> list[str]:
    return re.findall(r"\]\((?!https?://)([^)]+)\)", page.read_text(encoding="utf-8"))


@pytest.fixture
def package(monkeypatch) -> dict:
    """The names in setup.py, and as `metadata` the arguments of setuptools.setup."""
    metadata: dict = {}
    monkeypatch.setattr(setuptools, "setup", metadata.update)
    return {**runpy.run_path(str(ROOT / "setup.py")), "metadata": metadata}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_of_a_page_are_not_broken(page):
    for link in relative_links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page.name} links to {link}"


def test_the_readme_on_pypi_links_to_the_repository(package):
    links = relative_links(README)
    assert len(links) > 20
    text = package["with_absolute_links"](README.read_text(encoding="utf-8"), REPOSITORY)
    found = re.findall(rf"\]\({REPOSITORY}/(blob|raw)/main/([^)]+)\)", text)
    assert [path for _, path in found] == links
    assert {path for kind, path in found if kind == "raw"} == {"docs/hero.jpg", "docs/speed.png"}
    assert set(package["project_urls"](REPOSITORY)) == {"Paper", "Documentation", "Changelog"}


def test_without_a_repository_nothing_links_to_one(package):
    text = package["with_absolute_links"](README.read_text(encoding="utf-8"), "")
    assert re.findall(r"\]\((?!https://)", text) == []
    assert "(https://arxiv.org/abs/2106.09681)" in text and "Apache 2.0" in text
    assert set(package["project_urls"]("")) == {"Paper"}


def test_metadata_and_citation_name_one_repository(package):
    repository, metadata = package["REPOSITORY"], package["metadata"]
    assert (metadata["url"] or "") == repository
    assert metadata["long_description"] == package["with_absolute_links"](
        README.read_text(encoding="utf-8"), repository
    )
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text()).get("repository-code", "") == repository
