"""Write the table of speed into README.md and those of models into docs/model-zoo.md, or check them.

python docs/readme_tables.py            # replaces the tables between their comments, draws docs/speed.png
python docs/readme_tables.py --check    # changes nothing, exits with 1 and one line at the first mismatch
python docs/readme_tables.py --count    # first counts the parameters of the published models into their metafiles

Models come from configs/*/metafile.yml, speed and scores of the demos from docs/benchmark/*.csv.
"""

import argparse
import csv
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
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
        folder: Name of the folder under configs/.
        title: Name in the model zoo.
        tested_on: Name of the test data in the configs.
        metrics: Names of the scores of every model.
        weights: Prefix of the published names of the weights.
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
"""The scores that benchmarks/seeds.py wrote for the demos, concatenated."""

SCORED = (DEMO, *(task.folder for task in TASKS))
"""Folders whose models have scores."""


def read_metafiles(root: Path) -> dict[str, list[Model]]:
    """Return the models of each metafile under configs/, by folder.

    Raises:
        ValueError: If model-index.yml does not list exactly these metafiles.
    """
    listed = yaml.safe_load((root / "model-index.yml").read_text())["Import"]
    found = sorted(path.relative_to(root).as_posix() for path in root.glob("configs/*/metafile.yml"))
    if sorted(listed) != found:
        raise ValueError(f"model-index.yml lists {', '.join(listed)}, but must list {', '.join(found)}")
    return {Path(path).parent.name: yaml.safe_load((root / path).read_text())["Models"] for path in found}


def scores(model: Model) -> dict[str, float]:
    """Return a model's scores by metric; empty if it has no results."""
    return {metric: value for result in model.get("Results", []) for metric, value in result["Metrics"].items()}


def arch_and_patch(config: str) -> tuple[str, str]:
    """Return ('s12', '16') for a config whose name contains 'xcit-s12-p16'.

    Raises:
        ValueError: If the name has another form.
    """
    match = re.search(rf"_xcit-([{''.join(SIZES)}]\d+)-p(\d+)_", config)
    if match is None:
        raise ValueError(f"{config} does not name its arch and patch size: rename it to ..._xcit-s12-p16_...")
    return match[1], match[2]


def weights_name(task: Task, config: str) -> str:
    """Return the published name of a config's weights."""
    arch, patch = arch_and_patch(config)
    return f"{task.weights}_xcit_{SIZES[arch[0]]}_{arch[1:]}_p{patch}"


def first_line(task: Task, model: Model) -> str:
    """Return the first line of a leaf config, with scores and weights."""
    published = ", ".join(f"{metric} {scores(model)[metric]:.1f}" for metric in task.metrics)
    return f"# Published on {task.tested_on}: {published}. Weights: xcit://{weights_name(task, model['Config'])}"


def count_parameters(config: Path) -> int:
    """Return the number of parameters of a config's model: backbone, neck and all heads."""
    return sum(parameter.numel() for parameter in build_model(read_config(str(config), [])).parameters())


def write_parameters(root: Path) -> None:
    """Write the number of parameters of every published model into its metafile, at the end of its Metadata."""
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
    for field in ("Results", "Weights"):
        if field in model and folder not in SCORED:
            raise ValueError(f"{name} has {field}, but configs/{folder} has no scores: remove {field}")


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
        raise ValueError(f"{model['Config']} begins {line!r}, but by its metafile it is {first_line(task, model)!r}")


def check_complete(root: Path, folder: str, models: list[Model]) -> None:
    entries = [model["Config"] for model in models]
    for path in sorted((root / "configs" / folder).glob("*.py")):
        config = path.relative_to(root).as_posix()
        if entries.count(config) != 1:
            raise ValueError(f"{config} has {entries.count(config)} entries in its metafile: should be 1")


