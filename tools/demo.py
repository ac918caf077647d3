"""Train and test XCiT on a small synthetic data set, with mmseg and with mmdet, and draw results.

    make demo
    make demo FULL=1    # longer: the models whose scores the model zoo lists

Runs `xcit-mm train` and `xcit-mm test` with configs of configs/demo, in bfloat16 where the
processor is faster in it. Results are in work_dirs/demo, which is emptied first.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
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
from xcit_mm.utils.output import quiet

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "work_dirs" / "demo"
# Task: config, and the scores to report by the library's name.
TASKS = {
    "Semantic FPN": ("fpn_xcit-n12-p16_shapes", {"mIoU": "mIoU"}),
    "Mask R-CNN": (
        "mask-rcnn_xcit-n12-p16_shapes",
        {"coco/bbox_mAP_50": "box AP50", "coco/segm_mAP_50": "mask AP50"},
    ),
}
NEXT = "predict maskrcnn_xcit_tiny_12_p16 photo.jpg"  # the smallest published detector


def run_command(name: str, *args: object, is_shown: bool = True) -> None:
    """Run a command of `xcit-mm`. Unless it is shown, its output comes only after a failure."""
    command = [sys.executable, "-m", "xcit_mm", name, *map(str, args)]
    stream = None if is_shown else subprocess.PIPE
    ended = subprocess.run(command, cwd=ROOT, text=True, stdout=stream, stderr=stream)
    if ended.returncode != 0 and not is_shown:
        print(ended.stdout, ended.stderr, file=sys.stderr)
    ended.check_returncode()


def save_untrained(config: Path, checkpoint: Path) -> None:
    """Write the initial weights of a training run."""
    cfg = read_config(config)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    with quiet():
        model = MODELS.build(cfg.model)
        model.init_weights()
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    torch.save(dict(meta=dict(), state_dict=model.state_dict()), checkpoint)


def evaluate(config: Path, checkpoint: Path, folder: Path, *flags: object) -> dict[str, float]:
    """Return the scores of a checkpoint on the held-out images."""
    run_command("test", config, checkpoint, "--work-dir", folder, *flags, is_shown=False)
    (scores,) = folder.glob("*/2*.json")
    return json.loads(scores.read_text())


def run_task(config: Path, folder: Path, *flags: str) -> tuple[dict[str, float], dict[str, float]]:
    """Train with options of `xcit-mm train`, and return the scores before and after training.

    The last test draws the held-out images.
    """
    save_untrained(config, folder / "untrained.pth")
    untrained = evaluate(config, folder / "untrained.pth", folder / "untrained")
    run_command("train", config, "--work-dir", folder, *flags)
    checkpoint = Path((folder / "last_checkpoint").read_text())
    drawing = [f"default_hooks.visualization.{option}" for option in ("draw=True", "interval=1")]
    trained = evaluate(config, checkpoint, folder / "test", "--cfg-options", *drawing)
    return untrained, trained


def draw_predictions(path: Path, folders: dict[str, Path], count: int = 3) -> None:
    """Draw ground truth and prediction of `count` held-out images side by side, a row per task."""
    size = (5 * count, 2.8 * len(folders))
    figure, axes = plt.subplots(len(folders), count, figsize=size, layout="constrained")
    for row, (task, folder) in zip(axes, folders.items(), strict=True):
        drawings = (folder / "test").glob("*/vis_data/vis_image/*")
        in_order = sorted(drawings, key=lambda path: (len(path.name), path.name))
        for axis, drawn in zip(row, in_order, strict=False):
            axis.imshow(plt.imread(drawn))
            axis.set_title(f"{task}: ground truth | prediction", fontsize=9)
            axis.axis("off")
    figure.savefig(path, dpi=100)


def run(full: bool) -> None:
    start = time.time()
    data = ROOT / "data" / "shapes"
    if not data.exists():
        print(f"== writing the data set to {data} ==")
        write_dataset(data)
    shutil.rmtree(OUT, ignore_errors=True)
    flags = ["--amp"] if fast_dtype(get_device()) == "bfloat16" else []
    table = [f"{'40 held-out images, %':24}{'untrained':>10}{'trained':>10}"]
    folders = {}
    for task, (name, scores) in TASKS.items():
        print(f"== {task} + XCiT-N12/16 ==", flush=True)
        config = ROOT / "configs" / "demo" / f"{name}{'' if full else '-quick'}.py"
        folders[task] = OUT / name
        untrained, trained = run_task(config, folders[task], *flags)
        for key, score in scores.items():
            factor = 100 if key.startswith("coco") else 1  # mmseg's scores are in per cent
            change = f"{factor * untrained[key]:10.1f}{factor * trained[key]:10.1f}"
            table.append(f"{task:14}{score:10}{change}")
    drawing = OUT / "predictions.png"
    draw_predictions(drawing, folders)
    print("", *table, sep="\n")
    minutes = (time.time() - start) / 60
    print(f"After {minutes:.1f} minutes. Ground truth beside prediction: {drawing}")
    print(f"Next, on a photo of your own: {Path(sys.executable).with_name('xcit-mm')} {NEXT}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--full", action="store_true", help="train the models whose scores the model zoo lists"
    )
    args = parser.parse_args(argv)
    end = "run the same command to start again"
    return cli_main(lambda: run(args.full), end)


if __name__ == "__main__":
    sys.exit(main())
