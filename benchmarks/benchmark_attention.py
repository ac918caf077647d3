"""Measure Table D.5 of the paper for each implementation of XCA: throughput and peak memory, by size and precision.

    python benchmarks/benchmark_attention.py --device cuda --out docs/benchmark/9-attention.csv

The classifier gets 64 images of 224, 384, 512 and 1024 pixels, as in the paper; --train computes gradients too. The
implementations alternate, so that a device that slows down slows all equally. A batch that does not fit is OOM. The
last lines report for each precision the fastest implementation by the ratio of tokens to channels, the basis of
`choose_implementation` in xcit_mm/models/attention.py. The csv names the device and the versions.
"""

import argparse
import csv
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from benchmark_report import processor
from torch import Tensor

from xcit_mm import XCiTClassifier
from xcit_mm.checks.preflight import check_device
from xcit_mm.models.attention import IMPLEMENTATIONS, choose_implementation
from xcit_mm.version import __version__

MEASURED = tuple(name for name in IMPLEMENTATIONS if name != "auto")
DTYPES = ("float32", "float16", "bfloat16")
WARM_UP = 3
Row = dict[str, str | float]


class Case:
    """A model on a batch, in one precision and with any implementation of its attention."""

    def __init__(self, model: XCiTClassifier, images: Tensor, dtype: str, train: bool) -> None:
        self.model, self.images, self.dtype, self.train = model, images, dtype, train

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.images.device.type, getattr(torch, self.dtype), enabled=self.dtype != "float32")

    def run(self, implementation: str) -> None:
        for block in self.model.blocks:
            block.attn.implementation = implementation
        with nullcontext() if self.train else torch.inference_mode(), self.autocast():
            out = self.model(self.images)
        if self.train:
            out.float().square().mean().backward()
            self.model.zero_grad()

    def milliseconds(self, implementation: str) -> float:
        """Measure the time of one batch, on a GPU between two events of its stream."""
        if not self.images.is_cuda:
            start = time.perf_counter()
            self.run(implementation)
            return 1e3 * (time.perf_counter() - start)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.run(implementation)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    def warm_up(self, implementation: str) -> float | str:
        """Run until libraries have chosen their kernels; return the peak memory of a run on a GPU in MB."""
        for _ in range(WARM_UP):
            self.run(implementation)
        if not self.images.is_cuda:
            return ""
        torch.cuda.reset_peak_memory_stats()
        self.run(implementation)
        return torch.cuda.max_memory_allocated() / 2**20

    def auto(self, tokens: int, channels: int) -> str:
        """Return the implementation that 'auto' selects."""
        with self.autocast():
            return choose_implementation(torch.empty(1, tokens, channels, device=self.images.device))


def measure(case: Case, repeats: int) -> list[Row]:
    """Measure every implementation; return a row for each."""
    peaks: dict[str, float | str] = {}
    for name in MEASURED:
        try:
            peaks[name] = case.warm_up(name)
        except torch.cuda.OutOfMemoryError:
            case.model.zero_grad()
            torch.cuda.empty_cache()
            peaks[name] = "OOM"
    times: dict[str, list[float]] = {name: [] for name in MEASURED if peaks[name] != "OOM"}
    for _ in range(repeats):
        for name, measured in times.items():
            measured.append(case.milliseconds(name))
    batch, _, side, _ = case.images.shape
    tokens, channels = (-(-side // case.model.patch_size)) ** 2, case.model.arch.embed_dim
    rows = []
    for name in MEASURED:
        mode = "train" if case.train else "inference"
        row: Row = dict(size=side, batch=batch, dtype=case.dtype, mode=mode, implementation=name)
        row |= dict(tokens=tokens, channels=channels, auto=case.auto(tokens, channels), peak_mb=peaks[name])
        row |= dict.fromkeys(("median_ms", "min_ms", "max_ms", "images_per_s"), "OOM")
        if measured := times.get(name):
            median = statistics.median(measured)
            row |= dict(median_ms=median, min_ms=min(measured), max_ms=max(measured), images_per_s=1e3 * batch / median)
        rows.append(row)
    return rows


def advice(rows: list[Row]) -> list[str]:
    """Return a line for each precision: the fastest implementation by the ratio of tokens to channels."""
    lines = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        fastest: dict[float, Row] = {}
        for row in rows:
            ratio = float(row["tokens"]) / float(row["channels"])
            if row["dtype"] == dtype and row["median_ms"] != "OOM":
                fastest[ratio] = min(fastest.get(ratio, row), row, key=lambda row: row["median_ms"])
        parts: list[str] = []
        before = None
        for ratio, row in sorted(fastest.items()):
            name = repr(row["implementation"])
            if before is None:
                parts.append(name)
            elif fastest[before]["implementation"] != row["implementation"]:
                # The change is somewhere between the two sizes.
                parts.append(f"{name} from {(before * ratio) ** 0.5:.2g} (between {before:.2g} and {ratio:.2g})")
            before = ratio
        now = ", ".join(f"{row['auto']!r} at {ratio:.2g}" for ratio, row in sorted(fastest.items()))
        lines.append(f"{dtype}: choose_implementation by tokens / channels: {', '.join(parts)}; now it is {now}")
    return lines


def table(rows: list[Row]) -> str:
    """Return Table D.5 in Markdown: images per second and peak memory by size, precision and implementation."""
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    header = ["precision", "implementation", *(f"{size}: im/s | MB" for size in sizes)]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * (2 + 2 * len(sizes))]
    for key in dict.fromkeys((row["dtype"], row["implementation"]) for row in rows):
        matching = [row for row in rows if (row["dtype"], row["implementation"]) == key]
        cells = [_cell(row[column]) for row in matching for column in ("images_per_s", "peak_mb")]
        lines.append(f"| {' | '.join((*key, *cells))} |")
    return "\n".join(lines)


def _cell(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.0f}"


def versions(device: str) -> Row:
    name = torch.cuda.get_device_name() if device == "cuda" else processor()
    return dict(device=name, torch=torch.__version__, cuda=torch.version.cuda or "", xcit_mm=__version__)


def write(rows: list[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="csv to write")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--arch", default="s12", help="default: %(default)s")
    parser.add_argument("--patch-size", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 384, 512, 1024], help="sides in pixels")
    parser.add_argument("--batch", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="float32, or a type of autocast")
    parser.add_argument("--train", action="store_true", help="compute gradients too")
    parser.add_argument("--repeats", type=int, default=10)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    try:
        check_device(args.device)
        model = XCiTClassifier(args.arch, args.patch_size)
    except ValueError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    model.to(args.device).train(args.train)
    rows: list[Row] = []
    for size in args.sizes:
        images = torch.randn(args.batch, 3, size, size, device=args.device)
        for dtype in args.dtypes:
            print(f"{size}x{size} {dtype}", file=sys.stderr)
            measured = measure(Case(model, images, dtype, args.train), args.repeats)
            constant = dict(arch=args.arch, patch_size=args.patch_size, **versions(args.device))
            rows += [row | constant for row in measured]
            write(rows, args.out)  # an interrupted run keeps its measurements
    print(f"{', '.join(map(str, versions(args.device).values()))}; batch {args.batch}, {rows[0]['mode']}\n")
    print(table(rows), *advice(rows), sep="\n")


if __name__ == "__main__":
    main()
