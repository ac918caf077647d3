"""Measure time and memory of backbones in one process: this XCiT and those of other projects.

    python benchmarks/benchmark.py --models xcit-auto timm-xcit --sizes 512 800x1344 --out name

Runs of the models alternate, so that a machine that slows down slows all models alike. Peak memory
excludes model and image. On a GPU it is the peak that torch allocated, on a CPU the peak of a fresh
process. `saved` is the memory that the forward pass keeps for backward. A run of more than half a
minute is not repeated, one above the limit is stated, and larger images of that model are not run.
Writes OUT.csv, in which rows of other models, sizes and batches stay. `ratio` is that of the least
times.
"""

import argparse
import functools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from benchmark_models import BUILDERS, TIMM
from csv_rows import ORIGIN, origin, write_row
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from tqdm import tqdm

Result = dict[str, Any]
"""Model, image size and measurements, or the limit that a run exceeded."""

REPEATED_SECONDS = 30
KEYS = ("model", "size", "batch")
COSTS = ("min_ms", "median_ms", "max_ms", "ratio", "saved_mb", "peak_mb", "limit", *ORIGIN)


class Case:
    """A model and an input."""

    def __init__(self, name: str, size: tuple[int, int], args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.args = args
        self.train = args.mode == "train"
        model = BUILDERS[name](args.arch, args.patch_size).to(args.device)
        model.train(self.train)  # which returns None in some backbones
        self.model = torch.compile(model) if args.compile else model
        self.image = torch.randn(args.batch, 3, *size, device=args.device)

    def run(self) -> None:
        half = self.args.dtype != "float32"
        # In inference mode, autocast would cast the weights again for every use.
        with (
            torch.set_grad_enabled(self.train),
            torch.autocast(self.args.device, getattr(torch, self.args.dtype), enabled=half),
        ):
            outputs = tree_flatten(self.model(self.image))[0]
        if self.train:
            sum(output.float().square().mean() for output in outputs).backward()
            self.model.zero_grad()
        if self.args.device == "cuda":
            torch.cuda.synchronize()

    def time(self) -> float:
        """Return the milliseconds per image of a run."""
        start = time.perf_counter()
        self.run()
        return 1e3 * (time.perf_counter() - start) / self.args.batch


def saved_bytes(model: nn.Module, run: Callable[[], object]) -> int:
    """Return the bytes that a forward pass keeps for backward, without those of the model."""
    state = (*model.parameters(), *model.buffers())
    storages_of_model = {tensor.untyped_storage().data_ptr() for tensor in state}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in storages_of_model:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        output = run()
    del output  # freed only now, so that no later storage reuses an address
    return sum(kept.values())


def peak_bytes(name: str, size: tuple[int, int], args: argparse.Namespace) -> int:
    """Return the peak memory of a run, without model and image."""
    if args.device == "cpu":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(_peak_of_process, (name, size, args))
    case = Case(name, size, args)
    case.run()
    torch.cuda.reset_peak_memory_stats()
    at_rest = torch.cuda.memory_allocated()
    case.run()
    return torch.cuda.max_memory_allocated() - at_rest


def _peak_of_process(name: str, size: tuple[int, int], args: argparse.Namespace) -> int:
    Case(name, (64, 64), args).run()  # initialises libraries and threads
    case = Case(name, size, args)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, on Linux
    at_rest = status_bytes("VmRSS")
    case.run()
    return status_bytes("VmHWM") - at_rest


def status_bytes(field: str) -> int:
    """Return a field of this process in /proc/self/status, such as 'VmRSS', in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def measure(size: tuple[int, int], args: argparse.Namespace, slow: set[str]) -> list[Result]:
    """Measure models in alternating runs at one image size, and add the names of slow models."""
    cases = {name: Case(name, size, args) for name in args.models if name not in slow}
    times: dict[str, list[float]] = {}
    for name, case in cases.items():
        if args.compile:
            case.run()  # minutes, in which it compiles
        first = case.time()  # which also initialises
        seconds = first * args.batch / 1e3
        if seconds > args.limit:
            slow.add(name)
        else:
            times[name] = [first] if seconds > REPEATED_SECONDS else []
    repeated = [name for name in times if not times[name]]
    for _ in tqdm(range(args.repeats), desc=name_of(size)):
        for name in repeated:
            times[name].append(cases[name].time())
    rows: list[Result] = []
    for name in times:
        least = min(times[name])
        row: Result = dict(model=name, size=name_of(size), batch=args.batch, min_ms=least)
        row |= dict(median_ms=statistics.median(times[name]), max_ms=max(times[name]))
        row["ratio"] = least / min(next(iter(times.values())))
        if args.mode == "train":
            forward = functools.partial(cases[name].model, cases[name].image)
            row["saved_mb"] = saved_bytes(cases[name].model, forward) / 2**20
        rows.append(row)
    cases.clear()
    if args.memory:
        for row in rows:
            row["peak_mb"] = peak_bytes(str(row["model"]), size, args) / 2**20
    for name in slow:
        limit = f"over {args.limit} s"
        rows.append(dict(model=name, size=name_of(size), batch=args.batch, limit=limit))
    return rows


def name_of(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def parse_size(size: str) -> tuple[int, int]:
    height, _, width = size.partition("x")
    return int(height), int(width or height)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    names = f"{', '.join(BUILDERS)}; ratios are to the first"
    models = ["xcit-auto", "xcit-plain"]
    add("--models", nargs="+", choices=BUILDERS, default=models, metavar="MODEL", help=names)
    add("--sizes", nargs="+", type=parse_size, default=[(800, 1344)], help="HxW or side, in pixels")
    add("--arch", default="s12", help="architecture of XCiT (default: %(default)s)")
    add("--patch-size", type=int, default=16, help="patch size of XCiT (default: %(default)s)")
    add("--batch", type=int, default=1)
    add("--mode", choices=["forward", "train"], default="forward")
    dtypes = ["float32", "bfloat16", "float16"]
    add("--dtype", choices=dtypes, default="float32", help="by autocast")
    add("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    add("--compile", action="store_true", help="torch.compile every model")
    add("--memory", action="store_true", help="also measure peak memory")
    add("--repeats", type=int, default=7)
    add("--limit", type=int, default=120, help="seconds of a run (default: %(default)s)")
    add("--out", type=Path, help="path of the csv without its suffix")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    problems = []
    for name in args.models:
        library = "timm" if name in TIMM else "mmdet"
        if not name.startswith("xcit") and not find_spec(library):
            problems.append(f"{name} needs {library}: pip install {library}")
    if problems:
        sys.exit("; ".join(problems))
    slow: set[str] = set()
    for size in args.sizes:
        for row in measure(size, args, slow):
            rounded = {
                key: round(value, 3) if isinstance(value, float) else value
                for key, value in row.items()
            }
            rounded |= origin(args.device)
            print(rounded, flush=True)
            if args.out:
                write_row(Path(f"{args.out}.csv"), rounded, KEYS, COSTS)


if __name__ == "__main__":
    main()
