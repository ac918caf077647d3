"""Make the README's table, sentence and plot of speed from docs/benchmark/*.csv, which `make bench` measures."""

import csv
import hashlib
import math
from pathlib import Path

__all__ = ["draw", "is_current", "report"]

FOLDER, PLOT = Path("docs") / "benchmark", Path("docs") / "speed.png"
FORWARD, TRAIN, RESOLUTION = "1-forward.csv", "3-train.csv", "4-resolution.csv"
TITLES = {
    "xcit-auto": "this XCiT, pyramid included",
    "xcit-auto-cp": "the same with `with_cp=True`",
    "timm-xcit": "timm's XCiT, without a pyramid",
    "swin-t": "mmdet's Swin-T",
    "resnet-50": "mmdet's ResNet-50",
}

Row = dict[str, str]


def read(root: Path, name: str) -> dict[tuple[str, str], Row]:
    """Return the rows of a csv by model and size."""
    with (root / FOLDER / name).open(newline="") as file:
        return {(row["model"], row["size"]): row for row in csv.DictReader(file)}


def cell(row: Row | None, key: str) -> str:
    return f"{float(row[key]):.0f}" if row else ""


def report(root: Path) -> str:
    """Return the table of speed at 800x1344 and the sentence on the growth of time with the image.

    Raises:
        ValueError: If a measurement for the sentence is missing.
    """
    forward, train = read(root, FORWARD), read(root, TRAIN)
    lines = [
        "| S12/16, 800x1344 | inference, ms per image | training, ms per image | kept for backward, 2 images |",
        "|---|---|---|---|",
    ]
    for model, title in TITLES.items():
        tested, trained = forward.get((model, "800x1344")), train.get((model, "800x1344"))
        kept = f"{cell(trained, 'saved_mb')} MB" if trained else ""
        lines.append(f"| {title} | {cell(tested, 'median_ms')} | {cell(trained, 'median_ms')} | {kept} |")
    sizes = read(root, RESOLUTION)
    places = (("xcit-auto", "512x512"), ("xcit-auto", "3072x3072"), ("timm-xcit", "3072x3072"))
    for model, size in places:
        if (model, size) not in sizes:
            raise ValueError(f"{FOLDER / RESOLUTION} has no {model} at {size}: make bench")
    small, large, timm = (float(sizes[place]["median_ms"]) for place in places)
    power = math.log(large / small) / math.log((3072 / 512) ** 2)
    growth = (
        f"From 512x512 to 3072x3072, time grows as the number of pixels to the power {power:.2f}. "
        f"The largest image takes {large / 1e3:.0f} s; timm's XCiT takes {timm / large:.1f} times as long."
    )
    return "\n".join([*lines, "", growth])


def digest(root: Path) -> str:
    return hashlib.sha256((root / FOLDER / RESOLUTION).read_bytes()).hexdigest()


def is_current(root: Path) -> bool:
    """Return whether the plot was drawn from the current csv."""
    from PIL import Image

    path = root / PLOT
    return path.is_file() and Image.open(path).info.get("Source") == digest(root)


def draw(root: Path) -> None:
    """Plot time per megapixel against the size of the image. A cost that is linear in the pixels is level."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = read(root, RESOLUTION)
    figure, axis = plt.subplots(figsize=(6.4, 3), layout="constrained")
    axis.set_xscale("log")
    ends: dict[str, tuple[float, str, bool]] = {}
    for model in TITLES:
        sides = [int(size.split("x")[0]) for name, size in rows if name == model]
        pixels = [side**2 / 1e6 for side in sides]
        costs = [float(rows[model, f"{side}x{side}"]["median_ms"]) / 1e3 / side**2 * 1e6 for side in sides]
        ours = model == "xcit-auto"
        if sides:
            axis.plot(pixels, costs, f"C{len(ends)}o-", markersize=4, linewidth=2.5 if ours else 1.5, zorder=2 + ours)
            axis.set_xticks(pixels, [f"{side}²" for side in sides])
            ends[model] = costs[-1], f"C{len(ends)}", ours
    axis.set(xlabel="image, pixels", ylabel="seconds per megapixel", ylim=(0, None))
    lowest, gap = 0.0, 0.07 * axis.get_ylim()[1]  # so that the names beside the lines do not overlap
    for model, (cost, color, ours) in sorted(ends.items(), key=lambda item: item[1]):
        lowest = max(cost, lowest + gap)
        name, weight = TITLES[model].partition(",")[0], "bold" if ours else "normal"
        axis.annotate(
            name, (1, lowest), (4, 0), axis.get_yaxis_transform(), "offset points",
            color=color, weight=weight, va="center", annotation_clip=False,
        )  # fmt: skip
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    figure.savefig(root / PLOT, dpi=150, metadata={"Source": digest(root)})
    plt.close(figure)
