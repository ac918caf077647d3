"""Write the tables of models and of speed in README.md and docs/model-zoo.md, or check that they are as written.

python docs/readme_tables.py            # rewrites what stands between their comments, and draws docs/speed.png
python docs/readme_tables.py --check    # exits with 1 and one line at the first thing that does not fit
python docs/readme_tables.py --count    # counts the parameters of the published models into their metafiles first

Models are those of configs/*/metafile.yml, speed and the scores of the demos are those of docs/benchmark/*.csv.
"""

import argparse
import csv
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import readme_speed
import yaml

from xcit_mm.archs import SIZES
from xcit_mm.checks.model import build_model
from xcit_mm.utils.configs import read_config
from xcit_mm.weights.published import PUBLISHED

ROOT = Path(__file__).resolve().parents[1]
DEMO = "demo"
FIELDS = ("Name", "In Collection", "Config", "Metadata")

Model = dict[str, Any]
"""A model's entry in a metafile."""


class Task(NamedTuple):
    """A folder of published models.

    Attributes:
        folder: Its name under configs/.
        title: What the README's table calls it.
        tested_on: What the configs call the data behind the scores.
        metrics: The scores that every model has.
        weights: How the published names of the weights begin.
    """

    folder: str
    title: str
    tested_on: str
    metrics: tuple[str, ...]
    weights: str


TASKS = (
    Task("mask_rcnn", "Mask R-CNN 3x", "COCO val2017", ("box AP", "mask AP"), "maskrcnn"),
    Task("semantic_fpn", "Semantic FPN 80k", "ADE20k val, single scale", ("mIoU",), "sem_fpn"),
    Task("upernet", "UperNet 160k", "ADE20k val, single scale", ("mIoU",), "upernet"),
)


SEEDS = Path("docs") / "benchmark" / "10-scores.csv"
"""What benchmarks/seeds.py has written for the demos, one below the other."""

SCORED = (DEMO, *(task.folder for task in TASKS))
"""Folders whose models have scores, the demos once several seeds are measured; those of the others claim none."""


def read_metafiles(root: Path) -> dict[str, list[Model]]:
    """Models of every folder under configs/ that has a metafile.

    Raises:
        ValueError: If model-index.yml does not list exactly these metafiles.
    """
    listed = yaml.safe_load((root / "model-index.yml").read_text())["Import"]
    found = sorted(path.relative_to(root).as_posix() for path in root.glob("configs/*/metafile.yml"))
    if sorted(listed) != found:
        raise ValueError(f"model-index.yml lists {', '.join(listed)}, there are {', '.join(found)}: list these")
    return {Path(path).parent.name: yaml.safe_load((root / path).read_text())["Models"] for path in found}


def read_zoo(root: Path) -> dict[str, list[Model]]:
    """Models with scores, by folder; raises as `read_metafiles`."""
    return {folder: models for folder, models in read_metafiles(root).items() if folder in SCORED}


def scores(model: Model) -> dict[str, float]:
    return {metric: value for result in model["Results"] for metric, value in result["Metrics"].items()}


def arch_and_patch(config: str) -> tuple[str, str]:
    """('s12', '16') of a config whose name has 'xcit-s12-p16' in it.

    Raises:
        ValueError: If it has no such thing.
    """
    match = re.search(rf"_xcit-([{''.join(SIZES)}]\d+)-p(\d+)_", config)
    if match is None:
        raise ValueError(f"{config} does not say its arch and patch size: name it ..._xcit-s12-p16_...")
    return match[1], match[2]


def weights_name(task: Task, config: str) -> str:
    """Published name of the weights that belong to a config."""
    arch, patch = arch_and_patch(config)
    return f"{task.weights}_xcit_{SIZES[arch[0]]}_{arch[1:]}_p{patch}"


def first_line(task: Task, model: Model) -> str:
    """How a leaf config begins, scores and weights included."""
    published = ", ".join(f"{metric} {scores(model)[metric]:.1f}" for metric in task.metrics)
    return f"# Published on {task.tested_on}: {published}. Weights: xcit://{weights_name(task, model['Config'])}"


def count_parameters(config: Path) -> int:
    """Parameters of a config's model, backbone, neck and all heads."""
    return sum(parameter.numel() for parameter in build_model(read_config(str(config), [])).parameters())


