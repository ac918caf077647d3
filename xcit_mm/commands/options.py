"""Options that several commands share."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..models.precision import DTYPES
from ..utils.cli import parse_cfg_options, score
from ..utils.errors import ArgumentError
from ..weights.lookup import find_config

CHECKPOINT = "path, URL or xcit://NAME (default: the model's own)"
CONFIG = "a config of mmdet, mmseg or mmpretrain, a model's name or a work folder"
MODEL = "a published model's name, the work folder of a training, or a config"
WHOLE = "the trunk sees the whole image, and only neck and heads see windows"
VERBOSE = "print the traceback of an error"
LABEL_OPTIONS = ("class_column", "class_name", "layer")


def add_model(parser: argparse.ArgumentParser, checkpoint_follows: bool = False) -> None:
    """Add the model of a command, and the checkpoint that takes the place of its own.

    Args:
        checkpoint_follows: Whether the checkpoint may also follow the model, as in mmdet's scripts.
    """
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL)
    add("--checkpoint", metavar="FILE", help=CHECKPOINT)
    if checkpoint_follows:
        add("following", nargs="?", metavar="CHECKPOINT", help="as --checkpoint")


def checkpoint_of(args: argparse.Namespace) -> str | None:
    """Return the checkpoint that is given by its option or after the model."""
    if args.checkpoint and args.following:
        raise ArgumentError("checkpoint", f"{args.following} is given too: leave one of them out")
    return args.checkpoint or args.following


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a training and of a test."""
    add = parser.add_argument
    add(
        "--work-dir", type=Path, metavar="DIR", help="folder of the run (default: work_dirs/CONFIG)"
    )
    changes = add("--cfg-options", nargs="+", action="extend", default=[], metavar="KEY=VALUE")
    changes.help = "values that replace those in the config"
    add("--skip-checks", action="store_true", help="start without the doctor's checks")
    add("--verbose", action="store_true", help=VERBOSE)


def run_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of `add_run_options` as arguments of a training or a test."""
    changes = parse_cfg_options(args.cfg_options)
    return dict(work_dir=args.work_dir, cfg_options=changes, skip_checks=args.skip_checks)


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a training."""
    add = parser.add_argument
    add("--amp", action="store_true", help="train in mixed precision")
    add("--auto-scale-lr", action="store_true", help="scale the learning rate to the batch size")


def add_launcher(parser: argparse.ArgumentParser) -> None:
    """Add the option that says whether torchrun has started the process."""
    choices = ("none", "pytorch")
    help_ = "pytorch: torchrun started this process"
    parser.add_argument("--launcher", choices=choices, default="none", help=help_)


def add_predictor_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a `Predictor`, and `--verbose`."""
    add = parser.add_argument_group("model").add_argument
    add("--device", help="cpu, cuda:1 ... (default: a GPU if there is one)")
    dtypes = (*DTYPES, "auto")
    add("--dtype", choices=dtypes, default="float32", metavar="TYPE", help=", ".join(dtypes))
    add(
        "--batch-size",
        type=int,
        default=1,
        metavar="N",
        help="images or tiles per batch (default: 1)",
    )
    add("--min-score", type=score, metavar="S", help="least score of objects in the results")
    add("--verbose", action="store_true", help=VERBOSE)


def add_tile_options(parser: "argparse._ActionsContainer") -> None:
    """Add the sizes of tiles. Their default is None."""
    add = parser.add_argument
    add("--tile", type=int, metavar="PIXELS", help="side of a tile (default: as in training)")
    overlap = "pixels that two tiles share (default: a quarter of a tile)"
    add("--overlap", type=int, metavar="PIXELS", help=overlap)


def add_view_options(parser: "argparse._ActionsContainer") -> None:
    """Add the options of large images that are seen. Their default is None."""
    add = parser.add_argument
    scale = "factor by which the image is resized (default: as in training)"
    add("--scale", type=float, metavar="FACTOR", help=scale)
    window = "side of a window of a whole image (default: 1024, a detector's as in training)"
    add("--window", type=int, metavar="PIXELS", help=window)
    scratch = "folder for what a whole image needs beyond 256 MiB (default: beside the result)"
    add("--scratch", type=Path, metavar="DIR", help=scratch)


def predictor_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of `add_predictor_options`."""
    return {name: getattr(args, name) for name in ("device", "dtype", "batch_size", "min_score")}


def check_order(command: str, model: str, others: Sequence[str]) -> None:
    """Raise ArgumentError if the model comes after what it predicts, before anything is loaded."""
    models = [other for other in others if _is_model(other)]
    if models and not _is_model(model):
        fix = f"xcit-mm {command} {models[0]} {model}"
        raise ArgumentError("model", f"the model comes first: {fix}")


def _is_model(name: str) -> bool:
    try:
        find_config(name)
    except (ValueError, OSError):
        return False
    return True


def add_raster_options(parser: "argparse._ActionsContainer") -> None:
    """Add options of rasters and their labels. Their default is None."""
    add = parser.add_argument
    add_tile_options(parser)
    add(
        "--class-column",
        metavar="NAME",
        help="column with the classes of the labels (default: class)",
    )
    add(
        "--class",
        dest="class_name",
        metavar="NAME",
        help="the class of all labels, without a column",
    )
    add("--layer", metavar="NAME", help="layer with the labels (default: the only one)")
    add("--aoi", metavar="FILE", help="polygons that limit the area, in a vector file")
    add("--bands", type=int, nargs="+", metavar="N", help="numbers of the bands, from 1")
    add(
        "--bounds",
        type=float,
        nargs="+",
        metavar="X",
        help="values that map to 0 and 255, a pair or one per band",
    )
    add(
        "--nodata",
        type=float,
        metavar="X",
        help="the value of pixels without data, as in --nodata=-9999",
    )
