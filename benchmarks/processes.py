"""Measure how long one large image takes in several processes, each with one thread.

    python benchmarks/processes.py --processes 1 2 --sizes 4096 --repeats 3 --out name

The model is Semantic FPN with S12/16 and 150 classes, and random weights. `trunk_seconds` are of
the trunk over the whole image, `seconds` of trunk, neck and head, until the last process is done.
`cpu_seconds` are those of the processor that the busiest process takes for all of it.
Imports, loading and the first small image are excluded, and so are reading and writing of files
other than the taps. Runs with different numbers of processes alternate, and the least of each is
reported. `ratio` is to the first number of processes. Writes OUT.csv.
"""

import argparse
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from csv_rows import ORIGIN, origin, write_row
from torch.multiprocessing import start_processes

CONFIG = "semantic_fpn/fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py"
CONFIGS = Path(__file__).parents[1] / "configs"
KEYS = ("size", "processes")
COSTS = ("trunk_seconds", "seconds", "cpu_seconds", "ratio", *ORIGIN)


def build() -> Any:
    """Return a predictor with random weights."""
    from mmengine.registry import MODELS, init_default_scope

    from xcit_mm import Predictor
    from xcit_mm.utils.configs import read_config
    from xcit_mm.utils.output import quiet

    torch.manual_seed(0)
    cfg = read_config(CONFIGS / CONFIG)
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.init_cfg = None
    with quiet():
        model: Any = MODELS.build(cfg.model)
        model.init_weights()
    return Predictor(model.eval(), cfg, device="cpu")


def predict(predictor: Any, side: int, folder: Path, group: Any) -> list[float]:
    """Predict an image of noise, and return seconds: of the trunk, of all, of the processor."""
    from xcit_mm.prediction.sources import ImageSource
    from xcit_mm.prediction.view import choose_view
    from xcit_mm.prediction.whole import SeenWhole
    from xcit_mm.utils.ranks import Ranks

    ranks = Ranks(group)
    image = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    view = choose_view(predictor.cfg, predictor.model, predictor.preprocess, True, scale=1)
    ranks.wait()
    start = time.perf_counter()
    cpu_start = time.process_time()
    with SeenWhole(predictor, ImageSource(image), view, folder, group) as seen:
        trunk = time.perf_counter() - start
        for row in seen.spread(0)[ranks.rank :: ranks.size]:
            for _ in seen.parts((row, column) for column in seen.spread(1)):
                pass
    cpu = max(ranks.gather(time.process_time() - cpu_start))
    return [trunk, time.perf_counter() - start, cpu]


def run_rank(rank: int, count: int, side: int, folder: Path) -> None:
    torch.set_num_threads(1)
    group = None
    if count > 1:
        store = dist.FileStore(str(folder / "store"), count)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=count, timeout=timedelta(days=1)
        )
        group = dist.group.WORLD
    predictor = build()
    predict(predictor, 256, folder, group)  # initialises libraries
    seconds = predict(predictor, side, folder, group)
    if group is not None:
        dist.destroy_process_group()
    if rank == 0:
        (folder / "seconds").write_text(" ".join(map(str, seconds)))


def run(count: int, side: int) -> list[float]:
    """Measure one run in new processes."""
    with tempfile.TemporaryDirectory() as folder:
        start_processes(run_rank, (count, side, Path(folder)), count, start_method="spawn")
        return [float(value) for value in (Path(folder) / "seconds").read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--processes", nargs="+", type=int, default=[1, 2])
    add("--sizes", nargs="+", type=int, default=[4096])
    add("--repeats", type=int, default=3)
    add("--out", required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)  # which the csv states
    for side in args.sizes:
        times: dict[int, list[list[float]]] = {count: [] for count in args.processes}
        for _ in range(args.repeats):
            for count in args.processes:
                times[count].append(run(count, side))
        least = {count: list(map(min, zip(*times[count], strict=True))) for count in times}
        for count, measured in least.items():
            names = ("trunk_seconds", "seconds", "cpu_seconds")
            seconds = {name: round(x, 1) for name, x in zip(names, measured, strict=True)}
            ratio = round(measured[1] / least[args.processes[0]][1], 3)
            row = dict(size=side, processes=count) | seconds | dict(ratio=ratio) | origin()
            print(row, flush=True)
            write_row(Path(f"{args.out}.csv"), row, KEYS, COSTS)


if __name__ == "__main__":
    main()
