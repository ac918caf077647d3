"""Write measurements of `make bench` and tables of models into README.md and pages of docs/.

    python docs/readme_tables.py            # replaces blocks between comments, draws docs/speed.png
    python docs/readme_tables.py --check    # changes nothing, exits with 1 if a block is outdated

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
VIT = "vit-s16"
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
        config = f"[{arch.upper()}/{patch}](../{model['Config']})"
        scored = [f"{score:.1f}" for score in scores(model).values()]
        parameters = f"{model['Metadata']['Parameters'] / 1e6:.1f}"
        weights = f"[xcit://{Path(model['Weights']).stem}]({model['Weights']})"
        rows.append([config, *scored, parameters, weights])
    name, _, tested = title.partition(", ")
    header = ["XCiT", *scores(models[0]), "parameters, M", "weights"]
    return f"**{name}**, {tested}\n\n{table(header, rows)}"


def measured_table(models: list[Model]) -> str:
    """Return a table of the demos' scores: mean, lowest and highest of benchmarks/seeds.py."""
    seeds = defaultdict(list)
    with (MEASURED / "10-scores.csv").open(newline="") as file:
        for record in csv.DictReader(file):
            seeds[record["config"], record["metric"]].append(float(record["score"]))
    rows = []
    for model in filter(scores, models):
        ranges = []
        for metric in scores(model):
            scored = seeds[model["Name"], metric]
            mean = sum(scored) / len(scored)
            ranges.append(f"{metric} {mean:.1f} ({min(scored):.1f} to {max(scored):.1f})")
        config = f"[{model['Name']}](../{model['Config']})"
        data = model["Metadata"]["Training Data"]
        iterations = str(model["Metadata"]["Iterations"])
        rows.append([config, data, iterations, ", ".join(ranges)])
    return table(["config", "data", "iterations", "mean of the seeds (lowest to highest)"], rows)


