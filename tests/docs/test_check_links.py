"""docs/check_links.py names the broken links of a site."""

import subprocess
import sys

import pytest
from paths import ROOT

INDEX = '<a id="top" href="other.html#anchor">a</a><a href="#top">b</a><a href="https://example.org/missing">c</a>'


@pytest.mark.parametrize(
    "other, errors",
    [
        ('<p id="anchor"><img src="a%20b.png"></p>', []),
        (
            '<img src="missing.png"><a href="missing.html">a</a><a href="../secret.txt">b</a>',
            [
                "index.html: other.html#anchor has a missing anchor",
                "other.html: missing.png does not exist",
                "other.html: missing.html does not exist",
                "other.html: ../secret.txt leads out of the site",
            ],
        ),
        (None, ["{site} holds no site: make docs"]),
    ],
    ids=["whole", "broken", "no-site"],
)
def test_broken_links_are_named(other, errors, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "secret.txt").touch()
    if other is not None:
        (site / "index.html").write_text(INDEX)
        (site / "other.html").write_text(other)
        (site / "a b.png").touch()
    command = [sys.executable, ROOT / "docs" / "check_links.py", site]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.stderr.splitlines() == [error.format(site=site) for error in errors]
    assert run.returncode == bool(errors)
