"""docs/check_links.py names the links of a site that lead nowhere, and no others."""

import subprocess
import sys
from pathlib import Path

from paths import ROOT

WHOLE = '<a id="top" href="other.html#there">a</a><a href="#top">b</a><a href="https://example.org/none">c</a>'


def check(site: Path) -> tuple[int, list[str]]:
    command = [sys.executable, ROOT / "docs" / "check_links.py", site]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return run.returncode, run.stderr.splitlines()


def test_a_whole_site_passes(tmp_path):
    (tmp_path / "index.html").write_text(WHOLE)
    (tmp_path / "other.html").write_text('<p id="there"><img src="a%20b.png"></p>')
    (tmp_path / "a b.png").touch()
    assert check(tmp_path) == (0, [])


def test_what_leads_nowhere_is_named(tmp_path):
    (tmp_path / "index.html").write_text(WHOLE)
    (tmp_path / "other.html").write_text('<img src="none.png"><a href="none.html">a</a>')
    assert check(tmp_path) == (
        1,
        [
            "index.html: other.html#there has no such anchor",
            "other.html: none.png is not there",
            "other.html: none.html is not there",
        ],
    )


def test_what_leads_out_of_the_site_is_named(tmp_path):
    (tmp_path / "secret.txt").touch()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text('<a href="../secret.txt">a</a><a href="../site/index.html">b</a>')
    assert check(tmp_path / "site") == (1, ["index.html: ../secret.txt leads out of the site"])


def test_a_folder_without_a_site_is_named(tmp_path):
    assert check(tmp_path) == (1, [f"no site in {tmp_path}: make docs"])
