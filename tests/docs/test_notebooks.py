"""The notebooks of the documentation run from clean, and train and draw what is worth showing."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, images, score",
    [("train", 3, r"'coco/bbox_mAP_50': ([0-9.]+)"), ("what-xcit-sees", 2, None)],
)
def test_a_notebook_shows_images_and_reaches_its_score(name, images, score, tmp_path, monkeypatch):
    reason = "needs requirements/docs.txt: make test-slow"
    read = pytest.importorskip("myst_nb.core.read", reason=reason)
    from nbclient import NotebookClient

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    assert shutil.which("xcit-mm"), "install the package beside requirements/docs.txt"
    page = ROOT / "docs" / "notebooks" / f"{name}.md"
    notebook = read.read_myst_markdown_notebook(page.read_text())
    resources = dict(metadata=dict(path=str(tmp_path)))
    NotebookClient(notebook, timeout=1800, resources=resources).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    shown = [output.get("data", {}) for output in outputs]
    printed = [output.get("text", "") for output in outputs]
    printed += [part.get("text/plain", "") for part in shown]
    assert sum("image/png" in part for part in shown) == images
    assert "FAIL" not in "".join(printed)
    if score:
        assert float(re.search(score, "\n".join(printed))[1]) > 0.3
