"""Write measurements of `make bench` and tables of models into README.md and pages of docs/.

    python docs/readme_tables.py            # replaces blocks between comments, draws docs/whole.png
    python docs/readme_tables.py --check    # changes nothing, exits with 1 if a block is outdated

Models come from configs/*/metafile.yml, measurements from docs/benchmark/*.csv.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "docs" / "benchmark"
TASKS = {
    "mask_rcnn": "`maskrcnn_xcit_`: box AP, mask AP",
    "semantic_fpn": "`sem_fpn_xcit_`: mIoU",
    "upernet": "`upernet_xcit_`: mIoU",
}
"""Columns of the folders of published models."""
WHOLE = {
    "xcit-bands": "XCiT-S12/16 in bands",
    "xcit-trunk": "XCiT-S12/16 in memory",
    "xcit-tiles": "XCiT-S12/16 in tiles of 512",
    "vit-s16": "ViT-S/16",
    "swin-t": "Swin-T",
}
"""Titles of the models of benchmarks/benchmark.py that see large images."""
BY_SIZE = {
    "xcit-auto": "XCiT-S12/16",
    "vit-s16": "ViT-S/16",
    "swin-t": "Swin-T",
    "efficientvit-b3": "EfficientViT-B3",
    "efficientvit-l1": "EfficientViT-L1",
}
"""Titles of the models in the table of time and memory by size."""
COMMANDS = {
    "semantic_fpn": "Semantic FPN",
    "mask_rcnn": "Mask R-CNN",
    "upernet": "UPerNet",
}
MODES = {"whole": "whole", "tiles": "in tiles of 512", "memory": "the model in memory"}
"""Titles of the models and modes of benchmarks/commands.py."""
STEPS = {"trunk": "trunk", "semantic_fpn": "Semantic FPN"}
RECOMPUTATIONS = {"False": "`with_cp=False`", "True": "`True`", "bands": '`"bands"`'}
RECOMPUTATIONS |= {"windows-384": "and loss by windows", "windows-768": "with `window=768`"}
"""Titles of the models and modes of benchmarks/large_steps.py."""
ORIGIN = ("date", "commit", "processor")
"""Columns of every csv file, as in benchmarks/csv_rows.py."""
SIZES = ("224x224", "512x512", "1024x1024", "2048x2048")
"""Rows of the table of time and memory by size."""

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


def measured_table(models: list[Model]) -> str:
    """Return a table of the demos' scores: mean, lowest and highest of benchmarks/seeds.py."""
    seeds = defaultdict(list)
    for record in read_csv("10-scores"):
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
        rows.append([config, data, ", ".join(ranges)])
    return table(["config", "data", "mean of the seeds (lowest to highest)"], rows)


def models_of_readme(zoo: dict[str, list[Model]]) -> str:
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


def speed(zoo: dict[str, list[Model]]) -> str:
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


def format_range(row: dict[str, str]) -> str:
    """Return the least milliseconds of the runs of a model, and the most."""
    least, most = float(row["min_ms"]), float(row["max_ms"])
    return f"{least:,.0f} ({most:,.0f})"


def raster_cost() -> str:
    """Return a sentence on time and memory of `xcit-mm raster`, whole, by the side of a raster."""
    costs = {
        int(row["size"]): row
        for row in read_commands()
        if (row["model"], row["mode"]) == ("semantic_fpn", "whole")
    }
    parts = []
    for side in (4096, 20000):
        seconds = float(costs[side]["seconds"])
        time = f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
        memory = float(costs[side]["memory_gb"])
        parts.append(f"{side}x{side} pixels in {time} with {memory:.1f} GB of memory")
    return f"On two CPU cores, Semantic FPN S12/16 maps {', and '.join(parts)}."


