"""`train --from MODEL --data DATA`: the config of a fine-tuning, checked and trained."""

import argparse
import re
import sys
from pathlib import Path

from ..rasters.options import LOADING, TILING
from ..utils.cli import cli_main
from .config import write_finetuning_config
from .rasters import cut
from .run import run_tool

RASTER_OPTIONS = (*LOADING, *TILING, "class_column", "layer", "aoi", "no_val")


def finetune(options: argparse.Namespace) -> int:
    """Write the config of a fine-tuning, check it, and train it. Return the exit code.

    Args:
        options: Options of `xcit-mm train` with `model` and `data`.
    """
    data = options.data.resolve()
    name = data.stem if data.is_file() else data.name
    config = options.new_config or Path(re.sub(r"\W+", "-", name) + ".py")

    def prepare() -> None:
        if options.launcher != "none":
            raise ValueError(
                f"--from writes {config} in one process: then train it with --launcher"
            )
        used = [name for name in RASTER_OPTIONS if getattr(options, name) is not None]
        if used and options.labels is None:
            raise ValueError(f"--{used[0].replace('_', '-')} is for rasters: give --labels")
        tiles = None if options.labels is None else cut(options, config)
        line = write_finetuning_config(
            options.model, data, config, options.boxes, tiles, options.skip_checks
        )
        print(line, file=sys.stderr)
        print(f"written: {config}; edit it, and train it by train {config}", file=sys.stderr)

    errors = ValueError, OSError, ModuleNotFoundError, RuntimeError
    code = cli_main(prepare, "the run has not started", *errors)
    options.config = str(config)
    return code or run_tool("train", options)
