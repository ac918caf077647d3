"""Make the README's sentences and plot of speed from docs/benchmark/*.csv, which `make bench` measures."""

import csv
import hashlib
import math
from pathlib import Path

__all__ = ["draw", "is_current", "report"]

FOLDER, PLOT = Path("docs") / "benchmark", Path("docs") / "speed.png"
FORWARD, TRAIN, RESOLUTION = "1-forward.csv", "3-train.csv", "4-resolution.csv"
TITLES = {
    "xcit-auto": "this XCiT",
    "timm-xcit": "timm's XCiT, without a pyramid,",
    "swin-t": "mmdet's Swin-T",
    "resnet-50": "mmdet's ResNet-50",
}

PEERS = ("timm-xcit", "swin-t", "resnet-50")

Row = dict[str, str]


def read(root: Path, name: str) -> dict[tuple[str, str], Row]:
    """Return the rows of a csv by model and size."""
    with (root / FOLDER / name).open(newline="") as file:
        return {(row["model"], row["size"]): row for row in csv.DictReader(file)}


def report(root: Path) -> str:
    """Return sentences on time and memory at 800x1344, and on the growth of time with the image.

    Raises:
        ValueError: If a measurement for a sentence is missing.
    """

    def value(name: str, model: str, size: str, key: str = "median_ms") -> float:
        row = read(root, name).get((model, size))
        if row is None:
            raise ValueError(f"{FOLDER / name} has no {model} at {size}: make bench")
        return float(row[key])

    peers = [f"{title} {value(FORWARD, model, '800x1344'):.0f} ms" for model, title in TITLES.items() if model in PEERS]
    saved = [value(TRAIN, model, "800x1344", "saved_mb") for model in ("xcit-auto", "xcit-auto-cp", "swin-t")]
    small, large = (value(RESOLUTION, "xcit-auto", size) for size in ("512x512", "3072x3072"))
    timm = value(RESOLUTION, "timm-xcit", "3072x3072")
    power = math.log(large / small) / math.log((3072 / 512) ** 2)
    return "\n".join(
        [
            f"XCiT-S12/16 takes {value(FORWARD, 'xcit-auto', '800x1344'):.0f} ms for an image of 800x1344, "
            f"pyramid included, {', '.join(peers[:-1])} and {peers[-1]}.",
            f"Training keeps {saved[0]:.0f} MB for the backward pass of two images, {saved[1]:.0f} MB "
            f"with `with_cp=True`, Swin-T {saved[2]:.0f} MB.",
            f"From 512x512 to 3072x3072, time grows as the number of pixels to the power {power:.2f}. "
            f"The largest image takes {large / 1e3:.0f} s, with timm's XCiT {timm / large:.1f} times as long.",
        ]
    )


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
