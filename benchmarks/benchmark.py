"""Measure time and memory of backbones in one process: this XCiT and installed backbones of other projects.

    python benchmarks/benchmark.py --models xcit-auto timm-xcit swin-t --sizes 512 800x1344 --out docs/benchmark/name

Runs of the models alternate, so that a machine that slows down slows all models alike. The table shows
median and range. Peak memory excludes model and image. On a GPU it is the peak that torch allocated, on
a CPU the peak of a fresh process. `saved` is the memory that the forward pass keeps for backward. Writes
OUT.md, OUT.csv and, for several sizes, the plots OUT.png and OUT-table.png.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from benchmark_models import BUILDERS
from benchmark_report import Result, markdown, write
from torch import Tensor, nn
from tqdm import tqdm


def flatten(output: object) -> list[Tensor]:
    """Return the tensors in nested outputs."""
    if isinstance(output, Tensor):
        return [output]
    return [tensor for item in output for tensor in flatten(item)]


class Case:
    """A model and an input."""

    def __init__(self, name: str, size: tuple[int, int], args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.args, self.train = args, args.mode == "train"
        model = BUILDERS[name](args.arch, args.patch_size).to(args.device)
        # The train() of some backbones returns None.
        model.train(self.train)
        self.model = torch.compile(model) if args.compile else model
        self.image = torch.randn(args.batch, 3, *size, device=args.device)

    def run(self) -> None:
        half = self.args.dtype != "float32"
        with torch.autocast(self.args.device, getattr(torch, self.args.dtype), enabled=half):
            if self.train:
                loss = sum(t.float().square().mean() for t in flatten(self.model(self.image)))
            else:
                with torch.no_grad():  # in inference mode, autocast would cast the weights again for every use
                    self.model(self.image)
        if self.train:
            loss.backward()
            self.model.zero_grad()
        if self.args.device == "cuda":
            torch.cuda.synchronize()

    def time(self) -> float:
        """Return the seconds of a run."""
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start


def saved_bytes(model: nn.Module, run: Callable[[], object]) -> int:
    """Return the bytes that a forward pass keeps for backward, without parameters and buffers of the model."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run()
    del output  # freed only now, so that no later storage reuses an address
    return sum(kept.values())


def peak_bytes(name: str, size: tuple[int, int], args: argparse.Namespace) -> int:
    """Return the peak memory of a run, without model and image."""
    if args.device == "cuda":
        case = Case(name, size, args)
        case.run()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        case.run()
        return torch.cuda.max_memory_allocated() - before
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_rss, (name, size, args))


def _peak_rss(name: str, size: tuple[int, int], args: argparse.Namespace) -> int:
    Case(name, (64, 64), args).run()  # initialises libraries and threads
    case = Case(name, size, args)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak, on Linux
    before = memory("VmRSS")
    case.run()
    return memory("VmHWM") - before


def memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def measure(size: tuple[int, int], args: argparse.Namespace) -> list[Result]:
    """Measure each installed model at one image size.

    Raises:
        ModuleNotFoundError: If none of the models is installed.
    """
    cases = {}
    for name in args.models:
        try:
            cases[name] = Case(name, size, args)
            cases[name].run()
        except ModuleNotFoundError as error:
            print(f"{name}: not measured, {error}")
            cases.pop(name, None)
    if not cases:
        raise ModuleNotFoundError(f"{', '.join(args.models)} are not installed: install one or add xcit-auto")
    times = {name: [] for name in cases}
    for _ in tqdm(range(args.repeats)):
        for name, case in cases.items():
            times[name].append(case.time())
    rows = []
    for name, seconds in times.items():
        row = dict(
            model=name, size=f"{size[0]}x{size[1]}", median_ms=1e3 * statistics.median(seconds) / args.batch,
            min_ms=1e3 * min(seconds) / args.batch, max_ms=1e3 * max(seconds) / args.batch,
        )  # fmt: skip
        if args.mode == "train":
            case = cases[name]
            row["saved_mb"] = saved_bytes(case.model, lambda case=case: case.model(case.image)) / 2**20
        rows.append(row)
    cases.clear()
    if args.memory:
        for row in rows:
            row["peak_mb"] = peak_bytes(row["model"], size, args) / 2**20
    for row in rows:
        row["ratio"] = row["median_ms"] / rows[0]["median_ms"]
    return rows


def parse_size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    return int(height), int(width or height)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=BUILDERS, default=["xcit-auto", "xcit-plain"], metavar="MODEL",
                        help=f"{', '.join(BUILDERS)}; ratios are to the first")  # fmt: skip
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[(800, 1344)], help="HxW or side, in pixels")
    parser.add_argument("--arch", default="s12", help="architecture of XCiT (default: %(default)s)")
    parser.add_argument("--patch-size", type=int, default=16, help="patch size of XCiT (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--mode", choices=["forward", "train"], default="forward")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="by autocast")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile every model")
    parser.add_argument("--memory", action="store_true", help="also measure peak memory")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="path of the written files without suffix")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    rows = []
    for size in args.sizes:
        print(f"\n{size[0]}x{size[1]}", file=sys.stderr)
        try:
            rows += measure(size, args)
        except ModuleNotFoundError as error:
            sys.exit(f"{type(error).__name__}: {error}")
        if args.out:  # after every size, so that an interrupted run keeps its results
            write(rows, args)
    print(f"\n\n{markdown(rows, args)}")


if __name__ == "__main__":
    main()
