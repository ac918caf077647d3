"""Write the README's tables of models from configs/*/metafile.yml, or check that none of these says what is not so.

python tools/readme_tables.py            # rewrites what stands between the two zoo comments in README.md
python tools/readme_tables.py --check    # exits with 1 and one line at the first thing that does not fit
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from xcit_mm.archs import SIZES
from xcit_mm.weights.published import PUBLISHED

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- zoo: written by tools/readme_tables.py -->", "<!-- end of zoo -->"
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


SCORED = (DEMO, *(task.folder for task in TASKS))
"""Folders whose models have scores, the demos once they are measured; those of the others must not claim any."""


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
    """Check metafiles, configs and README against one another.

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
    readme = (root / "README.md").read_text()
    if readme != with_tables(readme, zoo):
        raise ValueError("the tables in README.md are not those of the metafiles: python tools/readme_tables.py")


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def published_table(zoo: dict[str, list[Model]]) -> str:
    """A row for each arch and patch size; for each task its scores and links."""
    models = {(task, *arch_and_patch(model["Config"])): model for task in TASKS for model in zoo[task.folder]}
    header = ["XCiT"]
    for task in TASKS:
        header += [f"{task.title}: {task.metrics[0]}", *task.metrics[1:], ""]
    lines = [row(*header), "|" + "---|" * len(header)]
    for arch, patch in dict.fromkeys((arch, patch) for _, arch, patch in models):
        cells = [f"{arch.upper()}/{patch}"]
        for task in TASKS:
            model = models.get((task, arch, patch))
            if model is None:
                cells += [""] * (len(task.metrics) + 1)
                continue
            cells += [f"{scores(model)[metric]:.1f}" for metric in task.metrics]
            cells.append(f"[config]({model['Config']}) · [weights]({model['Weights']})")
        lines.append(row(*cells))
    return "\n".join(lines)


def measured_table(models: list[Model]) -> str:
    lines = [row("config", "data", "iterations", "scores"), "|---|---|---|---|"]
    for model in models:
        if "Results" not in model:  # not measured yet
            continue
        found = ", ".join(f"{metric} {value:.1f}" for metric, value in scores(model).items())
        metadata = model["Metadata"]
        link = f"[{model['Name']}]({model['Config']})"
        lines.append(row(link, metadata["Training Data"], str(metadata["Iterations"]), found))
    return "\n".join(lines)


def with_tables(readme: str, zoo: dict[str, list[Model]]) -> str:
    """The README with the tables of the zoo between its two comments.

    Raises:
        ValueError: If it does not have each comment once, in order.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(BEGIN) > readme.index(END):
        raise ValueError(f"README.md must have {BEGIN} once and {END} once after it")
    tables = (
        "Scores and weights as the paper's authors published them, on COCO val2017 and ADE20k val, single scale:\n\n"
        f"{published_table(zoo)}\n\n"
        "Scores measured with this code and its demo configs, XCiT-N12/16 trained from scratch on a CPU, on held-out "
        f"images:\n\n{measured_table(zoo[DEMO])}\n"
    )
    return f"{readme.partition(BEGIN)[0]}{BEGIN}\n{tables}\n{END}{readme.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 if anything does not fit")
    args = parser.parse_args()
    try:
        if args.check:
            check(ROOT)
        else:
            readme = ROOT / "README.md"
            readme.write_text(with_tables(readme.read_text(), read_zoo(ROOT)))
    except (ValueError, OSError, yaml.YAMLError) as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