def write_parameters(root: Path) -> None:
    """Write the number of parameters of every published model into its metafile, as the last of its Metadata."""
    for task in TASKS:
        path = root / "configs" / task.folder / "metafile.yml"
        text = re.sub(r"\n +Parameters: \d+", "", path.read_text())
        for model in yaml.safe_load(text)["Models"]:
            metadata = rf"(    Config: {re.escape(model['Config'])}\n    Metadata:(?:\n      .+)+)"
            count = count_parameters(root / model["Config"])
            text = re.sub(metadata, rf"\g<1>\n      Parameters: {count}", text)
        path.write_text(text)


def check_entry(root: Path, folder: str, model: Model) -> None:
    name, config = model.get("Name"), model.get("Config", "")
    for field in FIELDS + ("Results",) * (folder in SCORED and folder != DEMO):
        if field not in model:
            raise ValueError(f"{name or config or 'a model'} in configs/{folder}/metafile.yml has no {field}: add it")
    if config != f"configs/{folder}/{name}.py":
        raise ValueError(f"{name} has Config {config}: should be configs/{folder}/{name}.py")
    if not (root / config).is_file():
        raise ValueError(f"{name} has Config {config}, which does not exist")


def check_claims(folder: str, model: Model) -> None:
    for field in ("Results", "Weights"):
        if field in model and folder not in SCORED:
            raise ValueError(f"{model['Name']} has {field}, configs/{folder} is without scores: remove {field}")


def check_published(root: Path, task: Task, model: Model) -> None:
    name, url = model["Name"], model.get("Weights")
    if tuple(scores(model)) != task.metrics:
        raise ValueError(f"{name} has scores {', '.join(scores(model))}: should be {', '.join(task.metrics)}")
    weights = weights_name(task, model["Config"])
    if url not in PUBLISHED.values():
        raise ValueError(f"{name} has Weights {url}, which are not published: python tools/weights.py list")
    if url != PUBLISHED.get(weights):
        raise ValueError(f"{name} has Weights {url}, another model's: should be those of {weights}")
    if not isinstance(model["Metadata"].get("Parameters"), int):
        raise ValueError(f"{name} has no number of Parameters in its Metadata: python docs/readme_tables.py --count")
    line = (root / model["Config"]).read_text().partition("\n")[0]
    if line != first_line(task, model):
        raise ValueError(f"{model['Config']} begins {line!r}, its metafile says {first_line(task, model)!r}")


def check_complete(root: Path, folder: str, models: list[Model]) -> None:
    entries = [model["Config"] for model in models]
    for path in sorted((root / "configs" / folder).glob("*.py")):
        config = path.relative_to(root).as_posix()
        if entries.count(config) != 1:
            raise ValueError(f"{config} has {entries.count(config)} entries in its metafile: should be 1")


def check(root: Path) -> None:
    """Check metafiles, configs, benchmark and pages against one another.

    Raises:
        ValueError: If anything does not fit, naming it.
    """
    for folder, models in read_metafiles(root).items():
        for model in models:
            check_entry(root, folder, model)
            check_claims(folder, model)
        if folder != DEMO:
            check_complete(root, folder, models)
    zoo = read_zoo(root)
    for task in TASKS:
        for model in zoo.get(task.folder, []):
            check_published(root, task, model)
    for name, text in written(root, zoo).items():
        if text != (root / name).read_text():
            raise ValueError(f"the tables in {name} are not as measured and published: python docs/readme_tables.py")
    if not readme_speed.is_drawn(root):
        raise ValueError(f"{readme_speed.PLOT} is not of the measured speed: python docs/readme_tables.py")


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def link(text: str, path: str) -> str:
    return f"[{text}]({path})"


def published_table(zoo: dict[str, list[Model]]) -> str:
    """A row for each arch and patch size; for each task its scores, linked to the config."""
    models = {(task, *arch_and_patch(model["Config"])): model for task in TASKS for model in zoo[task.folder]}
    header = ["XCiT"]
    for task in TASKS:
        header += [f"{task.title}: {task.metrics[0]}", *task.metrics[1:]]
    lines = [row(*header), "|" + "---|" * len(header)]
    for arch, patch in dict.fromkeys((arch, patch) for _, arch, patch in models):
        cells = [f"{arch.upper()}/{patch}"]
        for task in TASKS:
            model = models.get((task, arch, patch))
            if model is None:
                cells += [""] * len(task.metrics)
                continue
            first, *others = (f"{scores(model)[metric]:.1f}" for metric in task.metrics)
            cells += [link(first, model["Config"]), *others]
        lines.append(row(*cells))
    return "\n".join(lines)


