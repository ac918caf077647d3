"""The commands of each tutorial run, in order, in one folder.

The folder stands for a clone, with links to its subfolders and with synthetic photos in the layout
of the repositories that tools/get_data.py downloads. `SHORTER` shortens long commands. At the end
of a page every path `data/...` or `work_dirs/...` that it names must exist.
"""

import re
import shlex
from pathlib import Path

import pytest
import torch
from helpers.clones import write_camvid_clone, write_nuts_clone, write_trees_clone
from helpers.doctor_data import write_coco
from helpers.pages import TUTORIALS, blocks, commands
from helpers.paths import ROOT
from helpers.processes import run_script
from mmdet.datasets import CocoDataset
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

QUICK = (
    "--cfg-options train_cfg.max_iters=1 train_cfg.val_interval=1 train_dataloader.batch_size=2 "
    "train_dataloader.num_workers=0 train_dataloader.persistent_workers=False "
    "default_hooks.checkpoint.interval=1"
)
SMALL = "--cfg-options test_dataloader.dataset.pipeline.1.scale=(320,200)"
# Arguments appended to the commands with a prefix.
SHORTER = {
    "python tools/get_data.py nuts": "--from clones/nuts",
    "python tools/get_data.py camvid": "--from clones/camvid",
    "python tools/get_data.py trees": "--from clones/trees",
    "python tools/train.py": f"{QUICK} default_hooks.checkpoint.filename_tmpl=iter_300.pth",
    "xcit-mm finetune": QUICK,
    "xcit-mm test": SMALL,
    "python tools/test.py work_dirs/mask-rcnn": SMALL,
}


def write_published_detector(folder: Path) -> None:
    """Write an untrained Mask R-CNN of S12/16 as the authors' mmdet 2 did, and images of COCO."""
    config = ROOT / "configs" / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    meta = dict(mmdet_version="2.11.0", config="model = dict()", epoch=36, iter=263880)
    meta["CLASSES"] = CocoDataset.METAINFO["classes"]
    content = dict(meta=meta, state_dict=MODELS.build(cfg.model).state_dict())
    torch.save(content, folder / "maskrcnn_xcit_small_12_p16.pth")

    write_coco(folder)


# What writes the data that a page needs, and where.
DATA = {
    "own-photos": (write_nuts_clone, "clones/nuts"),
    "street-scenes": (write_camvid_clone, "clones/camvid"),
    "huge-image": (write_trees_clone, "clones/trees"),
    "from-facebookresearch": (write_published_detector, "."),
}


@pytest.fixture
def clone(tmp_path) -> Path:
    for name in ("configs", "tools", "xcit_mm"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def run_command(line: str, clone: Path) -> None:
    """Run a shortened command of a page."""
    line = " ".join([line, *(more for prefix, more in SHORTER.items() if line.startswith(prefix))])
    command, *arguments = shlex.split(line)
    if command == "xcit-mm":
        command = "python"
        arguments.insert(0, "xcit_mm/__main__.py")
    assert command == "python"
    ended = run_script(Path(arguments[0]), *arguments[1:], cwd=clone)
    assert ended.returncode == 0, f"{line}\n{ended.stdout[-1000:]}\n{ended.stderr[-3000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_and_writes_the_files_that_it_names(page: Path, clone: Path):
    write, folder = DATA[page.stem]
    write(clone / folder)
    for line in [line for name, code in blocks(page) if name == "bash" for line in commands(code)]:
        run_command(line, clone)
    named = set(re.findall(r"`((?:data|work_dirs)/[^`]+)`", page.read_text(encoding="utf-8")))
    assert [path for path in sorted(named) if not list(clone.glob(path.replace("TIME", "*")))] == []
