"""Measure a training step on one large image: the trunk alone, and Semantic FPN around it.

    python benchmarks/large_steps.py --archs n12 s12 --patch-sizes 16 8 --sizes 1024 --out name

`with_cp` of the backbone is False, True or 'bands'. In the modes 'windows-384' and 'windows-768' of
Semantic FPN it is 'bands', and the loss is computed by windows of so many pixels. Semantic FPN has
the neck and head of the recipe for ADE20k, with channels of the backbone's width and 150 classes,
and sees the image at its own size.

Each step is forward and backward in float32, after one of 64x64 pixels, on one thread, in a process
of its own. `cpu_seconds` are of the step alone, and `memory_gb` is its peak above the process at
rest, which holds model, image, labels and gradients. A step that needs more than `--memory` has
neither. Writes OUT.csv, in which the rows of other cases stay.
"""

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmark import status_bytes
from csv_rows import ORIGIN, origin, write_row
from torch import Tensor, nn

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs" / "semantic_fpn" / "fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py"
MODES = {
    "False": False,
    "True": True,
    "bands": "bands",
    "windows-384": "bands",
    "windows-768": "bands",
}
KEYS = ("model", "arch", "patch_size", "size", "with_cp")
COSTS = ("cpu_seconds", "memory_gb", *ORIGIN)


def build(case: dict[str, Any]) -> Any:
    """Build the model of a case, in training mode, with zeros as gradients."""
    from mmengine.registry import MODELS, init_default_scope

    from xcit_mm.archs import resolve_arch
    from xcit_mm.models import Trunk
    from xcit_mm.utils.configs import read_config

    torch.manual_seed(0)
    backbone = dict(arch=case["arch"], patch_size=case["patch_size"])
    backbone |= dict(with_cp=MODES[case["with_cp"]], norm_eval=True, norm_cfg=dict(type="BN"))
    if case["model"] == "trunk":
        model: Any = Trunk(**backbone)
    else:
        config = read_config(RECIPE)
        init_default_scope(config.default_scope)
        width = resolve_arch(case["arch"]).embed_dim
        config.model.backbone.update(backbone, init_cfg=None)
        config.model.neck.update(in_channels=[width] * 4, out_channels=width)
        config.model.decode_head.update(in_channels=[width] * 4, norm_cfg=dict(type="BN"))
        if case["with_cp"].startswith("windows"):
            window = int(case["with_cp"].partition("-")[2])
            config.model.update(type="xcit_mm.WholeImageEncoderDecoder", window=window)
        model = MODELS.build(config.model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model.train()


def make_batch(model: nn.Module, side: int) -> tuple[Any, ...]:
    """Return an image, and for a segmentor a sample with its labels."""
    images = torch.randn(1, 3, side, side)
    if not hasattr(model, "loss"):
        return (images,)
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    size = images.shape[2:]
    sample = SegDataSample(metainfo=dict(img_shape=size, ori_shape=size, pad_shape=size))
    sample.gt_sem_seg = PixelData(data=torch.zeros(1, *size, dtype=torch.long))
    return images, [sample]


def backward(model: Any, images: Tensor, *samples: Any) -> None:
    """Run a step. The taps of a trunk are kept to its end, as a pyramid keeps them."""
    if samples:
        model.loss(images, *samples)["decode.loss_ce"].backward()
        return
    taps = model(images)
    sum(tap.sum() for tap in taps).backward()


def measure(case: dict[str, Any]) -> dict[str, float]:
    """Run a step, and return its seconds of the processor and its peak memory in GB."""
    if case["memory"]:
        bound = int(case["memory"] * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    model = build(case)
    backward(model, *make_batch(model, 64))  # initialises libraries
    batch = make_batch(model, case["size"])
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, on Linux
    at_rest = status_bytes("VmRSS")
    start = time.process_time()
    backward(model, *batch)
    seconds = time.process_time() - start
    peak = status_bytes("VmHWM") - at_rest
    return dict(cpu_seconds=round(seconds, 2), memory_gb=round(peak / 1e9, 3))


def run(case: dict[str, Any]) -> dict[str, float]:
    """Measure a case in a process of its own; one without memory has no measurements."""
    command = [sys.executable, "-W", "ignore", __file__, "--case", json.dumps(case)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        if "can't allocate memory" not in process.stderr:
            raise RuntimeError(f"{case}: {process.stderr[-2000:]}")
        return {}
    return json.loads(process.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--models", nargs="+", choices=["trunk", "semantic_fpn"], default=["trunk"])
    add("--archs", nargs="+", default=["n12"])
    add("--patch-sizes", nargs="+", type=int, default=[16])
    add("--sizes", nargs="+", type=int, default=[1024])
    add("--modes", nargs="+", choices=MODES, default=["False", "True", "bands"])
    add("--memory", type=float, default=0, help="GB that a process may allocate; 0: any number")
    add("--case", type=json.loads, help=argparse.SUPPRESS)
    add("--out")
    args = parser.parse_args()
    torch.set_num_threads(1)  # which the csv states
    if args.case:
        print(json.dumps(measure(args.case)))
        return
    has_windows = any(mode.startswith("windows") for mode in args.modes)
    if has_windows and args.models != ["semantic_fpn"]:
        parser.error("windows are for --models semantic_fpn")
    cases = itertools.product(args.models, args.archs, args.patch_sizes, args.sizes, args.modes)
    for values in cases:
        case = dict(zip(KEYS, values, strict=True))
        row = case | run(case | dict(memory=args.memory)) | origin()
        print(row, flush=True)
        write_row(Path(f"{args.out}.csv"), row, KEYS, COSTS)


if __name__ == "__main__":
    main()
