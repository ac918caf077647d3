"""Export a trained detector, segmentor or backbone to ONNX or torch.export, for images of any size.

    python tools/export.py CONFIG CHECKPOINT --out model.onnx [--evaluate 100]
    python tools/export.py CONFIG CHECKPOINT --out backbone.pt2 --part backbone
    python tools/export.py CONFIG CHECKPOINT --out model.onnx --with-preprocessing [--fp16 | --int8 IMAGES]

The input is a normalised image (B, C, H, W), for detectors one image; mean, std, channel order and classes are in the
file's metadata, and so is what else the config's test pipeline does. With --with-preprocessing the file does it: the
input is the picture (H, W, 3), RGB, uint8, and what is found is in its pixels. xcit_mm/deployment/run.py runs both
kinds without torch. --fp16 writes the file in half precision, for GPUs, --int8 in 8 bits, for CPUs. The file is run
beside torch at other sizes than the traced one; if it deviates, nothing is written and the exit code is 1.
"""

import argparse
import sys
from pathlib import Path

from broken_pipe import ignore_broken_pipe

from xcit_mm.deployment.export import PARTS, Exported, export_model
from xcit_mm.deployment.half import Halved
from xcit_mm.deployment.pictures import Moved
from xcit_mm.utils.cli import cli_main


def found_otherwise(moved: Moved | Halved) -> str:
    if moved.shift is None:
        what = f"{moved.share:.2%} of the pixels are of another class"
    else:
        lost = round(moved.share * moved.compared)
        what = f"{lost} of {moved.compared} detections have no counterpart, the others' boxes move {moved.shift:.2f} px"
    return f"{what} ({moved.pictures})"


def report(exported: Exported, out: Path) -> None:
    for name, line in exported.outputs.items():
        print(f"{name:15} {line}")
    if exported.moved:
        levels = f"within {exported.moved.grey_levels:.1f} grey levels of OpenCV"
        print(f"{'prepared':15} {levels}; {found_otherwise(exported.moved)}")
    for name, (torch_score, file_score) in exported.scores.items():
        print(f"{name:15} {file_score:.4f}, of torch {torch_score:.4f}")
    if exported.quantized:
        for line in exported.quantized.lines():
            print(f"{'int8':15} {line}")
    if exported.halved:
        before, after = exported.halved.megabytes
        print(f"{'fp16':15} {before:.1f} to {after:.1f} MB; on the CPU, {found_otherwise(exported.halved)}")
        for name, (torch_score, full, small) in exported.halved.scores.items():
            print(f"{'fp16':15} {name} {small:.4f}, of float32 {full:.4f}, of torch {torch_score:.4f}")
    if exported.operators:
        operators = ", ".join(f"{name} {count}" for name, count in exported.operators.most_common())
        print(f"{'operators':15} {operators}")
    for key, value in exported.metadata.items():
        print(f"{key:15} {value if len(value) <= 100 else f'{value[:100]}...'}")
    print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("checkpoint", help="a path, a URL or xcit://NAME; it must fill all that is exported")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write, .onnx or .pt2")
    parser.add_argument("--part", choices=PARTS, default="model", help="default: the whole model")
    parser.add_argument(
        "--with-preprocessing", action="store_true", help="let the .onnx file take and prepare pictures"
    )
    parser.add_argument(
        "--evaluate", type=int, metavar="N", help="score file and torch on N images of the config's test set"
    )
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--fp16", action="store_true", help="write it in half precision, for GPUs")
    precision.add_argument(
        "--int8",
        metavar="IMAGES",
        help="write it in int8, calibrated by a folder, glob or list of images, some 32 to 100, and tested on the "
        "config's test set, all or N images",
    )
    args = parser.parse_args()

    def work() -> None:
        exported = export_model(
            config=args.config,
            checkpoint=args.checkpoint,
            out=args.out,
            part=args.part,
            takes_pictures=args.with_preprocessing,
            evaluate=args.evaluate,
            calibration=args.int8,
            half=args.fp16,
        )
        with ignore_broken_pipe():
            report(exported, args.out)

    errors = (ValueError, TypeError, OSError, RuntimeError, ModuleNotFoundError)
    return cli_main(work, f"{args.out} is not written", *errors)


if __name__ == "__main__":
    sys.exit(main())