def measured(name: str, model: str, size: str, key: str = "median_ms") -> float:
    """Return a measurement of benchmarks/benchmark.py, of docs/benchmark/NAME.csv."""
    with (MEASURED / f"{name}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["model"], row["size"]) == (model, size):
                return float(row[key])
    raise ValueError(f"docs/benchmark/{name}.csv has no {model} at {size}")


def speed() -> str:
    """Return sentences on time and memory at 800x1344, and on the growth of time with the image."""
    size = "800x1344"
    large = "3072x3072"
    xcit, timm, swin, resnet = (measured("1-forward", model, size) for model in TITLES)
    saved, saved_with_cp, saved_by_swin = (
        measured("3-train", model, size, "saved_mb")
        for model in ("xcit-auto", "xcit-auto-cp", "swin-t")
    )
    time_of_small = measured("4-resolution", "xcit-auto", "512x512")
    time_of_large = measured("4-resolution", "xcit-auto", large)
    power = math.log(time_of_large / time_of_small) / math.log((3072 / 512) ** 2)
    ratio = measured("4-resolution", "timm-xcit", large) / time_of_large
    return (
        f"XCiT-S12/16 takes {xcit:.0f} ms for an image of {size}, pyramid included, "
        f"timm's XCiT, without a pyramid, {timm:.0f} ms, mmdet's Swin-T {swin:.0f} ms "
        f"and mmdet's ResNet-50 {resnet:.0f} ms.\n"
        f"Training keeps {saved:.0f} MB for the backward pass of two images, "
        f"{saved_with_cp:.0f} MB with `with_cp=True`, Swin-T {saved_by_swin:.0f} MB.\n"
        f"From 512x512 to {large}, time grows as the number of pixels to the power {power:.2f}. "
        f"The largest image takes {time_of_large / 1e3:.0f} s, "
        f"with timm's XCiT {ratio:.1f} times as long.{compare_with_vit()}"
    )


def read_seconds(model: str) -> dict[int, float]:
    """Return the time of each size, by its side, at which a model was within the limits."""
    with (MEASURED / "4-resolution.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    return {
        int(row["size"].partition("x")[0]): float(row["median_ms"]) / 1e3
        for row in rows
        if row["median_ms"]
    }


def compare_with_vit() -> str:
    """Return a sentence on the size from which XCiT is faster than a ViT, once it is measured."""
    vit = read_seconds(VIT)
    if not vit:
        return ""
    xcit = read_seconds("xcit-auto")
    ratios = {side: vit[side] / xcit[side] for side in sorted(vit)}
    slower = [side for side in ratios if ratios[side] <= 1]
    faster = [side for side in ratios if side > max(slower, default=0)]
    if not faster:
        return f" Up to {max(ratios)} pixels a side, ViT-S/16 with the same pyramid is faster."
    first = faster[0]
    last = faster[-1]
    return (
        f" With the same pyramid, timm's ViT-S/16 takes {ratios[first]:.1f} times as long "
        f"from {first} pixels a side on, {ratios[last]:.1f} times at {last}."
    )


def compare_sizes() -> str:
    """Return a table of time and peak memory by size, in inference and in a training step."""
    models = ("xcit-auto", "xcit-p8", VIT, "swin-t")
    rows = []
    for name, run in (("4-resolution", "inference"), ("6-train-sizes", "training step")):
        with (MEASURED / f"{name}.csv").open(newline="") as file:
            records = list(csv.DictReader(file))
        for size in dict.fromkeys(record["size"] for record in records):
            measured_models = {
                record["model"]: format_cost(record) for record in records if record["size"] == size
            }
            rows.append([f"{run}, {size}", *(measured_models[model] for model in models)])
    return table(["seconds, GiB", "XCiT-S12/16", "XCiT-S12/8", "ViT-S/16", "Swin-T"], rows)


def format_cost(record: dict[str, str]) -> str:
    """Return seconds per image and peak memory in GiB, or the limit that the run exceeded."""
    if record.get("limit"):
        return record["limit"]
    return f"{float(record['median_ms']) / 1e3:.2f}, {float(record['peak_mb']) / 1024:.2f}"


def draw_speed(path: Path) -> None:
    """Plot time per megapixel against the image's size, level if time is linear in the pixels."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sides = sorted(read_seconds("xcit-auto"))
    pixels = [side**2 / 1e6 for side in sides]
    figure, axis = plt.subplots(figsize=(6.4, 3), layout="constrained")
    for model, title in {**TITLES, VIT: "timm's ViT-S/16 with this pyramid"}.items():
        seconds = read_seconds(model)
        megapixels = [side**2 / 1e6 for side in seconds]
        costs = [second / size for second, size in zip(seconds.values(), megapixels, strict=True)]
        if costs:
            width = 2.5 if model == "xcit-auto" else 1.5
            axis.plot(megapixels, costs, "o-", markersize=4, linewidth=width, label=title)
    axis.set(xlabel="image, pixels", ylabel="seconds per megapixel", xscale="log", ylim=(0, None))
    axis.set_xticks(pixels, [f"{side}²" for side in sides])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def with_block(page: str, name: str, block: str) -> str:
    """Return the text of a page with `block` between the two comments of that name.

    Raises:
        ValueError: If the page does not have the two comments.
    """
    begin = f"<!-- {name}: written by docs/readme_tables.py -->\n"
    end = f"\n<!-- end of {name} -->"
    above, begun, rest = page.partition(begin)
    _, ended, below = rest.partition(end)
    if not begun or not ended:
        raise ValueError(f"no block {name!r} between {begin.strip()} and {end.strip()}")
    return above + begin + block + end + below


def render() -> dict[Path, str]:
    """Return README.md and the pages of docs/ with current blocks."""
    zoo = read_metafiles(ROOT)
    published = "\n\n".join(task_table(title, zoo[folder]) for folder, title in TASKS.items())
    readme = ROOT / "README.md"
    model_zoo = ROOT / "docs" / "model-zoo.md"
    plain = ROOT / "docs" / "plain-transformers.md"
    with_published = with_block(model_zoo.read_text(), "published", published)
    return {
        readme: with_block(readme.read_text(), "speed", speed()),
        model_zoo: with_block(with_published, "measured", measured_table(zoo["demo"])),
        plain: with_block(plain.read_text(), "sizes", compare_sizes()),
    }


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    pages = render()
    if sys.argv[1:]:
        for path, page in pages.items():
            if page != path.read_text():
                outdated = f"the blocks in {path.relative_to(ROOT)} are outdated"
                sys.exit(f"{outdated}: python docs/readme_tables.py")
        return
    for path, page in pages.items():
        path.write_text(page)
    draw_speed(ROOT / "docs" / "speed.png")


if __name__ == "__main__":
    main()