def check(root: Path) -> None:
    """Check that metafiles, configs, measurements and pages agree.

    Raises:
        ValueError: At the first mismatch.
    """
    zoo = read_metafiles(root)
    for folder, models in zoo.items():
        for model in models:
            check_entry(root, folder, model)
        if folder != DEMO:
            check_complete(root, folder, models)
    for task in TASKS:
        for model in zoo[task.folder]:
            check_published(root, task, model)
    for name, text in render(root, zoo).items():
        if text != (root / name).read_text():
            raise ValueError(f"the tables in {name} are outdated: python docs/readme_tables.py")
    if not readme_speed.is_current(root):
        raise ValueError(f"{readme_speed.PLOT} is outdated: python docs/readme_tables.py")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines)


def link(text: str, path: str) -> str:
    return f"[{text}]({path})"


def task_tables(zoo: dict[str, list[Model]]) -> str:
    """Return a table of each task: config, scores, parameters and weights of its models."""
    tables = []
    for task in TASKS:
        rows = []
        for model in zoo[task.folder]:
            arch, patch = arch_and_patch(model["Config"])
            config = link(f"{arch.upper()}/{patch}", f"../{model['Config']}")
            values = [f"{scores(model)[metric]:.1f}" for metric in task.metrics]
            parameters = f"{model['Metadata']['Parameters'] / 1e6:.1f}"
            weights = link(f"xcit://{weights_name(task, model['Config'])}", model["Weights"])
            rows.append([config, *values, parameters, weights])
        header = ["XCiT", *task.metrics, "parameters, M", "weights"]
        tables.append(f"**{task.title}**, {task.tested_on}\n\n{table(header, rows)}")
    return "\n\n".join(tables)


def measured_table(root: Path, models: list[Model]) -> str:
    """Return a table of the scores of the demos: mean of the seeds, lowest and highest.

    Raises:
        ValueError: If a score in a metafile is not the mean of its seeds.
    """
    seeds = defaultdict(list)
    with (root / SEEDS).open(newline="") as file:
        for record in csv.DictReader(file):
            seeds[record["config"], record["metric"]].append(float(record["score"]))
    rows = []
    for model in models:
        name, metadata, cells = model["Name"], model["Metadata"], []
        for metric, score in scores(model).items():
            values = seeds[name, metric]
            if not values or f"{statistics.mean(values):.1f}" != f"{score:.1f}":
                raise ValueError(f"{name} has {metric} {score}, not the mean of {values} in {SEEDS}")
            cells.append(f"{metric} {score:.1f} ({min(values):.1f} to {max(values):.1f})")
        if cells:
            config = link(name, f"../{model['Config']}")
            rows.append([config, metadata["Training Data"], str(metadata["Iterations"]), ", ".join(cells)])
    return table(["config", "data", "iterations", "mean of the seeds (lowest to highest)"], rows)


def with_block(text: str, name: str, content: str, file: str) -> str:
    """Return a text with `content` between the two comments of a block.

    Raises:
        ValueError: If the text does not have each comment once, in order.
    """
    begin, end = f"<!-- {name}: written by docs/readme_tables.py -->", f"<!-- end of {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{file} must have {begin} once and {end} once after it")
    return f"{text.partition(begin)[0]}{begin}\n{content}\n{end}{text.partition(end)[2]}"


def render(root: Path, zoo: dict[str, list[Model]]) -> dict[str, str]:
    """Return README.md and docs/model-zoo.md with current tables. Raises like `with_block`."""
    blocks = {
        "README.md": {"speed": readme_speed.report(root)},
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
    mode.add_argument("--check", action="store_true", help="change nothing, exit with 1 at a mismatch")
    mode.add_argument("--count", action="store_true", help="count the parameters of the published models first")
    args = parser.parse_args()
    try:
        if args.check:
            check(ROOT)
        else:
            if args.count:
                write_parameters(ROOT)
            for name, text in render(ROOT, read_metafiles(ROOT)).items():
                (ROOT / name).write_text(text)
            readme_speed.draw(ROOT)
    except (ValueError, OSError, yaml.YAMLError) as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
