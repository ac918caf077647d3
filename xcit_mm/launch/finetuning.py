"""`train --from MODEL --data DATA`: the config of a fine-tuning, written and trained."""

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

from ..datasets import Source, read_dataset, suggest_files
from ..utils.cli import cli_main
from ..utils.errors import preview
from ..weights.classes import configured_classes
from .config import write_config
from .model import Adapted, adapt_to_data
from .rasters import adapt_to_tiles, cut, tile_source
from .run import train


def finetune(options: argparse.Namespace) -> int:
    """Write the config of a fine-tuning, and train it. Return the exit code.

    Nothing is written if the model cannot be fine-tuned on the data, or a check of the run fails. A
    model with masks becomes one without if no annotation has a mask.

    Args:
        options: Options of `xcit-mm train` with `model` and `data`.
    """
    written: list[Path] = []
    interrupted = "the run has not started"
    code = cli_main(lambda: _write(options, written), interrupted, options.verbose)
    return code or train(options, written)


def _write(options: argparse.Namespace, written: list[Path]) -> None:
    """Write the config and the objects of a fine-tuning, and add their paths to `written`."""
    paths = {name: getattr(options, name) for name in ("data", "val", "images", "val_images")}
    source = Source(**{name: Path(os.path.abspath(path)) for name, path in paths.items() if path})
    is_yolo = source.data.suffix in (".yaml", ".yml")
    named = source.data.parent.name if is_yolo else source.data.stem
    name = re.sub(r"\W+", "-", named).strip("-") or "data"
    config = options.new_config or Path(f"{name}.py")
    if config.exists() and not options.overwrite:
        fix = f"train it by `xcit-mm train {config}`, or name another by --config"
        raise FileExistsError(f"{config} exists: {fix}")
    adapted = Adapted.of(options.model)
    tiles = None
    if options.labels is not None:
        tiles = cut(options, config, adapted.cfg)
        source = tile_source(config, adapted.is_detector)
    elif adapted.is_detector and source.data.is_dir():
        raise IsADirectoryError(_suggest_command(options))
    classes = configured_classes(adapted.cfg) or ()
    dataset = read_dataset(source, adapted.is_detector, classes)
    adapt_to_data(adapted, dataset, options.boxes)
    if tiles is not None:
        adapt_to_tiles(adapted, tiles)
    written += [config, write_config(config, adapted, dataset, source, tiles)]
    print(f"{name}: {dataset.describe()}", file=sys.stderr)
    options.config = str(config)


def _suggest_command(options: argparse.Namespace) -> str:
    """Return the error for a folder: which files could be meant, and what to call."""
    problem = f"{options.data} is a folder, and --data takes a COCO json or a data.yaml"
    suggestions = suggest_files(options.data)
    if not suggestions:
        return f"{problem}: docs/your-own-data.md shows what to write"
    files = preview([path for _, path, *_ in suggestions])
    command = ["xcit-mm", "train", "--from", options.model, *suggestions[0]]
    if options.new_config:
        command += ["--config", str(options.new_config)]
    if options.boxes:
        command += ["--boxes"]
    return f"{problem}, such as {files}: {shlex.join(command)}"
