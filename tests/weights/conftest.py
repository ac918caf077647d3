"""The folder of a run."""

from pathlib import Path

import pytest
import torch


@pytest.fixture
def work_dir(tmp_path) -> Path:
    """The folder of a run that has saved iter_1.pth and iter_2.pth."""
    folder = tmp_path / "work_dirs" / "mine"
    folder.mkdir(parents=True)
    (folder / "mine.py").touch()
    for name in ("iter_1.pth", "iter_2.pth"):
        torch.save(dict(state_dict={}), folder / name)
    (folder / "last_checkpoint").write_text(str(folder / "iter_2.pth"))
    return folder
