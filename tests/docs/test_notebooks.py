"""The notebooks of the documentation run from clean, and train and draw what is worth showing."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.paths import ROOT

pytestmark = pytest.mark.slow


class Shown(NamedTuple):
    """What the cells of a notebook show."""

    images: int
    text: str


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Shown]:
    """Executes a notebook in an empty folder."""
    reason = "needs requirements/docs.txt: make test-slow"
    read = pytest.importorskip("myst_nb.core.read", reason=reason)
    from nbclient import NotebookClient

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    assert shutil.which("xcit-mm"), "install the package beside requirements/docs.txt"

    def run(name: str) -> Shown:
        page = ROOT / "docs" / "notebooks" / f"{name}.md"
        notebook = read.read_myst_markdown_notebook(page.read_text())
        resources = dict(metadata=dict(path=str(tmp_path)))
        NotebookClient(notebook, timeout=1800, resources=resources).execute()
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        outputs = [output for cell in cells for output in cell.outputs]
        data = [output.get("data", {}) for output in outputs]
        printed = [output.get("text", "") for output in outputs]
        printed += [part.get("text/plain", "") for part in data]
        return Shown(sum("image/png" in part for part in data), "\n".join(printed))

    return run


def test_train_on_ten_photos(execute):
    shown = execute("train")
    assert shown.images == 3 and "FAIL" not in shown.text
    assert float(re.search(r"'coco/bbox_mAP_50': ([0-9.]+)", shown.text)[1]) > 0.3


def test_what_xcit_sees(execute):
    assert execute("what-xcit-sees").images == 3


def test_descriptors_and_neighbours(execute):
    pytest.importorskip("sklearn")
    shown = execute("descriptors")
    assert shown.images == 1
    percentage = float(re.search(r"([0-9.]+)% of the images", shown.text)[1])
    assert percentage > 25  # chance, with random weights
