"""Time and memory of backbones, side by side in one process: XCiT in its forms and the peers that are installed.

    python benchmarks/benchmark.py --models xcit-auto timm-xcit swin-t --sizes 512 800x1344 --out docs/benchmark/name

Runs of the models alternate, so that a machine that slows down slows all alike; the table gives the
median and the range. Memory on a GPU is the peak that torch allocated; on CPU, how far the peak of a
fresh process lies above that process with the model and the image in it. `saved` is what the
forward pass keeps for backward. Writes OUT.md, OUT.csv and, for several sizes, the plots OUT.png
and OUT-table.png.
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
from mmengine.utils import ProgressBar
from torch import Tensor, nn


def maps_of(output: object) -> list[Tensor]:
    """The tensors among a backbone's outputs."""
    if isinstance(output, Tensor):
        return [output]
    return [tensor for item in output for tensor in maps_of(item)]


class Case:
    """One model on one input, as often as asked."""

    def __init__(self, name: str, size: tuple[int, int], args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.args, self.train = args, args.mode == "train"
        model = BUILDERS[name](args.arch, args.patch_size).to(args.device)
        # Not every peer's train() and eval() return the model.
        model.train(self.train)
        self.model = torch.compile(model) if args.compile else model
        self.image = torch.randn(args.batch, 3, *size, device=args.device)

    def run(self) -> None:
        half = self.args.dtype != "float32"
        with torch.autocast(self.args.device, getattr(torch, self.args.dtype), enabled=half):
            if self.train:
                loss = sum(m.float().square().mean() for m in maps_of(self.model(self.image)))
            else:
                with torch.inference_mode():
                    self.model(self.image)
        if self.train:
            loss.backward()
            self.model.zero_grad()
        if self.args.device == "cuda":
            torch.cuda.synchronize()

    def timed(self) -> float:
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start

    def saved_bytes(self) -> int:
        return saved_bytes(self.model, lambda: self.model(self.image))


def saved_bytes(model: nn.Module, run: Callable[[], object]) -> int:
    """Bytes that a forward pass keeps for backward, parameters and buffers of the model not counted."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run()
    del output  # freed only now, lest a storage be counted twice at one address
    return sum(kept.values())


def peak_bytes(name: str, size: tuple[int, int], args: argparse.Namespace) -> int:
    """Peak memory of one run beyond the model and the image."""
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
    Case(name, (64, 64), args).run()  # libraries and threads are set up
    case = Case(name, size, args)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here: Linux
    before = _memory("VmRSS")
    case.run()
    return _memory("VmHWM") - before


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def measure(size: tuple[int, int], args: argparse.Namespace) -> list[Result]:
    """A row a model for one image size.

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
        raise ModuleNotFoundError(f"none of {', '.join(args.models)} is installed: add others, such as xcit-auto")
    times = {name: [] for name in cases}
    progress = ProgressBar(args.repeats * len(cases))
    for _ in range(args.repeats):
        for name, case in cases.items():
            times[name].append(case.timed())
            progress.update()
    rows = []
    for name, seconds in times.items():
        row = dict(
            model=name, size=f"{size[0]}x{size[1]}", median_ms=1e3 * statistics.median(seconds) / args.batch,
            min_ms=1e3 * min(seconds) / args.batch, max_ms=1e3 * max(seconds) / args.batch,
        )  # fmt: skip
        if args.mode == "train":
            row["saved_mb"] = cases[name].saved_bytes() / 2**20
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
                        help=f"of {', '.join(BUILDERS)}; ratios are to the first")  # fmt: skip
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[(800, 1344)], help="HxW or a side, in pixels")
    parser.add_argument("--arch", default="s12", help="of XCiT (default: %(default)s)")
    parser.add_argument("--patch-size", type=int, default=16, help="of XCiT (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--mode", choices=["forward", "train"], default="forward")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="by autocast")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile every model")
    parser.add_argument("--memory", action="store_true", help="measure the peak too, on CPU in fresh processes")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="where to write OUT.md, OUT.csv and OUT.png")
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
        if args.out:  # after every size: a run that is stopped keeps what it has measured
            write(rows, args)
    print(f"\n\n{markdown(rows, args)}")


if __name__ == "__main__":
    main()
