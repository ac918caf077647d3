"""Tables of measurements, from docs/benchmark/*.csv, which `make bench` writes."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

MEASURED = Path(__file__).parent / "benchmark"
BY_SIZE = {
    "xcit-auto": "XCiT-S12/16",
    "vit-s16": "ViT-S/16",
    "swin-t": "Swin-T",
    "efficientvit-b3": "EfficientViT-B3",
    "efficientvit-l1": "EfficientViT-L1",
}
"""Titles of the models in the table of time and memory by size."""
SIZES = ("224x224", "512x512", "1024x1024", "2048x2048")
"""Rows of the table of time and memory by size."""
WHOLE = {
    "xcit-bands": "XCiT-S12/16 in bands",
    "xcit-trunk": "XCiT-S12/16 in memory",
    "xcit-tiles": "XCiT-S12/16 in tiles of 512",
    "vit-s16": "ViT-S/16",
    "swin-t": "Swin-T",
}
"""Titles of the models of benchmarks/benchmark.py that see large images."""
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


def read_csv(name: str) -> list[dict[str, str]]:
    """Return the rows of docs/benchmark/NAME.csv."""
    with (MEASURED / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines)


def format_range(row: dict[str, str]) -> str:
    """Return the least milliseconds of the runs of a model, and the most."""
    return f"{float(row['min_ms']):,.0f} ({float(row['max_ms']):,.0f})"


def format_cost(record: dict[str, str]) -> str:
    """Return seconds per image and peak memory in GiB, or the limit that the run exceeded."""
    if record.get("limit"):
        return record["limit"]
    return f"{float(record['min_ms']) / 1e3:.2f}, {float(record['peak_mb']) / 1024:.2f}"


def format_mean(scores: Sequence[float]) -> str:
    """Return the mean of scores, and the lowest and the highest."""
    return f"{sum(scores) / len(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"


def sizes_table() -> str:
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


def backbones_table() -> str:
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


def training_table() -> str:
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


def whole_table() -> str:
    """Return a table of seconds and GiB of large images, by their side."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for row in read_whole():
        cells[row["size"]][row["model"]] = format_cost(row)
    rows = [[size, *(cells[size].get(model, "") for model in WHOLE)] for size in cells]
    return table(["seconds, GiB", *WHOLE.values()], rows)


def read_commands() -> list[dict[str, str]]:
    """Return the measurements of the command with windows of the default size."""
    return [row for row in read_csv("11-commands") if row["window"] == "default"]


def commands_table(models: Sequence[str]) -> str:
    """Return a table of seconds and GB of `xcit-mm raster`, by model and side."""
    cells: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    for row in read_commands():
        cost = f"{float(row['seconds']):,.0f}, {float(row['memory_gb']):.1f}"
        cells[row["model"], int(row["size"])][row["mode"]] = cost
    measured = {mode for costs in cells.values() for mode in costs}
    modes = {mode: title for mode, title in MODES.items() if mode in measured}
    rows = []
    for model in models:
        for size in sorted(size for name, size in cells if name == model):
            costs = cells[model, size]
            case = f"{COMMANDS[model]}, {size}x{size}"
            rows.append([case, *(costs.get(mode, "") for mode in modes)])
    return table(["seconds, GB", *modes.values()], rows)


def windows_table() -> str:
    """Return a table of the memory of the command at 2048x2048, by head and side of a window."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for row in read_csv("11-commands"):
        if row["window"] != "default" and row["size"] == "2048":
            cells[row["model"]][row["window"]] = f"{float(row['memory_gb']):.1f}"
    sides = sorted({side for costs in cells.values() for side in costs}, key=int)
    rows = [
        [COMMANDS[model], *(costs.get(side, "") for side in sides)]
        for model, costs in cells.items()
    ]
    return table(["GB, window", *sides], rows)


def raster_sentence() -> str:
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


def steps_table() -> str:
    """Return a table of CPU seconds and GB of training steps on large images."""
    cells: dict[tuple[str, str, int, int], dict[str, str]] = defaultdict(dict)
    for row in read_csv("12-large-steps"):
        cost = "over 12 GB"
        if row["memory_gb"]:
            cost = f"{float(row['cpu_seconds']):,.1f}, {float(row['memory_gb']):.2f}"
        case = row["model"], row["arch"], int(row["patch_size"]), int(row["size"])
        cells[case][row["with_cp"]] = cost

    def order(case: tuple[str, str, int, int]) -> tuple[int, str, int, int]:
        """Sort by model, architecture, patch size from large to small, and size."""
        model, arch, patch_size, size = case
        return list(STEPS).index(model), arch, -patch_size, size

    rows = []
    for case in sorted(cells, key=order):
        model, arch, patch_size, size = case
        title = f"{STEPS[model]}, {arch.upper()}/{patch_size}, {size}x{size}"
        rows.append([title, *(cells[case].get(mode, "") for mode in RECOMPUTATIONS)])
    return table(["seconds, GB", *RECOMPUTATIONS.values()], rows)


def trained_table() -> str:
    """Return a table of the scores of models trained in crops and whole: the mean of the seeds."""
    by_case: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for record in read_csv("14-whole-training"):
        by_case[record["trained"], record["predicted"]].append(record)
    metrics = {"miou": "mIoU", "darker_iou": "IoU of the darker photos", "accuracy": "accuracy"}
    rows = []
    for (trained, predicted), records in by_case.items():
        means = [format_mean([float(record[metric]) for record in records]) for metric in metrics]
        title = "trained in crops" if trained == "crops" else f"trained {trained}"
        rows.append([title, predicted, *means])
    return table(["", "predicted", *metrics.values()], rows)


def processes_sentence() -> str:
    """Return a sentence on the time of trunk and heads in one process and in two."""
    seconds = {row["processes"]: float(row["seconds"]) for row in read_csv("13-processes")}
    return (
        "Trunk and heads of Semantic FPN S12/16 take "
        f"{seconds['1']:.0f} seconds at 4096x4096 pixels in one process with one thread, and "
        f"{seconds['2']:.0f} in two (least of three runs, [csv](benchmark/13-processes.csv))."
    )


def busy_table() -> str:
    """Return a table of a forward pass and a training step beside other processes."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for row in read_csv("15-busy"):
        times = f"{float(row['forward_ms']):,.0f}, {float(row['step_ms']):,.0f}"
        environment = row["environment"]
        title = f"`{environment}`" if "=" in environment else environment  # a variable
        cells[row["beside"]][title] = times
    titles = list(dict.fromkeys(title for times in cells.values() for title in times))
    rows = [
        [beside, *(times.get(title, "") for title in titles)] for beside, times in cells.items()
    ]
    return table(["ms: forward, step", *titles], rows)


def padding_table() -> str:
    """Return a table of the demo's mIoU on images of several sizes, padded and not."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    titles = dict(yes="padded, the default", no="not padded")
    for row in read_csv("16-padding"):
        size = f"{row['size']}x{row['size']}"
        cells[titles[row["padded"]]][size] = f"{float(row['miou']):.1f}"
    sizes = list(dict.fromkeys(size for scores in cells.values() for size in scores))
    rows = [[padded, *(scores.get(size, "") for size in sizes)] for padded, scores in cells.items()]
    return table(["mIoU", *sizes], rows)


def origins_table() -> str:
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
