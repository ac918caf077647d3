"""The plot of time and memory of large images, docs/whole.png."""

from pathlib import Path
from typing import Any

from benchmark_tables import WHOLE, read_whole


def draw_whole(path: Path) -> None:
    """Plot time per megapixel, level if linear, and memory against the side of the image."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (time, memory) = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    for model, title in WHOLE.items():
        rows = [row for row in read_whole() if row["model"] == model and not row.get("limit")]
        sides = [int(row["size"].partition("x")[0]) for row in rows]
        milliseconds = [float(row["min_ms"]) for row in rows]
        costs = [1e3 * ms / side**2 for ms, side in zip(milliseconds, sides, strict=True)]
        is_near = model in ("xcit-trunk", "xcit-tiles")  # whose titles would cover each other
        draw_line(time, sides, costs, "" if is_near else title)
        draw_line(memory, sides, [float(row["peak_mb"]) / 1024 for row in rows], title)
    time.set(title="seconds per megapixel")
    memory.set(title="GiB of memory", yscale="log")
    ticks = [1024, 2048, 4096, 8192, 20000]
    for axis in (time, memory):
        axis.set(xlabel="side of the image in pixels", xscale="log", xlim=(900, 100000))
        axis.set_xticks(ticks, map(str, ticks), minor=False)
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=90)


def draw_line(axis: Any, sides: list[int], values: list[float], title: str) -> None:
    """Plot values against sides, with a title at the end; XCiT's whole image is bold."""
    is_bold = title == WHOLE["xcit-bands"]
    (line,) = axis.plot(sides, values, "o-", markersize=4, linewidth=3 if is_bold else 1.5)
    weight = "bold" if is_bold else "normal"
    place = dict(xytext=(7, -3), textcoords="offset points")
    end = (sides[-1], values[-1])
    axis.annotate(title, end, **place, color=line.get_color(), fontsize=9, weight=weight)
