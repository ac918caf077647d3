"""Print how long a checkpoint stops training, and how long a resumed run takes to find its batch.

python benchmarks/benchmark_resuming.py [--config CONFIG]

The model has its optimizer's state, and no data are needed: the data sets have the size of COCO and ADE20k.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from mmengine.dataset import BaseDataset, DefaultSampler, InfiniteSampler
from mmengine.hooks import CheckpointHook
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from torch.utils.data import BatchSampler, DataLoader, Sampler

from xcit_mm import ResumableCheckpointHook
from xcit_mm.training.batches import NumberedBatches
from xcit_mm.utils.cli import cli_main
from xcit_mm.utils.configs import read_config

CONFIGS = Path(__file__).parents[1] / "configs"
COCO, ADE20K = 117266, 20210  # images


def print_pauses(config: str, count: int = 4) -> None:
    """Print the pause of each of several checkpoints, and the time until the file is complete."""
    cfg = read_config(config, [])
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.init_cfg = None
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(
            MODELS.build(cfg.model),
            work_dir=folder,
            train_dataloader=DataLoader([0] * 100),
            train_cfg=dict(type="IterBasedTrainLoop", max_iters=100),
            optim_wrapper=dict(optimizer=dict(type="AdamW", lr=1e-4)),
            param_scheduler=dict(type="LinearLR", start_factor=0.1, by_epoch=False, end=10),
            log_level="ERROR",
            cfg=cfg,
        )
        model, runner._train_loop = runner.model, runner.build_train_loop(runner._train_loop)
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        runner.param_schedulers = runner.build_param_scheduler(runner.param_schedulers)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        runner.optim_wrapper.optimizer.step()
        for kind in (CheckpointHook, ResumableCheckpointHook):
            hook = kind(interval=1, by_epoch=False, max_keep_ckpts=1)
            runner._hooks = [hook]
            hook.before_train(runner)
            hook.before_train_epoch(runner)
            for iteration in range(count):
                runner._train_loop._iter = iteration
                start = time.perf_counter()
                hook.after_train_iter(runner, iteration)
                pause = time.perf_counter() - start
                hook.after_train(runner)
                complete = time.perf_counter() - start
                size = os.path.getsize(hook.last_ckpt) / 1e6
                print(f"{kind.__name__}: {size:.0f} MB, pause {pause:.2f} s, complete after {complete:.2f} s")


class Sizes(BaseDataset):
    """A data set of image sizes and boxes."""

    def load_data_list(self) -> list[dict]:
        sizes = np.random.default_rng(0).integers(300, 640, (self.length, 2)).tolist()
        instance = dict(bbox=[0.0] * 4, mask=[[1.5] * 60], bbox_label=1, ignore_flag=0)
        return [dict(width=width, height=height, instances=[instance] * 7) for width, height in sizes]

    def __init__(self, length: int) -> None:
        self.length = length
        super().__init__()


def print_place(name: str, length: int, sampler: type[Sampler], batches: type[BatchSampler], first: int) -> None:
    """Print the time that NumberedBatches takes to its first batch."""
    numbered = NumberedBatches(batches(sampler(Sizes(length), seed=0), 2, False), 0, endless=sampler is InfiniteSampler)
    numbered.first = first
    start = time.perf_counter()
    next(iter(numbered))
    print(f"{name}: {time.perf_counter() - start:.2f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
    parser.add_argument("--config", default=str(default), help="model of the checkpoint (default: %(default)s)")
    args = parser.parse_args()

    def run() -> None:
        from mmdet.datasets.samplers import AspectRatioBatchSampler  # after xcit_mm, which provides mmcv.ops

        print_place("ADE20k, iteration 100,000", ADE20K, InfiniteSampler, BatchSampler, 100_000)
        print_place("COCO, batch 7,000 of an epoch", COCO, DefaultSampler, AspectRatioBatchSampler, 7_000)
        print_place("COCO, batch 58,000 of an epoch", COCO, DefaultSampler, AspectRatioBatchSampler, 58_000)
        print_place("COCO, iteration 300,000", COCO, InfiniteSampler, AspectRatioBatchSampler, 300_000)
        print_pauses(args.config)

    return cli_main(run, "measurements are incomplete", OSError, ValueError)


if __name__ == "__main__":
    sys.exit(main())
