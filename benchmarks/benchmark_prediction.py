"""Measure `predict_many`: images per second compared with a plain loop over the library's API, or memory over time.

    python benchmarks/benchmark_prediction.py speed CONFIG CHECKPOINT IMAGES [--batch-sizes 1 4] [--repeats 3]
    python benchmarks/benchmark_prediction.py memory DIR [--images 100000]

`speed` measures the alternatives in turn, after the model is loaded, without visualizations. `memory` writes small
synthetic images and a small untrained detector to DIR, predicts the images in two processes, evaluates the results with
pycocotools, and draws the memory of every process over time to DIR/memory.png.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SMALL = f"""
_base_ = "{ROOT}/configs/retinanet/retinanet_xcit-s12-p16_fpn_1x_coco.py"
model = dict(
    backbone=dict(
        _delete_=True, type="mmengine.XCiT", arch=dict(embed_dim=16, depth=6, num_heads=2, eta=1.0), patch_size=16,
        strides=(8, 16, 32), out_indices=(1, 3, 5)),
    neck=dict(in_channels=[16] * 3, out_channels=16),
    bbox_head=dict(num_classes=2, in_channels=16, feat_channels=16, stacked_convs=1),
    test_cfg=dict(score_thr=0.0, nms_pre=50, max_per_img=5))
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(32, 32), keep_ratio=True),
    dict(type="PackDetInputs", meta_keys=("img_path", "ori_shape", "img_shape", "scale_factor"))]
test_dataloader = dict(dataset=dict(metainfo=dict(classes=("a", "b")), pipeline=test_pipeline))
"""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    speed = kinds.add_parser("speed")
    for name in ("config", "checkpoint", "images"):
        speed.add_argument(name)
    speed.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4])
    speed.add_argument("--workers", type=int, default=0, help="processes that read images (default: 0, as on a CPU)")
    speed.add_argument("--repeats", type=int, default=3, help="runs of each (default: %(default)s)")
    memory = kinds.add_parser("memory")
    memory.add_argument("out", type=Path, help="folder to write")
    memory.add_argument("--images", type=int, default=100_000, help="number of images (default: %(default)s)")
    return parser.parse_args()


def measure_speed(args: argparse.Namespace) -> None:
    """Print a table of images per second, medians of the repeats, and the speed-up over the plain loop."""
    from xcit_mm.prediction import Predictor, find_items, predict_many

    listing, predictor = find_items([args.images]), Predictor(args.config, args.checkpoint)
    paths = [item.path for item in listing.items]
    if predictor.is_detector:
        from mmdet.apis import inference_detector as inference
    else:
        from mmseg.apis import inference_model as inference
    predictor.model.cfg = predictor.cfg  # where both functions look for the test pipeline

    def many(batch_size: int) -> None:
        predictor.batch_size = batch_size
        with tempfile.TemporaryDirectory() as out:
            predict_many(listing, predictor, Path(out) / "found", workers=args.workers)

    ways: dict[str, Callable[[], object]] = {"plain loop": lambda: [inference(predictor.model, path) for path in paths]}
    ways |= {f"predict_many, batches of {size}": lambda size=size: many(size) for size in args.batch_sizes}
    seconds = defaultdict(list)
    for _ in range(args.repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    plain = statistics.median(seconds["plain loop"])
    print(f"\n| {Path(args.config).stem}, {len(paths)} images | images/s | ratio |\n|---|---|---|")
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"| {name} | {len(paths) / median:.2f} | {plain / median:.2f} |")


def processes_below(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid for child in map(int, children) for pid in (child, *processes_below(child))]


def resident_megabytes(pid: int) -> float | None:
    """Return the memory of a process, including memory shared with its parent, or None if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), None)


def write_inputs(out: Path, count: int) -> None:
    """Write small images of 50 kinds in folders of a thousand, a COCO json with a box in each, and the model."""
    rng = np.random.default_rng(0)
    encoded = [cv2.imencode(".jpg", rng.integers(0, 256, (32, 32, 3)).astype(np.uint8))[1].tobytes() for _ in range(50)]
    images, boxes = [], []
    for number in range(count):
        path = out / "images" / f"{number // 1000:03}" / f"{number:06}.jpg"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(encoded[number % len(encoded)])
        images.append(dict(id=number + 1, file_name=str(path.relative_to(out / "images")), height=32, width=32))
        boxes.append(dict(id=number + 1, image_id=number + 1, category_id=1, bbox=[4, 4, 16, 16], area=256, iscrowd=0))
    content = dict(images=images, annotations=boxes, categories=[dict(id=1, name="a"), dict(id=2, name="b")])
    (out / "truth.json").write_text(json.dumps(content))
    (out / "config.py").write_text(SMALL)
    sys.path.append(str(ROOT / "tools"))
    from demo import save_untrained

    save_untrained(out / "config.py", out / "model.pth")


def measure_memory(args: argparse.Namespace) -> None:
    """Print and draw the memory of every process.

    Raises:
        FileExistsError: If the folder is not empty.
    """
    if args.out.exists() and any(args.out.iterdir()):
        raise FileExistsError(f"{args.out} is not empty: give a new folder")

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    logging.disable(logging.INFO)
    write_inputs(args.out, args.images)
    results = args.out / "results"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", ROOT / "tools" / "infer.py"]
    inputs = [args.out / "truth.json", "--root", args.out / "images"]
    inputs += ["--model", args.out / "config.py", "--checkpoint", args.out / "model.pth"]
    options = ["--out", results, "--no-visualizations", "--batch-size", "32", "--workers", "1"]
    start, curves = time.time(), defaultdict(list)
    with subprocess.Popen([*map(str, torchrun + inputs + options)], env=dict(os.environ, OMP_NUM_THREADS="1")) as run:
        while run.poll() is None:
            for pid in processes_below(run.pid):
                used = resident_megabytes(pid)
                if used is not None:
                    curves[pid].append((time.time() - start, used))
            time.sleep(2)
    minutes = (time.time() - start) / 60
    figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for curve in sorted(curves.values(), key=lambda curve: -curve[-1][1]):
        if len(curve) > 5:
            axis.plot(*zip(*curve, strict=True), lw=1)
    axis.set(xlabel="seconds", ylabel="resident memory in MB", ylim=(0, None))
    axis.set_title(f"{args.images:,} images: every process of `xcit-mm predict` with two ranks", fontsize=9)
    axis.grid(alpha=0.3)
    figure.savefig(args.out / "memory.png", dpi=100)
    for pid, curve in curves.items():
        if len(curve) > 5:
            quarter, last = curve[len(curve) // 4][1], curve[-2][1]
            print(f"process {pid}: {quarter:.0f} MB after a quarter of its time, {last:.0f} MB at the end")
    truth = COCO(str(args.out / "truth.json"))
    found = truth.loadRes(str(results / "predictions.json"))
    evaluation = COCOeval(truth, found, "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    print(f"{len(found.anns)} boxes in {len(found.imgToAnns)} images, {minutes:.1f} minutes")


def main() -> None:
    args = parse_args()
    try:
        measure_speed(args) if args.kind == "speed" else measure_memory(args)
    except (ValueError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
