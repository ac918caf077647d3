"""Table D.5 of the paper for the forms of XCiT's attention: images per second and peak memory, by size and precision.

    python benchmarks/benchmark_forms.py --device cuda --out docs/benchmark/9-forms.csv

The classifier takes 64 images of 224, 384, 512 and 1024 pixels, as in the paper; with --train gradients are computed
too. The forms alternate, so that a device that slows down slows all alike; a batch that does not fit is OOM. What is
printed last says for each precision from which ratio of tokens to channels on a form was the fastest: by that
`choose_form` of xcit_mm/models/attention.py is set. The csv names the device and the versions.
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
from xcit_mm.models.attention import choose_form
from xcit_mm.version import __version__

FORMS = ("plain", "gram", "covariance")
DTYPES = ("float32", "float16", "bfloat16")
WARM_UP = 3
Row = dict[str, str | float]


class Case:
    """A model on a batch, in one precision and in any form of its attention."""

    def __init__(self, model: XCiTClassifier, images: Tensor, dtype: str, train: bool) -> None:
        self.model, self.images, self.dtype, self.train = model, images, dtype, train

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.images.device.type, getattr(torch, self.dtype), enabled=self.dtype != "float32")

    def run(self, form: str) -> None:
        for block in self.model.blocks:
            block.attn.form = form
        with nullcontext() if self.train else torch.inference_mode(), self.autocast():
            out = self.model(self.images)
        if self.train:
            out.float().square().mean().backward()
            self.model.zero_grad()

    def milliseconds(self, form: str) -> float:
        """Of one batch, on a GPU between two events of its stream."""
        if not self.images.is_cuda:
            start = time.perf_counter()
            self.run(form)
            return 1e3 * (time.perf_counter() - start)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.run(form)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    def warm_up(self, form: str) -> float | str:
        """Run until libraries have chosen their kernels; gives what a GPU's memory holds at most in a run, in MB."""
        for _ in range(WARM_UP):
            self.run(form)
        if not self.images.is_cuda:
            return ""
        torch.cuda.reset_peak_memory_stats()
        self.run(form)
        return torch.cuda.max_memory_allocated() / 2**20

    def chosen(self, tokens: int, channels: int) -> str:
        """The form that 'auto' takes now."""
        with self.autocast():
            return choose_form(torch.empty(1, tokens, channels, device=self.images.device))


def measure(case: Case, repeats: int) -> list[Row]:
    """A row a form."""
    peaks: dict[str, float | str] = {}
    for form in FORMS:
        try:
            peaks[form] = case.warm_up(form)
        except torch.cuda.OutOfMemoryError:
            case.model.zero_grad()
            torch.cuda.empty_cache()
            peaks[form] = "OOM"
    times: dict[str, list[float]] = {form: [] for form in FORMS if peaks[form] != "OOM"}
    for _ in range(repeats):
        for form, found in times.items():
            found.append(case.milliseconds(form))
    batch, _, side, _ = case.images.shape
    tokens, channels = (-(-side // case.model.patch_size)) ** 2, case.model.arch.embed_dim
    rows = []
    for form in FORMS:
        row: Row = dict(
            size=side, batch=batch, dtype=case.dtype, mode="train" if case.train else "inference", form=form
        )
        row |= dict(tokens=tokens, channels=channels, auto=case.chosen(tokens, channels), peak_mb=peaks[form])
        found = times.get(form)
        row |= dict.fromkeys(("median_ms", "min_ms", "max_ms", "images_per_s"), "OOM")
        if found:
            median = statistics.median(found)
            row |= dict(median_ms=median, min_ms=min(found), max_ms=max(found), images_per_s=1e3 * batch / median)
        rows.append(row)
    return rows


def advice(rows: list[Row]) -> list[str]:
    """For each precision a line: which form was the fastest from which ratio of tokens to channels on."""
    lines = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        fastest: dict[float, Row] = {}
        for row in rows:
            ratio = float(row["tokens"]) / float(row["channels"])
            if row["dtype"] == dtype and row["median_ms"] != "OOM":
                fastest[ratio] = min(fastest.get(ratio, row), row, key=lambda one: one["median_ms"])
        parts: list[str] = []
        before = None
        for ratio, row in sorted(fastest.items()):
            if before is None:
                parts.append(f"{row['form']!r}")
            elif fastest[before]["form"] != row["form"]:
                # The change is somewhere between the two sizes.
                parts.append(
                    f"{row['form']!r} from {(before * ratio) ** 0.5:.2g} (between {before:.2g} and {ratio:.2g})"
                )
            before = ratio
        now = ", ".join(f"{row['auto']!r} at {ratio:.2g}" for ratio, row in sorted(fastest.items()))
        lines.append(f"{dtype}: choose_form by tokens / channels: {', '.join(parts)}; now it is {now}")
    return lines


def table(rows: list[Row]) -> str:
    """In Markdown, a line per precision and form, as Table D.5: images per second and peak memory of each size."""
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    header = ["precision", "form", *(f"{size}: im/s | MB" for size in sizes)]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * (2 + 2 * len(sizes))]
    for dtype, form in dict.fromkeys((row["dtype"], row["form"]) for row in rows):
        found = [row for row in rows if (row["dtype"], row["form"]) == (dtype, form)]
        cells = [_cell(row[key]) for row in found for key in ("images_per_s", "peak_mb")]
        lines.append(f"| {dtype} | {form} | {' | '.join(cells)} |")
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
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES, help="float32, and others by autocast")
    parser.add_argument("--train", action="store_true", help="gradients too")
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
            found = measure(Case(model, images, dtype, args.train), args.repeats)
            rows += [dict(row, arch=args.arch, patch_size=args.patch_size, **versions(args.device)) for row in found]
            write(rows, args.out)  # a run that is stopped keeps what it has measured
    print(f"{', '.join(map(str, versions(args.device).values()))}; batch {args.batch}, {rows[0]['mode']}\n")
    print(table(rows), *advice(rows), sep="\n")


if __name__ == "__main__":
    main()
