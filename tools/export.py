"""Export a trained detector, segmentor or backbone to ONNX, for images of any size.

    xcit-mm export MODEL --out model.onnx                      # a model's name or a work folder
    xcit-mm export CONFIG CHECKPOINT --out model.onnx [--evaluate 100]
    xcit-mm export CONFIG CHECKPOINT --out model.onnx --int8 PHOTOS
    xcit-mm export CONFIG CHECKPOINT --out backbone.onnx --part backbone

The input is a batch of normalised images (B, C, H, W). The file's metadata state mean, std, channel
order, resizing and classes. xcit_mm/deployment/run.py runs it without torch. The file is compared
with torch at other sizes than the traced one. If it deviates, nothing is written and the exit code
is 1.
"""

import argparse
import signal
import sys
from pathlib import Path

from broken_pipe import ignore_broken_pipe

from xcit_mm.deployment import export_model
from xcit_mm.utils.cli import cli_main
from xcit_mm.weights.zoo import find_model


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "config", metavar="MODEL", help="a model's name, a work folder, a checkpoint or a config"
    )
    parser.add_argument(
        "checkpoint", nargs="?", help="a path, a URL or xcit://NAME (default: the model's own)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="file to write, .onnx"
    )
    parser.add_argument(
        "--part", choices=("backbone", "model"), default="model", help="default: the whole model"
    )
    parser.add_argument(
        "--evaluate",
        type=int,
        metavar="N",
        help="score the file and torch on N images of the config's test set",
    )
    parser.add_argument(
        "--int8",
        nargs="+",
        metavar="IMAGES",
        default=(),
        help="write int8, calibrated with up to 100 images of these files or folders, and score it "
        "on the config's test set, all or N images",
    )
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(128 + number)
    )  # removes unfinished files

    def work() -> None:
        config, checkpoint = find_model(args.config, args.checkpoint)
        lines = export_model(config, checkpoint, args.out, args.part, args.evaluate, args.int8)
        with ignore_broken_pipe():
            print(*lines, f"{args.out} ({args.out.stat().st_size / 1e6:.1f} MB)", sep="\n")

    errors = (ValueError, TypeError, OSError, RuntimeError, ModuleNotFoundError)
    return cli_main(work, f"{args.out} is not written", *errors)


if __name__ == "__main__":
    sys.exit(main())
