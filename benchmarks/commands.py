"""Measure what a user runs: `xcit-mm raster` on a GeoTIFF, whole and in tiles, and the model in
memory.

    python benchmarks/commands.py --models semantic_fpn mask_rcnn --sizes 2048 4096 --out name

The models are the published recipes of S12/16 without training: Semantic FPN and UperNet with 150
classes of ADE20k, Mask R-CNN with 80 of COCO. Random weights cost as much as trained ones, except
for the objects that a detector finds: these find none. Each run is a process of its own: `seconds`
are of all of it, with imports, loading and writing, and `memory_gb` is its peak resident memory.
`files_gb` is the most that stood beside the result on the disk at one time. Writes OUT.csv, in
which the rows of other models, sizes and modes stay.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from csv_rows import ORIGIN, origin, write_row

ROOT = Path(__file__).parents[1]
CASE = ("model", "size", "mode", "window")
COSTS = ("seconds", "cpu_seconds", "memory_gb", "files_gb", *ORIGIN)
CONFIGS = {
    "semantic_fpn": "semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py",
    "upernet": "upernet/upernet_xcit-s12-p16_8xb2-160k_ade20k-512x512.py",
    "mask_rcnn": "mask_rcnn/mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py",
}
MODES = {
    "whole": ("--whole", "--scale", "1"),
    "tiles": ("--no-whole", "--scale", "1", "--tile", "512"),
}
IN_MEMORY = """
import sys
from xcit_mm import Predictor
from xcit_mm.utils.configs import read_config
from xcit_mm.models.build import load_model
import rasterio
raster, config, checkpoint, out = sys.argv[1:]
cfg = read_config(config)
for step in list(cfg.test_dataloader.dataset.pipeline):
    if step["type"] == "Resize":
        cfg.test_dataloader.dataset.pipeline.remove(step)
predictor = Predictor(load_model(cfg, checkpoint), cfg)
with rasterio.open(raster) as file:
    image = file.read()[::-1].transpose(1, 2, 0).copy()
predictor(image)
"""


def write_raster(path: Path, side: int) -> None:
    """Write a GeoTIFF of smooth noise in the size of (side, side), three bands of 8 bits."""
    import rasterio
    from rasterio.transform import from_origin

    rng = np.random.default_rng(0)
    profile = dict(driver="GTiff", height=side, width=side, count=3, dtype="uint8")
    profile |= dict(tiled=True, blockxsize=512, blockysize=512, compress="DEFLATE")
    place = dict(crs="EPSG:32632", transform=from_origin(500000, 5500000, 0.1, 0.1))
    with rasterio.open(path, "w", **profile, **place) as file:
        for top in range(0, side, 512):
            height = min(512, side - top)
            coarse = rng.integers(0, 256, (3, -(-height // 8), -(-side // 8)), np.uint8)
            pixels = coarse.repeat(8, axis=1).repeat(8, axis=2)[:, :height, :side]
            window = rasterio.windows.Window(0, top, side, height)
            file.write(pixels, window=window)


def write_checkpoint(config: Path, path: Path) -> None:
    """Write the state of a model with random weights."""
    from mmengine.registry import MODELS, init_default_scope

    from xcit_mm.utils.configs import read_config
    from xcit_mm.utils.output import quiet

    torch.manual_seed(0)
    cfg = read_config(config)
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.init_cfg = None
    with quiet():
        model: Any = MODELS.build(cfg.model)
        model.init_weights()
    torch.save(dict(state_dict=model.state_dict()), path)


def folder_size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:  # it has just moved
            continue
    return size


def run(command: Sequence[str | Path], folder: Path, limit: float) -> dict[str, float]:
    """Run a command, and return its seconds, its peak memory, and the most in its folder."""
    sizes = [0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            sizes.append(folder_size(folder))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    start = time.perf_counter()
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    timer = threading.Timer(limit, process.kill)
    timer.start()
    errors = process.stderr.read() if process.stderr else ""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    timer.cancel()
    ended.set()
    watcher.join()
    if status:
        raise RuntimeError(f"{command}: {errors[-2000:]}")
    cpu = usage.ru_utime + usage.ru_stime
    peak = usage.ru_maxrss * 1024
    measured = dict(
        seconds=seconds, cpu_seconds=cpu, memory_gb=peak / 1e9, files_gb=max(sizes) / 1e9
    )
    return {name: round(value, 2) for name, value in measured.items()}


def measure(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    for side in args.sizes:
        raster = folder / f"{side}.tif"
        write_raster(raster, side)
        for name in args.models:
            config = ROOT / "configs" / CONFIGS[name]
            checkpoint = folder / f"{name}.pth"
            if not checkpoint.exists():
                write_checkpoint(config, checkpoint)
            for mode in args.modes:
                out = folder / "out"
                out.mkdir()
                result = out / ("a.gpkg" if name == "mask_rcnn" else "a.tif")
                command = (sys.executable, "-c", IN_MEMORY, raster, config, checkpoint, result)
                if mode != "memory":
                    files = (config, raster, "--checkpoint", checkpoint, "--out", result)
                    options = (*MODES[mode], "--device", args.device)
                    if args.window != "default":
                        options += ("--window", args.window)
                    command = (sys.executable, "-m", "xcit_mm", "raster", *files, *options)
                measured = run(command, out, args.limit)
                shutil.rmtree(out)
                yield dict(model=name, size=side, mode=mode, window=args.window) | measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=CONFIGS, default=["semantic_fpn"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[2048])
    modes = (*MODES, "memory")
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes)
    parser.add_argument("--window", default="default", help="side in pixels, for the mode whole")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--limit", type=float, default=7200, help="seconds of one run")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for row in measure(args, Path(folder)):
            print(row, flush=True)
            write_row(Path(f"{args.out}.csv"), row | origin(args.device), CASE, COSTS)


if __name__ == "__main__":
    main()
