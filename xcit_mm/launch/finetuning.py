"""`train --from MODEL --data DATA`: the config of a fine-tuning, checked, written and trained."""

import argparse
import re
import sys
from pathlib import Path

from ..utils.cli import cli_main
from .config import name_of, write_finetuning_config
from .model import Adapted, adapt_to_data
from .rasters import adapt_to_tiles, check_is_new, cut
from .run import train
from .source import read_data


def finetune(options: argparse.Namespace) -> int:
    """Write the config of a fine-tuning, and train it, which checks it. Return the exit code.

    Nothing is written if the model cannot be fine-tuned on the data. A
    model with masks becomes one without if no annotation has a mask.

    Args:
        options: Options of `xcit-mm train` with `model` and `data`.
    """
    data = options.data.resolve()
    name = re.sub(r"\W+", "-", name_of(data)).strip("-") or "data"
    config = options.new_config or Path(f"{name}.py")

    def prepare() -> None:
        check_is_new(config)
        adapted = Adapted.of(options.model)
        tiles = None if options.labels is None else cut(options, config, adapted.cfg)
        dataset = read_data(data, adapted.cfg) if tiles is None else tiles.dataset
        adapt_to_data(adapted, dataset, options.boxes)
        if tiles is not None:
            adapt_to_tiles(adapted, adapted.cfg, tiles)
        print(write_finetuning_config(config, adapted, dataset, data, tiles), file=sys.stderr)
        print(
            f"written: {config}; edit it, and train it by xcit-mm train {config}", file=sys.stderr
        )

    errors = ValueError, OSError, ModuleNotFoundError, RuntimeError
    code = cli_main(prepare, "the run has not started", *errors)
    options.config = str(config)
    return code or train(options)
