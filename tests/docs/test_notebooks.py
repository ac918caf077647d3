"""The notebooks of the documentation run from clean, and train and draw what is worth showing."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT

NOTEBOOKS = ROOT / "docs" / "notebooks"
pytestmark = pytest.mark.slow


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Any]]:
    """Executes a notebook in an empty folder and returns the outputs of its cells."""
    reason = "needs requirements/docs.txt: make test-slow"
    read = pytest.importorskip("myst_nb.core.read", reason=reason)
    from nbclient import NotebookClient

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    fix = "install the package beside requirements/docs.txt"
    assert shutil.which("xcit-mm"), f"the notebooks call xcit-mm: {fix}"

    def run(name: str) -> list[Any]:
        notebook = read.read_myst_markdown_notebook((NOTEBOOKS / f"{name}.md").read_text())
        resources = dict(metadata=dict(path=str(tmp_path)))
        NotebookClient(notebook, timeout=1800, resources=resources).execute()
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        return [output for cell in cells for output in cell.outputs]

    return run


def images(outputs: list[Any]) -> int:
    """Return the number of images that cells show."""
    return sum("image/png" in output.get("data", {}) for output in outputs)


def text_of(output: Any) -> str:
    return output.get("text") or output.get("data", {}).get("text/plain", "")


def texts(outputs: list[Any]) -> str:
    return "\n".join(text_of(output) for output in outputs)


def test_train_on_ten_photos(execute):
    outputs = execute("train")
    assert images(outputs) == 3 and "FAIL" not in texts(outputs)
    assert float(re.search(r"'coco/bbox_mAP_50': ([0-9.]+)", texts(outputs))[1]) > 0.3


def test_what_xcit_sees(execute):
    assert images(execute("what-xcit-sees")) == 3


def test_descriptors_and_neighbours(execute):
    pytest.importorskip("sklearn")
    outputs = execute("descriptors")
    assert images(outputs) == 1
    percentage = float(re.search(r"([0-9.]+)% of the images", texts(outputs))[1])
    assert percentage > 25  # chance, with random weights