def task_tables(zoo: dict[str, list[Model]]) -> str:
    """For each task a table of its models: config, scores, parameters and weights."""
    tables = []
    for task in TASKS:
        lines = [f"**{task.title}**, {task.tested_on}", ""]
        header = ("XCiT", *task.metrics, "parameters, M", "weights")
        lines += [row(*header), "|" + "---|" * len(header)]
        for model in zoo[task.folder]:
            arch, patch = arch_and_patch(model["Config"])
            lines.append(
                row(
                    link(f"{arch.upper()}/{patch}", f"../{model['Config']}"),
                    *(f"{scores(model)[metric]:.1f}" for metric in task.metrics),
                    f"{model['Metadata']['Parameters'] / 1e6:.1f}",
                    f"[xcit://{weights_name(task, model['Config'])}]({model['Weights']})",
                )
            )
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def measured_scores(root: Path, models: list[Model]) -> dict[str, dict[str, list[float]]]:
    """The scores of every seed, by model and metric, of the models that have some.

    Raises:
        ValueError: If a model's own score is not their mean.
    """
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (root / SEEDS).open(newline="") as file:
        for one in csv.DictReader(file):
            found[one["config"]][one["metric"]].append(float(one["score"]))
    measured = {}
    for model in models:
        name = model["Name"]
        if "Results" in model:
            measured[name] = {metric: found[name][metric] for metric in scores(model)}
            for metric, values in measured[name].items():
                if not values or f"{statistics.mean(values):.1f}" != f"{scores(model)[metric]:.1f}":
                    raise ValueError(
                        f"{name} has {metric} {scores(model)[metric]}, not the mean of {values} in {SEEDS}"
                    )
    return measured


def measured_table(root: Path, models: list[Model]) -> str:
    lines = [row("config", "data", "iterations", "mean of the seeds (lowest to highest)"), "|---|---|---|---|"]
    metadata = {model["Name"]: model["Metadata"] for model in models}
    links = {model["Name"]: link(model["Name"], f"../{model['Config']}") for model in models}
    for name, measured in measured_scores(root, models).items():
        told = ", ".join(
            f"{metric} {statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"
            for metric, values in measured.items()
        )
        lines.append(row(links[name], metadata[name]["Training Data"], str(metadata[name]["Iterations"]), told))
    return "\n".join(lines)


def with_block(text: str, name: str, content: str, file: str) -> str:
    """A text with the content between the two comments of a block.

    Raises:
        ValueError: If it does not have each comment once, in order.
    """
    begin, end = f"<!-- {name}: written by docs/readme_tables.py -->", f"<!-- end of {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{file} must have {begin} once and {end} once after it")
    return f"{text.partition(begin)[0]}{begin}\n{content}\n{end}{text.partition(end)[2]}"


def written(root: Path, zoo: dict[str, list[Model]]) -> dict[str, str]:
    """README.md and docs/model-zoo.md with their tables; raises as `with_block`."""
    blocks = {
        "README.md": {"speed": readme_speed.report(root), "models": published_table(zoo)},
        "docs/model-zoo.md": {
            "published": task_tables(zoo),
            "measured": measured_table(root, zoo[DEMO]),
        },
    }
    texts = {}
    for file, contents in blocks.items():
        texts[file] = (root / file).read_text()
        for name, content in contents.items():
            texts[file] = with_block(texts[file], name, content, file)
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="change nothing, exit with 1 if anything does not fit")
    mode.add_argument("--count", action="store_true", help="count the parameters of the published models first")
    args = parser.parse_args()
    try:
        if args.check:
            check(ROOT)
        else:
            if args.count:
                write_parameters(ROOT)
            for name, text in written(ROOT, read_zoo(ROOT)).items():
                (ROOT / name).write_text(text)
            readme_speed.draw(ROOT)
    except (ValueError, OSError, yaml.YAMLError) as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
