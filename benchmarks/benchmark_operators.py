"""Compare time, memory and results of a detector with mmcv's compiled operators and with the operators of xcit_mm.ops.

    python benchmarks/benchmark_operators.py [CONFIG] [--out docs/benchmark/11-operators.csv]

Needs a compiled mmcv, such as that in .venv-compiled after `make test-slow`. The model has random weights, so its 1000
proposals lie anywhere, and a score threshold low enough for NMS to have work. Runs alternate. The table has medians
and the peak memory of a new process.
"""

import argparse
import csv
import importlib
import multiprocessing
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData

import xcit_mm  # noqa: F401
from xcit_mm.ops import is_compiled, mmcv_ext

CONFIG = Path(__file__).parents[1] / "configs/mask_rcnn/mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
OPERATORS = ("compiled", "torch")
MODES = ("inference", "training")


def use(operators: str) -> None:
    """Let mmcv.ops call its compiled operators or the operators of xcit_mm.ops."""
    extension = mmcv_ext if operators == "torch" else importlib.import_module("mmcv._ext")
    for name in ("nms", "roi_align"):
        importlib.import_module(f"mmcv.ops.{name}").ext_module = extension


class Case:
    """A detector on one image for inference, on two with twenty objects each for a training step."""

    def __init__(self, config: Path, mode: str, size: tuple[int, int] = (800, 1344), min_score: float = 0.012) -> None:
        from mmdet.registry import MODELS

        cfg = Config.fromfile(config)
        init_default_scope("mmdet")
        cfg.model.backbone.init_cfg = None
        rcnn = cfg.model.test_cfg.get("rcnn") or cfg.model.test_cfg
        rcnn.score_thr = min_score
        torch.manual_seed(0)
        self.model = MODELS.build(cfg.model).train(mode == "training")
        self.mode = mode
        self.batch = self._batch(*size, images=2 if mode == "training" else 1)

    def _batch(self, height: int, width: int, images: int) -> dict[str, Any]:
        from mmdet.structures import DetDataSample
        from mmdet.structures.mask import BitmapMasks

        random = np.random.RandomState(0)
        samples = []
        for _ in range(images):
            sides = random.uniform(0.05, 0.6, (20, 2)) * (width, height)
            corner = random.uniform(size=(20, 2)) * ((width, height) - sides)
            boxes = np.concatenate([corner, corner + sides], axis=1).astype(np.float32)
            masks = np.zeros((20, height, width), np.uint8)
            for mask, (x1, y1, x2, y2) in zip(masks, boxes.astype(int), strict=True):
                mask[y1 : y2 + 1, x1 : x2 + 1] = 1
            shape = (height, width)
            sample = DetDataSample(
                metainfo=dict(
                    img_shape=shape, pad_shape=shape, batch_input_shape=shape, ori_shape=shape, scale_factor=(1, 1)
                )
            )
            sample.gt_instances = InstanceData(
                bboxes=torch.from_numpy(boxes),
                labels=torch.from_numpy(random.randint(80, size=20)),
                masks=BitmapMasks(masks, height, width),
            )
            samples.append(sample)
        image = torch.from_numpy(random.standard_normal((images, 3, height, width))).float()
        return dict(inputs=image, data_samples=samples)

    def run(self, operators: str) -> dict[str, torch.Tensor]:
        """Return the detections, or the losses and the norm of the gradient."""
        use(operators)
        torch.manual_seed(0)  # for the sampling of RoIs
        if self.mode == "inference":
            with torch.inference_mode():
                found = self.model(**self.batch, mode="predict")[0].pred_instances
            return {name: found[name] for name in found.keys()}  # noqa: SIM118
        losses = self.model(**self.batch, mode="loss")
        total, values = self.model.parse_losses(losses)
        total.backward()
        norm = sum(p.grad.double().square().sum() for p in self.model.parameters() if p.grad is not None).sqrt()
        self.model.zero_grad()
        return {**values, "gradient": norm}

    def timed(self, operators: str) -> float:
        start = time.perf_counter()
        self.run(operators)
        return time.perf_counter() - start


def difference(results: dict[str, dict[str, torch.Tensor]]) -> str:
    """Describe the differences between the results of the two kinds of operators."""
    a, b = (results[operators] for operators in OPERATORS)
    if "bboxes" not in a:
        return f"losses and gradient within {max(abs(float(a[k] / b[k]) - 1) for k in a if float(b[k])):.1e}, relative"
    if a["labels"].tolist() != b["labels"].tolist():
        return f"{len(a['labels'])} and {len(b['labels'])} different detections"
    masks = f", {(a['masks'] != b['masks']).sum()} pixels of masks" if "masks" in a else ""
    return f"{len(a['labels'])} detections, boxes within {(a['bboxes'] - b['bboxes']).abs().max():.1e} pixels{masks}"


def peak_bytes(config: Path, mode: str, operators: str) -> int:
    """Return the peak memory of this process after it has run the case once. Call it in a new process."""
    Case(config, mode).run(operators)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", type=Path, default=CONFIG, help="config of a detector of mmdet")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each")
    parser.add_argument("--out", type=Path, help="csv file to write")
    args = parser.parse_args()
    if not is_compiled():
        sys.exit("mmcv is not compiled: see docs/install.md")
    rows = []
    for mode in MODES:
        case = Case(args.config, mode)
        results = {operators: case.run(operators) for operators in OPERATORS}  # and warm up
        print(f"{mode}: {difference(results)}")
        times = [{operators: case.timed(operators) for operators in OPERATORS} for _ in range(args.repeats)]
        ratio = statistics.median(pair["torch"] / pair["compiled"] for pair in times)
        for operators in OPERATORS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                peak = pool.apply(peak_bytes, (args.config, mode, operators))
            seconds = statistics.median(pair[operators] for pair in times)
            rows.append(dict(mode=mode, operators=operators, ms=round(seconds * 1e3), peak_mb=round(peak / 2**20)))
            print(f"{mode}, {operators}: {rows[-1]['ms']} ms, {rows[-1]['peak_mb']} MB")
        print(f"{mode}: torch takes {ratio:.3f} of the time of compiled, median of pairs")
    if args.out:
        with args.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
