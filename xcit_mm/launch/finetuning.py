"""`train --from MODEL --data DATA`: the config of a fine-tuning, written and trained."""

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

from ..datasets import Source, read_dataset, suggest_files
from ..datasets.dataset import PAGE
from ..utils.cli import cli_main, parse_cfg_options
from ..utils.configs import check_keys
from ..weights.classes import configured_classes
from .config import write_config
from .model import adapt, read_model, scale_of_photos
from .rasters import adapt_to_tiles, cut, tiles_folder
from .run import INTERRUPTED, run_training


def finetune(options: argparse.Namespace) -> int:
    """Write the config of a fine-tuning, and train it. Return the exit code. An error is one line.

    Nothing is written if the model cannot be fine-tuned on the data, or a check of the run fails. A
    model with masks becomes one without if no annotation has a mask.

    Args:
        options: Options of `xcit-mm train` with `model` and `data`.
    """

    def work() -> None:
        check_keys(parse_cfg_options(options.cfg_options))  # before what takes minutes
        config = _choose_config(options)
        options.config = str(config)
        stem = config.resolve().with_suffix("")
        objects = stem.with_name(f"{stem.name}-coco")
        written = [config, objects / "train.json", objects / "val.json"]
        tiles = None
        if options.labels is not None:
            tiles = tiles_folder(stem, options.overwrite)
            written.append(tiles)
        run_training(options, written, lambda: _write(options, config, tiles))

    return cli_main(work, INTERRUPTED, options.verbose)


def _choose_config(options: argparse.Namespace) -> Path:
    """Return the path of the config to write, or raise if it is no name of a new one."""
    named = options.data.stem
    if options.data.suffix in (".yaml", ".yml"):
        named = Path(os.path.abspath(options.data)).parent.name
    name = re.sub(r"\W+", "-", named).strip("-") or "data"
    config = options.new_config or Path(f"{name}.py")
    if config.suffix != ".py":
        raise ValueError(f"--config {config}: give a name that ends in .py")
    if config.exists() and not options.overwrite:
        fix = f"train it by `xcit-mm train {config}`, or name another by --config"
        raise FileExistsError(f"{config} exists: {fix}")
    return config


def _write(options: argparse.Namespace, config: Path, tiles_path: Path | None) -> None:
    """Write the config and the objects of a fine-tuning, and of a labelled raster its tiles."""
    paths = {name: getattr(options, name) for name in ("data", "val", "images", "val_images")}
    source = Source(**{name: Path(os.path.abspath(path)) for name, path in paths.items() if path})
    cfg = read_model(options.model)
    is_detector = cfg.default_scope == "mmdet"
    tiles = None
    if tiles_path is not None:
        source, tiles = cut(options, tiles_path, cfg)
    elif is_detector and source.data.is_dir():
        problem = f"{options.data} is a folder, and a detector takes a COCO json or a data.yaml"
        fix = f"see {PAGE}"
        for files in suggest_files(options.data)[:1]:
            fix = shlex.join(["xcit-mm", "train", "--from", options.model, *files])
        raise IsADirectoryError(f"{problem}: {fix}")
    dataset = read_dataset(source, is_detector, configured_classes(cfg) or ())
    values = adapt(cfg, dataset, options.boxes)
    if tiles is None:
        values["large"] = scale_of_photos(cfg, dataset)
    else:
        adapt_to_tiles(values, cfg, tiles)
    write_config(config, cfg, dataset, source, values)
    print(f"{config.stem}: {dataset.describe()}", file=sys.stderr)
