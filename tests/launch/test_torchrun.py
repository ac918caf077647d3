"""`torchrun -m xcit_mm train CONFIG --launcher pytorch`."""

import os
import subprocess
import sys

import pytest
from helpers.demo_runs import DEMO, SCORES, cfg_options
from helpers.paths import ROOT

SEG, _ = SCORES
# SyncBN does not run on a CPU in several processes.
OPTIONS = ["model.backbone.norm_cfg.type=BN", "model.decode_head.norm_cfg.type=BN"]
OPTIONS += ["model.neck.norm_cfg.type=BN", "env_cfg.dist_cfg.backend=gloo"]
OPTIONS += ["model_wrapper_cfg.type=MMDistributedDataParallel", "model_wrapper_cfg.device_ids=None"]


@pytest.mark.slow
def test_two_processes_train_and_test_and_only_the_first_speaks(shapes, tmp_path):
    def torchrun(command: str, *arguments: object) -> str:
        start = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
        start += ["--nproc_per_node", "2", "-m", "helpers.on_cpus", command]
        line = [*start, *map(str, arguments), "--launcher", "pytorch"]
        env = os.environ | dict(OMP_NUM_THREADS="1", PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
        options = dict(cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280)
        done = subprocess.run(line, **options)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    options = [*cfg_options(SEG, shapes, 2), *OPTIONS]
    shown = torchrun("train", DEMO / f"{SEG}.py", "--work-dir", "work", *options)
    assert shown.count("weights: work/") == 1 and shown.count("log: work/") == 1
    shown = torchrun("test", "work", *options)
    assert shown.count("mIoU  ") == 1
