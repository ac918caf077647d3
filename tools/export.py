"""Export a trained detector, segmentor or backbone to ONNX or torch.export, for images of any size.

    python tools/export.py MODEL --out model.onnx                      # a model's name or a work folder
    python tools/export.py CONFIG CHECKPOINT --out model.onnx [--evaluate 100]
    python tools/export.py CONFIG CHECKPOINT --out backbone.pt2 --part backbone
    python tools/export.py CONFIG CHECKPOINT --out model.onnx --with-preprocessing [--fp16 | --int8 IMAGES]

The input is a normalised image (B, C, H, W), for detectors one image. The file's metadata specify mean, std, channel
order, classes and the other steps of the config's test pipeline. With --with-preprocessing the file contains these
steps: the input is an image (H, W, 3), RGB, uint8, and the results are in its pixels. xcit_mm/deployment/run.py runs
both kinds without torch. --fp16 writes half precision, for GPUs, --int8 writes 8 bits, for CPUs. The file is compared
with torch at other sizes than the traced one. If it deviates, nothing is written and the exit code is 1.
"""

import argparse
import re
import signal
import sys
from pathlib import Path

from broken_pipe import ignore_broken_pipe

from xcit_mm.deployment import ExportTarget, export_model
from xcit_mm.deployment.target import PARTS
from xcit_mm.utils.cli import cli_main
from xcit_mm.weights.models import add_model_arguments, find_model


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser, "; it must fill the whole exported part")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write, .onnx or .pt2")
    parser.add_argument("--part", choices=PARTS, default="model", help="default: the whole model")
    parser.add_argument("--with-preprocessing", action="store_true", help="add the preprocessing to the .onnx file")
    parser.add_argument(
        "--evaluate", type=int, metavar="N", help="score file and torch on N images of the config's test set"
    )
    parser.add_argument(
        "--size", metavar="HxW", help="fixed height and width of one image, such as 800x1344 (default: any size)"
    )
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--fp16", action="store_true", help="write half precision, for GPUs")
    precision.add_argument(
        "--int8",
        metavar="IMAGES",
        help="write int8, calibrated with a folder, glob or list of images (32 to 100 are enough), and score it on the "
        "config's test set, all or N images",
    )
    return parser.parse_args()


def parse_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d+x\d+", text):
        raise ValueError(f"--size {text}: write HEIGHTxWIDTH, such as 800x1344")
    height, width = map(int, text.split("x"))
    return height, width


def main() -> int:
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # removes unfinished files
    precision = "float16" if args.fp16 else "float32" if args.int8 is None else "int8"

    def work() -> None:
        target = ExportTarget(args.out, args.part, precision, args.with_preprocessing, parse_size(args.size))
        model = find_model(args.config, args.checkpoint)
        report = export_model(model.config, model.checkpoint, target, args.evaluate, args.int8)
        with ignore_broken_pipe():
            print(*report.lines(), f"{args.out} ({args.out.stat().st_size / 1e6:.1f} MB)", sep="\n")

    errors = (ValueError, TypeError, OSError, RuntimeError, ModuleNotFoundError)
    return cli_main(work, f"{args.out} is not written", *errors)


if __name__ == "__main__":
    sys.exit(main())
