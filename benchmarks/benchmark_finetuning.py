"""Compare full fine-tuning, LoRA and a frozen trunk: trained parameters, memory and scores over seeds.

    python benchmarks/benchmark_finetuning.py CONFIG CHECKPOINT [--seeds 0 1 2] [--cfg-options KEY=VALUE ...]

Each method starts from the backbone of CHECKPOINT, whose model may have other heads, and trains pyramid, neck and
heads. LoRA, which needs peft, trains factors of rank 16 beside qkv and proj. Memory is the peak of the process
during training, without what it held before.
"""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from benchmark import memory
from mmengine.registry import init_default_scope
from mmengine.runner import Runner

from xcit_mm.utils.configs import read_config
from xcit_mm.weights.layouts import parse_checkpoint
from xcit_mm.weights.matching import match_trunk
from xcit_mm.weights.reader import load_checkpoint

METRICS = {"mIoU": "mIoU", "coco/bbox_mAP": "box AP", "coco/bbox_mAP_50": "box AP50", "coco/segm_mAP_50": "mask AP50"}


def train_all(model: torch.nn.Module) -> None:
    """Train every weight."""


def freeze_trunk(model: torch.nn.Module) -> None:
    """Train pyramid, neck and heads."""
    model.backbone.requires_grad_(False)
    for level in model.backbone.levels():
        level.requires_grad_(True)


def add_lora(model: torch.nn.Module) -> None:
    """Train factors beside the attention's linear layers, pyramid, neck and heads."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=16, lora_alpha=32, target_modules=["attn.qkv", "attn.proj"])
    model.backbone = get_peft_model(model.backbone, lora)
    for level in model.backbone.levels():
        level.requires_grad_(True)


METHODS = {"full": train_all, "LoRA": add_lora, "frozen trunk": freeze_trunk}


def finetune(method: str, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """Train and test once, and return the measurements."""
    cfg = read_config(args.config, ["--cfg-options", *args.cfg_options] if args.cfg_options else [])
    cfg.merge_from_dict({"load_from": None, "randomness.seed": seed, "work_dir": f"{args.work_dir}/{method}-{seed}"})
    cfg.default_hooks.checkpoint.interval = cfg.train_cfg.max_iters + 1  # a checkpoint of LoRA has other names
    init_default_scope(cfg.default_scope)
    torch.manual_seed(seed)
    runner = Runner.from_cfg(cfg)
    runner.model.init_weights()
    backbone = runner.model.backbone
    backbone.load_state_dict(match_trunk(backbone, parse_checkpoint(load_checkpoint(args.checkpoint))), strict=False)
    METHODS[method](runner.model)
    trained = sum(parameter.numel() for parameter in runner.model.parameters() if parameter.requires_grad)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, on Linux
    before = memory("VmRSS")
    runner.model.init_weights = lambda: None  # the runner would load the initial weights again
    runner.train()
    peak = memory("VmHWM") - before
    scores = runner.val_loop.run()
    return dict(trained=trained, peak=peak, **{name: scores[name] for name in METRICS if name in scores})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("checkpoint")
    parser.add_argument("--work-dir", default="work_dirs/finetuning", help="folder of the runs (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    rows = {}
    for method in METHODS:
        runs = []
        for seed in args.seeds:
            fresh = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=fresh) as pool:  # a process of its own, for its peak memory
                runs.append(pool.submit(finetune, method, seed, args).result())
        rows[method] = runs
    metrics = [name for name in METRICS if name in runs[0]]
    print("| method | trained parameters | peak memory |", *(f"{METRICS[name]} |" for name in metrics))
    print("|---|---|---|" + "---|" * len(metrics))
    for method, runs in rows.items():
        cells = [method, f"{runs[0]['trained'] / 1e6:.2f}M", f"{max(run['peak'] for run in runs) / 2**30:.2f} GiB"]
        for name in metrics:
            values = [run[name] * (100 if name.startswith("coco") else 1) for run in runs]
            cells.append(f"{sum(values) / len(values):.1f} ({min(values):.1f} to {max(values):.1f})")
        print("|", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
