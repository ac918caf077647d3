"""`xcit-mm finetune`: fine-tune a model on own data."""

from collections.abc import Sequence
from pathlib import Path

from .. import launch
from ..rasters.settings import READING
from ..utils.cli import CommandParser, cli_main
from ..utils.memory import keep_freed_memory
from .options import (
    LABEL_OPTIONS,
    add_model,
    add_raster_options,
    add_run_options,
    add_training_options,
    run_options,
)

CALLS = """
xcit-mm finetune MODEL DATA [OPTION ...]      # writes a config, checks and trains it
xcit-mm finetune MODEL RASTER --labels LABELS [OPTION ...]
"""
_DATA_OPTIONS = ("val", "images", "val_images", "boxes", "config", "overwrite", "whole")


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    parser = CommandParser("finetune", CALLS)
    add_model(parser)
    add = parser.add_argument
    add("data", metavar="DATA", help="a COCO json, YOLO's data.yaml, a folder of maps, or a raster")
    add("--config", type=Path, metavar="FILE", help="config to write (default: NAME_OF_DATA.py)")
    add("--overwrite", action="store_true", help="replace the config, and the tiles of a raster")
    whole = "train a segmentor on whole images of any size, without crops or tiles"
    add("--whole", action="store_true", help=whole)
    add_training_options(parser)
    add_run_options(parser)
    add = parser.add_argument_group("photos").add_argument
    add("--val", type=Path, metavar="JSON", help="COCO json of the validation (default: none)")
    add("--images", type=Path, metavar="DIR", help="folder of images (default: that of the json)")
    add("--val-images", type=Path, metavar="DIR", help="that of --val (default: --images)")
    add("--boxes", action="store_true", help="train boxes only, even if objects have masks")
    rasters = parser.add_argument_group("a labelled raster")
    add = rasters.add_argument
    add("--labels", metavar="FILE", help="polygons to learn from, in a vector file")
    add(
        "--no-val",
        dest="hold_out",
        action="store_false",
        help="hold no labels out for the validation",
    )
    add_raster_options(rasters)
    args = parser.parse_intermixed_args(argv)

    def work() -> None:
        names = (*_DATA_OPTIONS, *READING, *LABEL_OPTIONS, "labels", "aoi", "hold_out")
        options = {name: getattr(args, name) for name in names} | run_options(args)
        options |= dict(amp=args.amp, auto_scale_lr=args.auto_scale_lr)
        launch.finetune(args.model, args.data, checkpoint=args.checkpoint, **options)

    message = "`xcit-mm train CONFIG --resume` continues from the last checkpoint"
    return cli_main(work, message, args.verbose, parser)
