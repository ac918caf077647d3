"""What macOS and Windows do differently, on Linux: workers that are spawned, modules that lack."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(ROOT), str(ROOT / "tests")])

TRAINING = """
import json
import torch

if __name__ == "__main__":
    import xcit_mm
    from mmdet.datasets import CocoDataset

    images = [dict(id=1, file_name="a.jpg", width=9, height=9)]
    with open("a.json", "w") as file:
        json.dump(dict(images=images, annotations=[], categories=[dict(id=1, name="a")]), file)
    dataset = CocoDataset(
        ann_file="a.json",
        data_prefix=dict(img=""),
        metainfo=dict(classes=("a",)),
        test_mode=True,
    )
    loader = torch.utils.data.DataLoader(
        dataset, num_workers=1, collate_fn=list, multiprocessing_context="spawn"
    )
    print([sample["height"] for batch in loader for sample in batch])
"""

WINDOWS = """
import os, sys, types
from pathlib import Path

locked = set()


def locking(file, mode, count):
    path = os.readlink(f"/proc/self/fd/{file}")
    if path in locked:
        raise PermissionError(13, "Permission denied")
    locked.add(path)


sys.modules.update(fcntl=None, resource=None)
import torch
import xcit_mm
from helpers import small_models
from xcit_mm.__main__ import main
from xcit_mm.utils.folders import lock_folder

cfg = small_models.semantic_fpn()
model = small_models.build(cfg)
assert len(model.backbone(torch.zeros(1, 3, 64, 64))) == 4
print(xcit_mm.Predictor(model, cfg)(small_models.synthetic_photo(64, 64)).segmentation.shape)
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
with lock_folder(Path("out"), "--out"):
    try:
        with lock_folder(Path("out"), "--out"):
            print("locked twice")
    except BlockingIOError as error:
        print(error)
sys.exit(main(["weights", "list"]))
"""


def run(program: str, folder: Path, *options: str) -> str:
    (folder / "program.py").write_text(program, "utf-8")
    command = [sys.executable, *options, "program.py"]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.forks
def test_spawned_workers_of_mmdets_own_script_find_the_operators(tmp_path):
    assert run(TRAINING, tmp_path).endswith("[9]\n")


def test_backbone_predictor_and_weights_need_no_modules_of_posix(tmp_path):
    encodings = ("-X", "warn_default_encoding", "-W", "error::EncodingWarning:xcit_mm")
    printed = run(WINDOWS, tmp_path, *encodings)
    assert printed.startswith("(64, 64)\nanother process writes into out")
    assert "xcit://" in printed
