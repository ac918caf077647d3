"""`xcit-mm train`: train a config, or fine-tune a model on own data."""

from collections.abc import Sequence
from pathlib import Path

from .. import launch
from ..rasters.settings import READING
from ..utils.cli import CommandParser
from ..utils.memory import keep_freed_memory
from .options import CONFIG, LABEL_OPTIONS, add_raster_options, add_run_options

CALLS = """
xcit-mm train --from MODEL --data DATA [OPTION ...]    # writes a config, checks and trains it
xcit-mm train CONFIG [--resume] [OPTION ...]
xcit-mm train --from MODEL --data RASTER --labels LABELS [OPTION ...]
"""


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    parser = CommandParser("train", CALLS)
    add = parser.add_argument
    add("config", nargs="?", help=CONFIG)
    add("--resume", nargs="?", const="", metavar="FILE", help="from a checkpoint, or the last one")
    add("--amp", action="store_true", help="train in mixed precision")
    add("--auto-scale-lr", action="store_true", help="scale the learning rate to the batch")
    add_run_options(parser)
    add = parser.add_argument_group("own data").add_argument
    add("--from", dest="model", help="a model's name, a work folder, or a config")
    add("--data", type=Path, help="a COCO json, YOLO's data.yaml, a folder of maps, or a raster")
    add("--val", type=Path, metavar="JSON", help="COCO json of the validation (default: none)")
    add("--images", type=Path, metavar="DIR", help="folder of images (default: that of the json)")
    add("--val-images", type=Path, metavar="DIR", help="that of --val (default: --images)")
    add("--config", type=Path, dest="new_config", help="config to write (default: NAME_OF_DATA.py)")
    add("--boxes", action="store_true", help="train boxes alone, where some objects lack masks")
    rasters = parser.add_argument_group("a labelled raster")
    add = rasters.add_argument
    add("--labels", metavar="FILE", help="polygons of a vector file: DATA is a raster")
    add_raster_options(rasters)
    add("--overwrite", action="store_true", default=None, help="cut tiles and write CONFIG again")
    add("--no-val", action="store_true", default=None, help="hold no tiles out (default: a part)")
    options = parser.parse_intermixed_args(argv)
    given = [value is not None for value in (options.config, options.model, options.data)]
    if given == [True, False, False]:
        return launch.train(options)
    if given != [False, True, True]:
        parser.error("give CONFIG, or --from and --data, which write a config")
    if options.launcher != "none":
        parser.error("--from writes a config in one process: then train it with --launcher")
    names = (*READING, *LABEL_OPTIONS, "aoi", "no_val", "overwrite")
    if options.labels is None and any(getattr(options, name) is not None for name in names):
        parser.error("options of a labelled raster are for --labels: give it too")
    return launch.finetune(options)
