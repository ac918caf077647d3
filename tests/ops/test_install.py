"""Detectors run without a compiled mmcv, started in any way."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.paths import CONFIGS

from xcit_mm.ops import is_compiled
from xcit_mm.weights.lookup import find_model

NOTEBOOK = """
from contextlib import suppress
with suppress(ModuleNotFoundError):
    import mmdet.apis
import xcit_mm
import mmdet.apis, mmcv.ops
"""
SHORT = (
    "train_cfg.max_iters=2",
    "train_cfg.val_interval=2",
    "train_dataloader.num_workers=1",
    "train_dataloader.persistent_workers=False",
)


@pytest.mark.forks
@pytest.mark.skipif(is_compiled(), reason="mmcv is compiled")
def test_mmdet_works_after_it_was_imported_too_early(tmp_path):
    subprocess.run([sys.executable, "-c", NOTEBOOK], cwd=tmp_path, check=True, timeout=600)


# mmdet's test.py imports mmcv.ops before it reads a config, which imports this package.
RUN = (
    "import runpy, sys, xcit_mm; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


@pytest.mark.slow
def test_scripts_of_mmdet_and_mmseg_train_and_test(tmp_path, shapes):
    def run(library: str, tool: str, *arguments: str) -> str:
        script = Path(find_spec(library).origin).parent / ".mim" / "tools" / f"{tool}.py"
        start = ["-c", RUN] if tool == "test" else []
        command = [sys.executable, "-W", "ignore", *start, str(script), *arguments]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr[-2000:]
        return run.stdout

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shapes").symlink_to(shapes)
    detector = f"{CONFIGS}/demo/mask-rcnn_xcit-n12-p16_shapes.py"
    spawn = "train_dataloader.multiprocessing_context=spawn"  # its workers import all anew
    best = "default_hooks.checkpoint.save_best=coco/bbox_mAP"
    options = ("--work-dir", "a", "--cfg-options", *SHORT, spawn, best)
    assert "coco/segm_mAP" in run("mmdet", "train", detector, *options)
    config, checkpoint = find_model(str(tmp_path / "a"))
    assert Path(config) == tmp_path / "a" / Path(detector).name
    assert Path(checkpoint).name.startswith("best_coco_bbox_mAP_iter_")
    assert "segm_mAP_50" in run("mmdet", "test", config, checkpoint, "--work-dir", "a")
    assert find_model(str(tmp_path / "a")) == (config, checkpoint)

    segmentor = f"{CONFIGS}/demo/fpn_xcit-n12-p16_shapes.py"
    run("mmseg", "train", segmentor, "--work-dir", "b", "--cfg-options", *SHORT)
    assert find_model(str(tmp_path / "b"))[1] == str(tmp_path / "b" / "iter_2.pth")
    assert "mIoU" in run("mmseg", "test", segmentor, "b/iter_2.pth")
