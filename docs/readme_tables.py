"""Write the measurements of `make bench` into README.md, and the tables of models into
docs/model-zoo.md.

    python docs/readme_tables.py            # replaces the blocks between their comments, draws
    docs/speed.png python docs/readme_tables.py --check    # changes nothing, exits with 1 if a
    block is outdated

Models come from configs/*/metafile.yml, speed and scores of the demos from docs/benchmark/*.csv.
"""

import csv
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "docs" / "benchmark"
TASKS = {
    "mask_rcnn": "Mask R-CNN 3x, COCO val2017",
    "semantic_fpn": "Semantic FPN 80k, ADE20k val, single scale",
    "upernet": "UperNet 160k, ADE20k val, single scale",
}
"""Titles of the folders of published models."""
TITLES = {
    "xcit-auto": "this XCiT",
    "timm-xcit": "timm's XCiT, without a pyramid",
    "swin-t": "mmdet's Swin-T",
    "resnet-50": "mmdet's ResNet-50",
}
"""Names of the models of benchmarks/benchmark.py in the README."""

Model = dict[str, Any]
"""A model's entry in a metafile."""


def read_metafiles(root: Path) -> dict[str, list[Model]]:
    """Return the models of each metafile that model-index.yml lists, by folder."""
    listed = yaml.safe_load((root / "model-index.yml").read_text())["Import"]
    return {
        Path(path).parent.name: yaml.safe_load((root / path).read_text())["Models"]
        for path in listed
    }


def scores(model: Model) -> dict[str, float]:
    """Return a model's scores by metric; empty if it has no results."""
    return {
        metric: value
        for result in model.get("Results", [])
        for metric, value in result["Metrics"].items()
    }


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines)


def task_table(title: str, models: list[Model]) -> str:
    """Return a table of a task: config, scores, parameters and weights of its models."""
    rows = []
    for model in models:
        arch, patch = re.findall(r"_xcit-(\w+)-p(\d+)_", model["Config"])[0]
        values = [f"{value:.1f}" for value in scores(model).values()]
        parameters = f"{model['Metadata']['Parameters'] / 1e6:.1f}"
        weights = f"[xcit://{Path(model['Weights']).stem}]({model['Weights']})"
        rows.append(
            [f"[{arch.upper()}/{patch}](../{model['Config']})", *values, parameters, weights]
        )
    name, _, tested = title.partition(", ")
    return f"**{name}**, {tested}\n\n{table(['XCiT', *scores(models[0]), 'parameters, M', 'weights'], rows)}"


def measured_table(models: list[Model]) -> str:
    """Return a table of the scores of the demos: mean, lowest and highest of the seeds of
    benchmarks/seeds.py.
    """
    seeds = defaultdict(list)
    with (MEASURED / "10-scores.csv").open(newline="") as file:
        for record in csv.DictReader(file):
            seeds[record["config"], record["metric"]].append(float(record["score"]))
    rows = []
    for model in filter(scores, models):
        values = {metric: seeds[model["Name"], metric] for metric in scores(model)}
        cells = [
            f"{metric} {sum(v) / len(v):.1f} ({min(v):.1f} to {max(v):.1f})"
            for metric, v in values.items()
        ]
        metadata = model["Metadata"]
        config = f"[{model['Name']}](../{model['Config']})"
        rows.append(
            [config, metadata["Training Data"], str(metadata["Iterations"]), ", ".join(cells)]
        )
    return table(["config", "data", "iterations", "mean of the seeds (lowest to highest)"], rows)


def measured(name: str, model: str, size: str, key: str = "median_ms") -> float:
    """Return a measurement of benchmarks/benchmark.py, of docs/benchmark/NAME.csv."""
    with (MEASURED / f"{name}.csv").open(newline="") as file:
        return next(
            float(r[key]) for r in csv.DictReader(file) if (r["model"], r["size"]) == (model, size)
        )


def speed() -> str:
    """Return sentences on time and memory at 800x1344, and on the growth of time with the image."""
    size, large = "800x1344", "3072x3072"
    own, *peers = (measured("1-forward", model, size) for model in TITLES)
    kept = [
        measured("3-train", model, size, "saved_mb")
        for model in ("xcit-auto", "xcit-auto-cp", "swin-t")
    ]
    ends = [measured("4-resolution", "xcit-auto", side) for side in ("512x512", large)]
    power = math.log(ends[1] / ends[0]) / math.log((3072 / 512) ** 2)
    timm = measured("4-resolution", "timm-xcit", large) / ends[1]
    return "\n".join(
        [
            f"XCiT-S12/16 takes {own:.0f} ms for an image of {size}, pyramid included, timm's XCiT, without a pyramid, "
            f"{peers[0]:.0f} ms, mmdet's Swin-T {peers[1]:.0f} ms and mmdet's ResNet-50 {peers[2]:.0f} ms.",
            f"Training keeps {kept[0]:.0f} MB for the backward pass of two images, {kept[1]:.0f} MB "
            f"with `with_cp=True`, Swin-T {kept[2]:.0f} MB.",
            f"From 512x512 to {large}, time grows as the number of pixels to the power {power:.2f}. "
            f"The largest image takes {ends[1] / 1e3:.0f} s, with timm's XCiT {timm:.1f} times as long.",
        ]
    )


def draw_speed(path: Path) -> None:
    """Plot time per megapixel against the size of the image. A cost that is linear in the pixels is
    level.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with (MEASURED / "4-resolution.csv").open(newline="") as file:
        sides = sorted({int(row["size"].partition("x")[0]) for row in csv.DictReader(file)})
    pixels = [side**2 / 1e6 for side in sides]
    figure, axis = plt.subplots(figsize=(6.4, 3), layout="constrained")
    for model, title in TITLES.items():
        seconds = [measured("4-resolution", model, f"{side}x{side}") / 1e3 for side in sides]
        costs = [second / size for second, size in zip(seconds, pixels, strict=True)]
        axis.plot(
            pixels,
            costs,
            "o-",
            markersize=4,
            linewidth=2.5 if model == "xcit-auto" else 1.5,
            label=title,
        )
    axis.set(xlabel="image, pixels", ylabel="seconds per megapixel", xscale="log", ylim=(0, None))
    axis.set_xticks(pixels, [f"{side}²" for side in sides])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def with_block(text: str, name: str, content: str) -> str:
    """Return a text with `content` between the two comments of a block.

    Raises:
        ValueError: If the text does not have the two comments.
    """
    begin, end = f"<!-- {name}: written by docs/readme_tables.py -->\n", f"\n<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no block {name!r} between {begin.strip()} and {end.strip()}")
    return before + begin + content + end + after


def render() -> dict[Path, str]:
    """Return README.md and docs/model-zoo.md with current blocks."""
    zoo = read_metafiles(ROOT)
    published = "\n\n".join(task_table(title, zoo[folder]) for folder, title in TASKS.items())
    readme, page = ROOT / "README.md", ROOT / "docs" / "model-zoo.md"
    tables = with_block(page.read_text(), "published", published)
    return {
        readme: with_block(readme.read_text(), "speed", speed()),
        page: with_block(tables, "measured", measured_table(zoo["demo"])),
    }


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    for path, text in render().items():
        if sys.argv[1:]:
            if text != path.read_text():
                sys.exit(
                    f"the blocks in {path.relative_to(ROOT)} are outdated: python docs/readme_tables.py"
                )
        else:
            path.write_text(text)
    if not sys.argv[1:]:
        draw_speed(ROOT / "docs" / "speed.png")


if __name__ == "__main__":
    main()
