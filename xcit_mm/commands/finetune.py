"""`xcit-mm finetune`: fine-tune a model on your own data."""

from collections.abc import Sequence
from pathlib import Path

from .. import finetune
from ..utils.cli import CommandParser
from .options import RASTER, TRAINING, add_options

CALLS = """
xcit-mm finetune MODEL DATA [OPTION ...]      # writes a config, checks and trains it
xcit-mm finetune MODEL RASTER --labels LABELS [OPTION ...]
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("finetune", CALLS)
    add_options(parser, ("model", "--checkpoint"))
    add = parser.add_argument
    add("data", metavar="DATA", help="a COCO json, YOLO's data.yaml, a folder of maps, or a raster")
    add("--config", type=Path, metavar="FILE", help="config to write (default: NAME_OF_DATA.py)")
    add("--overwrite", action="store_true", help="replace the config and its jsons or tiles")
    whole = "train a segmentor on whole images of any size, without crops or tiles"
    add("--whole", action="store_true", help=whole)
    add_options(parser, TRAINING)
    add = parser.add_argument_group("photos").add_argument
    add("--val", type=Path, metavar="JSON", help="COCO json of the validation (default: none)")
    add("--images", type=Path, metavar="DIR", help="folder of images (default: that of the json)")
    add("--val-images", type=Path, metavar="DIR", help="images of --val (default: --images)")
    add("--boxes", action="store_true", help="train boxes only, even if objects have masks")
    rasters = parser.add_argument_group("a labelled raster")
    add = rasters.add_argument
    add("--labels", metavar="FILE", help="polygons to learn from, in a vector file")
    no_val = "hold out no labels for the validation"
    add("--no-val", dest="hold_out", action="store_false", help=no_val)
    add_options(rasters, RASTER)
    interrupted = "a training that has started is continued by `xcit-mm train CONFIG --resume`"
    return parser.run(argv, finetune, interrupted)
