"""Options that several commands share."""

import argparse
from pathlib import Path
from typing import Any

from ..models.precision import DTYPES
from ..prediction.cluster import rank_device
from ..utils.arguments import score

CHECKPOINT = "path, URL or xcit://NAME (default: the model's own)"
CONFIG = "a config of mmdet, mmseg or mmpretrain, a model's name or a work folder"
WHOLE = "the trunk sees the whole image, and only the heads see tiles"
VERBOSE = "print the traceback of an error"
LABEL_OPTIONS = ("class_column", "class_name", "layer")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a training and of a test."""
    add = parser.add_argument
    work_dir_help = "folder of logs and checkpoints (default: work_dirs/CONFIG)"
    add("--work-dir", type=Path, metavar="DIR", help=work_dir_help)
    changes = add("--cfg-options", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    changes.help = "changes of the config"
    add("--skip-checks", action="store_true", help="start without the doctor's checks")
    log_help = "print the library's own log, and the traceback of an error"
    add("--verbose", action="store_true", help=log_help)
    launchers = ("none", "pytorch", "slurm", "mpi")
    add("--launcher", choices=launchers, default="none", help="how processes are started")


def add_predictor_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a `Predictor`."""
    add = parser.add_argument_group("model").add_argument
    add("--device", help="cpu, cuda:1 ... (default: a GPU if there is one)")
    dtype_help = "float32, float16, bfloat16, or auto (default: %(default)s)"
    add("--dtype", choices=(*DTYPES, "auto"), default="float32", metavar="TYPE", help=dtype_help)
    batch_help = "images of one size, or tiles, together (default: %(default)s)"
    add("--batch-size", type=int, default=1, metavar="N", help=batch_help)
    score_help = "least score of stored objects, 0 to 1 (default: the config's)"
    add("--min-score", type=score, metavar="S", help=score_help)
    add("--verbose", action="store_true", help=VERBOSE)


def predictor_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of `add_predictor_options`, with the GPU of this rank of torchrun."""
    options = {name: getattr(args, name) for name in ("dtype", "batch_size", "min_score")}
    return dict(options, device=args.device or rank_device())


def add_raster_options(parser: "argparse._ActionsContainer") -> None:
    """Add options of rasters and their labels. Their default is None."""
    add = parser.add_argument
    add("--class-column", metavar="NAME", help="column of the labels' classes (default: class)")
    add("--class", dest="class_name", metavar="NAME", help="class of all labels")
    add("--layer", metavar="NAME", help="layer of the labels (default: the only one)")
    add("--aoi", metavar="FILE", help="only within the polygons of a vector file")
    add("--tile", type=int, metavar="PIXELS", help="side of a tile (default: of the training)")
    overlap_help = "of tiles (default: of the training, or tile / 4)"
    add("--overlap", type=int, metavar="PIXELS", help=overlap_help)
    add("--bands", type=int, nargs="+", metavar="N", help="numbers of the bands, from 1")
    bounds_help = "LOW HIGH that become 0 and 255 (default: of the training)"
    add("--bounds", type=float, nargs="+", metavar="X", help=bounds_help)
    add("--nodata", type=float, metavar="X", help="a value without data, as --nodata=-9999")
