"""`train --from MODEL --data DATA`: the config of a fine-tuning, checked and trained."""

import argparse
import re
import sys
from pathlib import Path

from ..datasets import EXPECTED
from ..rasters.options import LOADING, TILING, add_raster_options
from ..utils.cli import cli_main
from .config import write_finetuning_config
from .rasters import cut
from .run import run_tool

RASTER_OPTIONS = (*LOADING, *TILING, "class_column", "aoi", "no_val")


def finetune(argv: list[str]) -> int:
    """Write the config of a fine-tuning, check it, and train it. Return the exit code.

    Args:
        argv: Command line with `--from`, `--data` and flags of the library's tools/train.py.
    """
    parser = argparse.ArgumentParser(
        usage="train --from MODEL --data DATA [--config CONFIG] [--boxes] [FLAG ...]\n"
        "       train --from MODEL --data RASTERS --labels LABELS [OPTION ...] [FLAG ...]",
        epilog="Flags, such as --amp, are those of train CONFIG.",
    )
    parser.add_argument(
        "--from",
        dest="model",
        required=True,
        help="a model's name, a work folder, or a config to train from scratch",
    )
    parser.add_argument(
        "--data", type=Path, required=True, help=f"{EXPECTED}; folders of images and maps"
    )
    parser.add_argument("--config", type=Path, help="config to write (default: NAME_OF_DATA.py)")
    boxes_help = "train boxes alone, also if the model and some annotations have masks"
    parser.add_argument("--boxes", action="store_true", help=boxes_help)
    labels_help = "polygons of any vector file, or a raster of classes: DATA are rasters"
    parser.add_argument("--labels", metavar="FILE", help=labels_help)
    add_raster_options(parser)
    no_val_help = "hold no tiles of rasters out"
    parser.add_argument("--no-val", action="store_true", default=None, help=no_val_help)
    options, flags = parser.parse_known_args(argv)
    data = options.data.resolve()
    name = data.stem if data.is_file() else data.name
    config = options.config or Path(re.sub(r"\W+", "-", name) + ".py")

    def prepare() -> None:
        if "--launcher" in flags:
            raise ValueError(
                f"--from writes {config} in one process: then train it with --launcher"
            )
        used = [name for name in RASTER_OPTIONS if getattr(options, name) is not None]
        if used and options.labels is None:
            raise ValueError(f"--{used[0].replace('_', '-')} is for rasters: give --labels")
        tiles = None if options.labels is None else cut(options, config)
        folder = data if tiles is None else tiles.folder
        line = write_finetuning_config(options.model, folder, config, options.boxes, tiles)
        print(line, file=sys.stderr)
        hint = f"If a check fails, correct config or data, then train {config}"
        print(f"written: {config}. {hint}", file=sys.stderr)

    errors = ValueError, OSError, ModuleNotFoundError, RuntimeError
    code = cli_main(prepare, "the run has not started", *errors)
    return code or run_tool("train", [str(config), *flags])
