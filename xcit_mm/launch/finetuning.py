"""`train --from MODEL --data DATA`: the config of a fine-tuning, checked, written and trained."""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..checks.own_data import check_dataset, raise_failures
from ..utils.cli import cli_main
from .config import name_of, write_finetuning_config
from .model import Adapted, adapt_to_data
from .rasters import adapt_to_tiles, check_is_new, cut
from .run import run_tool
from .source import read_data

if TYPE_CHECKING:
    from ..rasters.cutting import Tiles


def finetune(options: argparse.Namespace) -> int:
    """Write the config of a fine-tuning, check it, and train it. Return the exit code.

    Args:
        options: Options of `xcit-mm train` with `model` and `data`.
    """
    data = options.data.resolve()
    config = options.new_config or Path(re.sub(r"\W+", "-", name_of(data)) + ".py")

    def prepare() -> None:
        tiles = None if options.labels is None else cut(options, config)
        line = prepare_finetuning(
            options.model, data, config, options.boxes, tiles, options.skip_checks
        )
        print(line, file=sys.stderr)
        print(f"written: {config}; edit it, and train it by train {config}", file=sys.stderr)

    errors = ValueError, OSError, ModuleNotFoundError, RuntimeError
    code = cli_main(prepare, "the run has not started", *errors)
    options.config = str(config)
    return code or run_tool("train", options)


def prepare_finetuning(
    model: str,
    data: Path,
    config: Path,
    boxes: bool = False,
    tiles: "Tiles | None" = None,
    skip_checks: bool = False,
) -> str:
    """Read and check a data set, and write a config that fine-tunes a detector or a segmentor on
    it. Return a description of the data.

    A model with masks becomes one without if no annotation has a mask.

    Args:
        model: As in `find_model`, or a config alone, which trains from its own start.
        data: For a detector as in `read_objects`, for a segmentor as in `read_maps`.
        config: As in `write_finetuning_config`.
        boxes: Whether a model with masks shall find only boxes.
        tiles: The tiles that were cut from `data`, which are rasters.
        skip_checks: Whether the data are written though a check may fail.

    Raises:
        FileExistsError: If `config` exists.
        FileNotFoundError: If files are missing.
        ValueError: If the model is another, or the data cannot train it.
    """
    check_is_new(config)
    adapted = Adapted.of(model)
    dataset = read_data(data, adapted.cfg) if tiles is None else tiles.dataset
    adapt_to_data(adapted, dataset, boxes)
    if tiles is not None:
        adapt_to_tiles(adapted, adapted.cfg, tiles)
    elif not skip_checks:
        raise_failures(check_dataset(dataset, adapted.masks))
    return write_finetuning_config(config, adapted, dataset, data, tiles)