def read_csv(name: str) -> list[dict[str, str]]:
    """Return the rows of docs/benchmark/NAME.csv."""
    with (MEASURED / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def compare_sizes() -> str:
    """Return a table of time and peak memory by size, in inference and in a training step."""
    rows = []
    for name, run in (("4-resolution", "inference"), ("6-train-sizes", "training step")):
        records = read_csv(name)
        for size in dict.fromkeys(record["size"] for record in records):
            if size not in SIZES:
                continue
            costs = {row["model"]: format_cost(row) for row in records if row["size"] == size}
            rows.append([f"{run}, {size}", *(costs.get(model, "") for model in BY_SIZE)])
    return table(["seconds, GiB", *BY_SIZE.values()], rows)


def format_cost(record: dict[str, str]) -> str:
    """Return seconds per image and peak memory in GiB, or the limit that the run exceeded."""
    if record.get("limit"):
        return record["limit"]
    return f"{float(record['min_ms']) / 1e3:.2f}, {float(record['peak_mb']) / 1024:.2f}"


def compare_backbones() -> str:
    """Return a table of the time of backbones at 800x1344, in float32, bfloat16 and compiled."""
    columns = {
        "1-forward": "float32",
        "1b-bfloat16": "bfloat16",
        "1c-compiled": "compiled, float32",
        "1d-compiled-bfloat16": "compiled, bfloat16",
    }
    times = {name: {row["model"]: format_range(row) for row in read_csv(name)} for name in columns}
    rows = [
        [f"`{model}`", *(times[name].get(model, "") for name in columns)]
        for model in times["1-forward"]
    ]
    return table(["ms", *columns.values()], rows)


def compare_training() -> str:
    """Return a table of a training step of two images of 800x1344."""
    rows = [
        [f"`{row['model']}`", format_range(row), f"{float(row['saved_mb']):,.0f}"]
        for row in read_csv("3-train")
    ]
    return table(["model", "ms", "MB kept for the backward pass"], rows)


def read_whole() -> list[dict[str, str]]:
    """Return the measurements of large images."""
    names = ("7-whole", "8-whole-vit", "9-whole-larger")
    return [row for name in names for row in read_csv(name)]


def compare_commands(models: Sequence[str]) -> str:
    """Return a table of seconds and GB of `xcit-mm raster`, by model and side."""
    cells: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for row in read_commands():
        cost = f"{float(row['seconds']):,.0f}, {float(row['memory_gb']):.1f}"
        cells[row["model"], row["size"]][row["mode"]] = cost
    measured = {mode for costs in cells.values() for mode in costs}
    modes = {mode: title for mode, title in MODES.items() if mode in measured}
    rows = [
        [f"{COMMANDS[model]}, {size}x{size}", *(costs.get(mode, "") for mode in modes)]
        for model in models
        for (name, size), costs in sorted(cells.items(), key=lambda item: int(item[0][1]))
        if name == model
    ]
    return table(["seconds, GB", *modes.values()], rows)


def read_commands() -> list[dict[str, str]]:
    """Return the measurements of the command with windows of the default size."""
    return [row for row in read_csv("11-commands") if row["window"] == "default"]


def compare_windows() -> str:
    """Return a table of the memory of the command at 2048x2048, by head and side of a window."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for row in read_csv("11-commands"):
        if row["window"] != "default" and row["size"] == "2048":
            cells[row["model"]][row["window"]] = f"{float(row['memory_gb']):.1f}"
    sides = sorted({side for costs in cells.values() for side in costs}, key=int)
    rows = [[COMMANDS[m], *(costs.get(side, "") for side in sides)] for m, costs in cells.items()]
    return table(["GB, window", *sides], rows)


def compare_steps() -> str:
    """Return a table of CPU seconds and GB of training steps on large images."""
    cells: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for row in read_csv("12-large-steps"):
        cost = "over 12 GB"
        if row["memory_gb"]:
            cost = f"{float(row['cpu_seconds']):,.1f}, {float(row['memory_gb']):.2f}"
        case = row["model"], row["arch"], row["patch_size"], row["size"]
        cells[case][row["with_cp"]] = cost
    places = {model: place for place, model in enumerate(STEPS)}
    order = sorted(cells, key=lambda case: (places[case[0]], case[1], -int(case[2]), int(case[3])))
    rows = [
        [
            f"{STEPS[model]}, {arch.upper()}/{patch_size}, {size}x{size}",
            *(cells[model, arch, patch_size, size].get(mode, "") for mode in RECOMPUTATIONS),
        ]
        for model, arch, patch_size, size in order
    ]
    return table(["seconds, GB", *RECOMPUTATIONS.values()], rows)


def compare_whole() -> str:
    """Return a table of seconds and GiB of large images, by their side."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for row in read_whole():
        cells[row["size"]][row["model"]] = format_cost(row)
    rows = [[size, *(cells[size].get(model, "") for model in WHOLE)] for size in cells]
    return table(["seconds, GiB", *WHOLE.values()], rows)


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


def compare_trained() -> str:
    """Return a table of the scores of models trained in crops and whole: the mean of the seeds."""
    scores: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    names = {"miou": "mIoU", "darker_iou": "IoU of the darker photos", "accuracy": "accuracy"}
    for row in read_csv("14-whole-training"):
        for key in names:
            scores[row["trained"], row["predicted"]][key].append(float(row[key]))
    rows = [
        [f"trained in {trained}" if trained == "crops" else f"trained {trained}", predicted]
        + [mean_range(values[key]) for key in names]
        for (trained, predicted), values in scores.items()
    ]
    return table(["", "predicted", *names.values()], rows)


def mean_range(scores: Sequence[float]) -> str:
    """Return the mean of scores, and the lowest and the highest."""
    if not scores:
        return ""
    return f"{sum(scores) / len(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"


def processes_cost() -> str:
    """Return a sentence on the time of trunk and heads in one process and in two."""
    seconds = {row["processes"]: float(row["seconds"]) for row in read_csv("13-processes")}
    return (
        "Trunk and heads of Semantic FPN S12/16 take "
        f"{seconds['1']:.0f} seconds at 4096x4096 pixels in one process with one thread, and "
        f"{seconds['2']:.0f} in two (least of three runs, [csv](benchmark/13-processes.csv))."
    )


def compare_busy() -> str:
    """Return a table of a forward pass and a training step beside other processes."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for row in read_csv("15-busy"):
        times = f"{float(row['forward_ms']):,.0f}, {float(row['step_ms']):,.0f}"
        cells[row["beside"]][row["environment"]] = times
    columns = list(dict.fromkeys(name for times in cells.values() for name in times))
    rows = [[beside, *times.values()] for beside, times in cells.items()]
    return table(["ms: forward, step", *(f"`{c}`" if "=" in c else c for c in columns)], rows)


def compare_padding() -> str:
    """Return a table of the demo's mIoU on images of several sizes, padded and not."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    titles = dict(yes="padded, the default", no="not padded")
    for row in read_csv("16-padding"):
        size = f"{row['size']}x{row['size']}"
        cells[titles[row["padded"]]][size] = f"{float(row['miou']):.1f}"
    sizes = list(dict.fromkeys(size for scores in cells.values() for size in scores))
    rows = [[padded, *(scores.get(size, "") for size in sizes)] for padded, scores in cells.items()]
    return table(["mIoU", *sizes], rows)


def origins() -> str:
    """Return a table of the days, commits and processors of the csv files."""
    rows = []
    for path in sorted(MEASURED.glob("*.csv"), key=lambda path: natural_key(path.stem)):
        records = read_csv(path.stem)
        cells = ("; ".join(dict.fromkeys(row[key] for row in records)) for key in ORIGIN)
        rows.append([f"[{path.stem}](benchmark/{path.name})", *cells])
    return table(["csv", *ORIGIN], rows)


def natural_key(name: str) -> tuple[int, str, str]:
    """Return the number that a name begins with as an integer, and the name in two parts."""
    number, _, rest = name.partition("-")
    return int(number.rstrip("abcd")), number, rest


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


def fill(path: Path, **blocks: str) -> str:
    """Return the text of a page with its blocks, by name."""
    text = path.read_text()
    for name, block in blocks.items():
        text = with_block(text, name, block)
    return text


def render() -> dict[Path, str]:
    """Return README.md and the pages of docs/ with current blocks."""
    zoo = read_metafiles(ROOT)
    readme = ROOT / "README.md"
    model_zoo, plain, benchmark, index, large, training = (
        ROOT / "docs" / f"{name}.md"
        for name in (
            "model-zoo",
            "plain-transformers",
            "benchmark",
            "index",
            "large-images",
            "advanced-training",
        )
    )
    return {
        readme: fill(readme, raster=raster_cost(), models=models_of_readme(zoo), speed=speed(zoo)),
        index: fill(index, command=compare_commands(["semantic_fpn"])),
        large: fill(
            large,
            command=compare_commands(list(COMMANDS)),
            windows=compare_windows(),
            processes=processes_cost(),
        ),
        training: fill(training, steps=compare_steps()),
        model_zoo: fill(
            model_zoo, published=published_table(zoo), measured=measured_table(zoo["demo"])
        ),
        plain: fill(plain, sizes=compare_sizes()),
        benchmark: fill(
            benchmark,
            origins=origins(),
            backbones=compare_backbones(),
            training=compare_training(),
            whole=compare_whole(),
            trained=compare_trained(),
            padding=compare_padding(),
            busy=compare_busy(),
        ),
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
    draw_whole(ROOT / "docs" / "whole.png")


if __name__ == "__main__":
    main()
