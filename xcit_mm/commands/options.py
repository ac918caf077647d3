"""Options that several commands share."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmengine.config import DictAction

from ..models.precision import DTYPES
from ..utils.errors import ArgumentError


class KeyValues(DictAction):
    """The values of `--cfg-options KEY=VALUE ...` by dotted key."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        try:
            if any(" " in value.replace(", ", ",") for value in values):
                raise ValueError  # mmengine would drop the spaces
            super().__call__(parser, namespace, values, option)
        except (ValueError, AssertionError):
            fix = "write KEY=VALUE, close each bracket, and leave out spaces"
            problem = f"{' '.join(values)}: {fix}"
            raise argparse.ArgumentError(self, problem) from None


def score(text: str) -> float:
    """Parse an option that must be a score from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a score from 0 to 1")
    return value


CONFIG = "a config of mmdet, mmseg or mmpretrain, a model's name or a work folder"
WHOLE = "the trunk sees the whole image, and only neck and heads see windows"
_TYPES = (*DTYPES, "auto")

_OPTIONS: dict[str, dict[str, Any]] = {
    "model": dict(
        metavar="MODEL", help="a published model's name, the work folder of a training, or a config"
    ),
    "--checkpoint": dict(
        metavar="FILE", help="path, URL, xcit://NAME, hf://OWNER/NAME (default: the model's own)"
    ),
    "following": dict(nargs="?", metavar="CHECKPOINT", help="as --checkpoint"),
    "--verbose": dict(action="store_true", help="print the traceback of an error"),
    # A training, and a test.
    "--work-dir": dict(
        type=Path, metavar="DIR", help="folder of the run (default: work_dirs/CONFIG)"
    ),
    "--cfg-options": dict(
        nargs="+",
        action=KeyValues,
        metavar="KEY=VALUE",
        help="values that replace those in the config",
    ),
    "--skip-checks": dict(action="store_true", help="start without the doctor's checks"),
    "--amp": dict(action="store_true", help="train in mixed precision"),
    "--auto-scale-lr": dict(action="store_true", help="scale the learning rate to the batch size"),
    "--launcher": dict(
        choices=("none", "pytorch"), default="none", help="pytorch: torchrun started this process"
    ),
    # A `Predictor`.
    "--device": dict(help="cpu, cuda:1 ... (default: a GPU if there is one)"),
    "--dtype": dict(choices=_TYPES, default="float32", metavar="TYPE", help=", ".join(_TYPES)),
    "--batch-size": dict(
        type=int, default=1, metavar="N", help="images or tiles per batch (default: 1)"
    ),
    "--min-score": dict(type=score, metavar="S", help="minimum score of objects in the results"),
    # A large image.
    "--tile": dict(type=int, metavar="PIXELS", help="side of a tile"),
    "--overlap": dict(
        type=int,
        metavar="PIXELS",
        help="pixels that two tiles share (default: a quarter of a tile)",
    ),
    "--scale": dict(
        type=float,
        metavar="FACTOR",
        help="factor by which the image is resized (default: as in training)",
    ),
    "--window": dict(
        type=int,
        metavar="PIXELS",
        help="side of a window of a whole image (default: docs/large-images.md)",
    ),
    "--scratch": dict(
        type=Path,
        metavar="DIR",
        help="folder for what a whole image needs beyond 256 MiB (default: beside the result)",
    ),
    # A raster, and its labels.
    "--class-column": dict(
        metavar="NAME", help="column with the classes of the labels (default: class)"
    ),
    "--class": dict(
        dest="class_name", metavar="NAME", help="the class of all labels, without a column"
    ),
    "--layer": dict(metavar="NAME", help="layer with the labels (default: the only one)"),
    "--aoi": dict(metavar="FILE", help="polygons that limit the area, in a vector file"),
    "--bands": dict(type=int, nargs="+", metavar="N", help="numbers of the bands, from 1"),
    "--bounds": dict(
        type=float,
        nargs="+",
        metavar="X",
        help="values that become 0 and 255: a pair, or a pair per band",
    ),
    "--nodata": dict(
        type=float,
        metavar="X",
        help="the value of pixels without data, as in --nodata=-9999",
    ),
}
RUN = ("--work-dir", "--cfg-options", "--skip-checks", "--verbose")
TRAINING = ("--amp", "--auto-scale-lr", *RUN)
PREDICTOR = ("--device", "--dtype", "--batch-size", "--min-score")
TILES = ("--tile", "--overlap")
VIEW = ("--scale", "--window", "--scratch")
COLUMNS = ("--class-column", "--class", "--layer")
RASTER = (*TILES, *COLUMNS, "--aoi", "--bands", "--bounds", "--nodata")


def add_options(parser: "argparse._ActionsContainer", names: Iterable[str]) -> None:
    """Add shared options to a parser, or to a group of options in a parser."""
    for name in names:
        parser.add_argument(name, **_OPTIONS[name])


def take(options: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Remove the values of some options from all options of a command, and return them."""
    keys = [_OPTIONS.get(name, {}).get("dest", name[2:].replace("-", "_")) for name in names]
    return {key: options.pop(key) for key in keys}


def choose_checkpoint(option: str | None, following: str | None) -> str | None:
    """Return the checkpoint from `--checkpoint`, or the one that follows the model."""
    if option and following:
        raise ArgumentError("checkpoint", f"{following} is given too: leave one of them out")
    return option or following
