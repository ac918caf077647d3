"""Train and evaluate XCiT on a small synthetic data set, in mmseg and in mmdet, and draw the results.

    make demo

Runs tools/train.py and tools/test.py with configs of configs/demo, in 5 to 11 minutes on two cores. Trains in mixed
precision where the processor is faster in bfloat16. Results are in work_dirs/demo, which is emptied first.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from make_shapes import write_dataset
from mmengine.device import get_device
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.models.precision import fast_dtype
from xcit_mm.utils.cli import cli_main
from xcit_mm.utils.configs import read_config

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "work_dirs" / "demo"
# Task: config, and the library's names of the scores to report.
TASKS = {
    "Semantic FPN": ("fpn_xcit-n12-p16_shapes", ("mIoU", "aAcc")),
    "Mask R-CNN": (
        "mask-rcnn_xcit-n12-p16_shapes",
        ("coco/bbox_mAP", "coco/bbox_mAP_50", "coco/segm_mAP", "coco/segm_mAP_50"),
    ),
}


def tool(name: str, *args: object) -> None:
    """Run tools/NAME.py; its output is shown."""
    subprocess.run([sys.executable, ROOT / "tools" / f"{name}.py", *map(str, args)], cwd=ROOT, check=True)


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def save_untrained(config: Path, checkpoint: Path) -> None:
    """Write the initial weights of a training run."""
    cfg = read_config(str(config), [])
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    torch.save(dict(meta=dict(), state_dict=model.state_dict()), checkpoint)


def evaluate(config: Path, checkpoint: Path, folder: Path, *flags: object) -> dict[str, float]:
    """Return the scores of a checkpoint on the held-out images."""
    tool("test", config, checkpoint, "--work-dir", folder, *flags)
    return json.loads(newest(folder, "*/2*.json").read_text())


def run_task(config_name: str, *flags: str) -> tuple[dict[str, float], dict[str, float], list[tuple[int, float]]]:
    """Train with options of tools/train.py; return the scores before and after it, and the loss by iteration."""
    config, folder = ROOT / "configs" / "demo" / f"{config_name}.py", OUT / config_name
    save_untrained(config, folder / "untrained.pth")
    before = evaluate(config, folder / "untrained.pth", folder / "untrained")
    tool("train", config, "--work-dir", folder, *flags)
    checkpoint = Path((folder / "last_checkpoint").read_text())
    every_image = ("--cfg-options", "default_hooks.visualization.interval=1")
    after = evaluate(config, checkpoint, folder / "test", "--show-dir", folder / "visualizations", *every_image)
    lines = [json.loads(line) for line in newest(folder, "2*/vis_data/scalars.json").read_text().splitlines()]
    return before, after, [(line["step"], line["loss"]) for line in lines if "loss" in line]


def draw_predictions(path: Path, count: int = 3) -> None:
    """Draw ground truth (left) beside prediction (right) of `count` held-out images, one row per task."""
    figure, axes = plt.subplots(len(TASKS), count, figsize=(5 * count, 2.8 * len(TASKS)), layout="constrained")
    for row, (task, (config_name, _)) in zip(axes, TASKS.items(), strict=True):
        for number, axis in enumerate(row):
            image = newest(OUT / config_name / "visualizations", f"**/*{number:05}.jpg*")
            axis.imshow(plt.imread(image))
            axis.set_title(f"{task}: ground truth | prediction", fontsize=9)
            axis.axis("off")
    figure.savefig(path, dpi=100)


def draw_losses(path: Path, losses: dict[str, list[tuple[int, float]]]) -> None:
    figure, axes = plt.subplots(1, len(losses), figsize=(5 * len(losses), 3.2), layout="constrained")
    for axis, (task, curve) in zip(axes, losses.items(), strict=True):
        axis.plot(*zip(*curve, strict=True))
        axis.set(title=f"{task} + XCiT-N12/16", xlabel="iteration", ylabel="training loss", ylim=(0, None))
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def run() -> None:
    start = time.time()
    data = ROOT / "data" / "shapes"
    if not data.exists():
        print(f"== writing the data set to {data} ==")
        write_dataset(data)
    shutil.rmtree(OUT, ignore_errors=True)
    dtype = fast_dtype(get_device())
    flags = ["--amp"] if dtype == "bfloat16" else []
    print(f"== training in {dtype}, in which this processor is faster ==" if flags else "== training in float32 ==")
    losses, table = {}, [f"{'':14}{'score':22}{'untrained':>10}{'trained':>10}"]
    for task, (config_name, names) in TASKS.items():
        print(f"== {task} + XCiT-N12/16 ==", flush=True)
        before, after, losses[task] = run_task(config_name, *flags)
        table += [f"{task:14}{name:22}{before[name]:10.3f}{after[name]:10.3f}" for name in names]
    draw_predictions(OUT / "predictions.png")
    draw_losses(OUT / "losses.png", losses)
    print("", *table, sep="\n")
    print(f"\n{OUT / 'predictions.png'} and losses.png are written, after {(time.time() - start) / 60:.1f} minutes")


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    return cli_main(run, "run the same command to start again", OSError, ValueError)


if __name__ == "__main__":
    sys.exit(main())
