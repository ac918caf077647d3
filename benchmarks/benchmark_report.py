"""Write the tables and plots of benchmarks/benchmark.py, with the machine that measured them."""

import argparse
import csv
import platform
import re
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

__all__ = ["Result", "markdown", "processor", "write"]

Result = dict[str, str | float]
"""Model, image size and measurements."""


def environment(args: argparse.Namespace) -> str:
    found = []
    for package in ("torch", "xcit_mm", "timm", "mmpretrain", "mmdet", "mmsegmentation"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    machine = torch.cuda.get_device_name() if args.device == "cuda" else processor()
    return f"{date.today()}, {machine}, {torch.get_num_threads()} threads, {', '.join(found)}"


def processor() -> str:
    """Return the processor's name on Linux, its kind on other systems."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", info.read_text() if info.exists() else "", re.MULTILINE)
    return names[0] if names else f"{platform.machine()} CPU"


def markdown(rows: list[Result], args: argparse.Namespace) -> str:
    extra = [key for key in ("peak_mb", "saved_mb") if key in rows[0]]
    names = {"peak_mb": "peak memory (MB)", "saved_mb": "saved for backward (MB)"}
    header = [
        "model",
        "image",
        "ms per image: median (range)",
        f"to {rows[0]['model']}",
        *(names[key] for key in extra),
    ]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row in rows:
        cells = [row["model"], row["size"], f"{row['median_ms']:.0f} ({row['min_ms']:.0f}-{row['max_ms']:.0f})"]
        cells += [f"{row['ratio']:.2f}", *(f"{row[key]:.0f}" for key in extra)]
        lines.append(f"| {' | '.join(cells)} |")
    sizes = "several sizes" if len(args.sizes) > 1 else rows[0]["size"]
    title = f"## {args.mode.capitalize()}, {sizes}, XCiT {args.arch}/p{args.patch_size}"
    title += f", {args.dtype}" * (args.dtype != "float32") + ", compiled" * args.compile
    how = f"Batch {args.batch}, {args.dtype}; {args.repeats} alternating runs; {environment(args)}"
    return "\n".join([title, "", how, "", *lines, "", ""])


def write(rows: list[Result], args: argparse.Namespace) -> None:
    args.out.parent.mkdir(parents=True, exist_ok=True)
    md, csv_file, png, table = (
        args.out.with_name(f"{args.out.name}{end}") for end in (".md", ".csv", ".png", "-table.png")
    )
    md.write_text(markdown(rows, args))
    with csv_file.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    if len(args.sizes) > 1:
        draw(rows, args, png)
        draw_table(rows, table)


def draw(rows: list[Result], args: argparse.Namespace, path: Path) -> None:
    """Plot time and measured memory against resolution, as in the paper's Figures D.1 and 2."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {"median_ms": "ms per image", "peak_mb": "peak memory (MB)"}
    panels = {key: label for key, label in panels.items() if key in rows[0]}
    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 4), layout="constrained", squeeze=False)
    for axis, (key, label) in zip(axes[0], panels.items(), strict=True):
        for name in dict.fromkeys(row["model"] for row in rows):
            points = [(megapixels(row["size"]), row[key]) for row in rows if row["model"] == name]
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set(xlabel="image (megapixels)", ylabel=label, xscale="log", yscale="log", title=f"{args.mode}: {label}")
        axis.grid(alpha=0.3, which="both")
        axis.legend()
    figure.savefig(path, dpi=100)


def draw_table(rows: list[Result], path: Path) -> None:
    """Draw a table of images per second and measured memory, as in the paper's Table D.5."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes, models = (list(dict.fromkeys(row[key] for row in rows)) for key in ("size", "model"))
    by_place = {(row["model"], row["size"]): row for row in rows}
    columns = {"im/s": lambda row: f"{1e3 / row['median_ms']:.2f}"}
    if "peak_mb" in rows[0]:
        columns["MB"] = lambda row: f"{row['peak_mb']:.0f}"
    header = [f"{size}\n{name}" for size in sizes for name in columns]
    cells = [[show(by_place[model, size]) for size in sizes for show in columns.values()] for model in models]
    figure, axis = plt.subplots(figsize=(1.2 + 0.85 * len(header), 0.8 + 0.35 * len(models)), layout="constrained")
    axis.axis("off")
    table = axis.table(cells, rowLabels=models, colLabels=header, loc="center")
    table.scale(1, 1.5)
    for column in range(len(header)):
        table[0, column].set_height(2 * table[1, column].get_height())
    figure.savefig(path, dpi=100)


def megapixels(size: str) -> float:
    height, width = map(int, size.split("x"))
    return height * width / 1e6
