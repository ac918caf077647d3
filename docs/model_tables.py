"""Tables of models from configs/*/metafile.yml, with measurements beside them."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml
from benchmark_tables import format_mean, format_range, read_csv, table

TASKS = {
    "mask_rcnn": "`maskrcnn_xcit_`: box AP, mask AP",
    "semantic_fpn": "`sem_fpn_xcit_`: mIoU",
    "upernet": "`upernet_xcit_`: mIoU",
}
"""Columns of the folders of published models."""

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


def published_table(zoo: dict[str, list[Model]]) -> str:
    """Return a table of scores, parameters and weights, with a row for each XCiT."""
    rows: dict[str, list[str]] = {}
    for folder in TASKS:
        for model in zoo[folder]:
            name = Path(model["Weights"]).stem.partition("_xcit_")[2]
            scored = ", ".join(f"{score:.1f}" for score in scores(model).values())
            parameters = f"{model['Metadata']['Parameters'] / 1e6:.1f}M"
            links = f"[{scored}](../{model['Config']}), [{parameters}]({model['Weights']})"
            rows.setdefault(name, [f"`{name}`"]).append(links)
    return table(["XCiT", *TASKS.values()], rows.values())


def short_table(zoo: dict[str, list[Model]]) -> str:
    """Return a table of the published scores of patch size 16, with a row for each XCiT."""
    rows: dict[str, list[str]] = {}
    for folder in TASKS:
        for model in zoo[folder]:
            name = Path(model["Weights"]).stem.partition("_xcit_")[2]
            if name.endswith("_p16"):
                score = next(iter(scores(model).values()))  # of boxes, before masks
                rows.setdefault(name, [f"`{name}`"]).append(f"{score:.1f}")
    header = ["XCiT", "`maskrcnn_xcit_`, box AP", "`sem_fpn_xcit_`, mIoU", "`upernet_xcit_`, mIoU"]
    return table(header, rows.values())


def demos_table(demos: list[Model]) -> str:
    """Return a table of the demos' scores: mean, lowest and highest of benchmarks/seeds.py."""
    by_seed = defaultdict(list)
    for record in read_csv("10-scores"):
        by_seed[record["config"], record["metric"]].append(float(record["score"]))
    rows = []
    for model in demos:
        name = model["Name"]
        metrics = scores(model)
        if metrics:
            ranges = [f"{metric} {format_mean(by_seed[name, metric])}" for metric in metrics]
            config = f"[{name}](../{model['Config']})"
            rows.append([config, model["Metadata"]["Training Data"], ", ".join(ranges)])
    return table(["config", "data", "mean of the seeds (lowest to highest)"], rows)


def speed_table(zoo: dict[str, list[Model]]) -> str:
    """Return a table of the time of backbones at 800x1344: the least of the runs, and the most.

    Box AP of Mask R-CNN and mIoU of UPerNet are those of Tables 5 and 6 of the paper.
    """
    ours = [
        f"{next(iter(scores(model).values())):.1f}"
        for folder in ("mask_rcnn", "upernet")
        for model in zoo[folder]
        if "small_12_p16" in model["Weights"]
    ]
    backbones = {
        "xcit-auto": ["XCiT-S12/16, with its pyramid", *ours],
        "resnet-50": ["ResNet-50 of mmdet", "41.0", "42.0"],
        "swin-t": ["Swin-T of mmdet", "46.0", "44.5"],
    }
    times = {row["model"]: format_range(row) for row in read_csv("1-forward")}
    rows = [[*columns, times[model]] for model, columns in backbones.items()]
    titles = ["Mask R-CNN, box AP", "UPerNet, mIoU"]
    return table(["backbone", *titles, "ms, least (most) of the runs"], rows)
