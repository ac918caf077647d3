"""`xcit-mm export`: write a trained detector, segmentor or backbone as ONNX."""

from collections.abc import Sequence
from pathlib import Path

from ..utils.arguments import CommandParser
from ..utils.cli import cli_main, ignore_broken_pipe
from ..weights.zoo import find_model
from .options import CHECKPOINT, VERBOSE

CALLS = """
xcit-mm export MODEL --out model.onnx      # MODEL: a model's name or a work folder
xcit-mm export CONFIG CHECKPOINT --out model.onnx [--part backbone]
"""
DESCRIPTION = """
The file takes a batch of normalised images (B, C, H, W) of any size. Its metadata state mean, std,
channel order, resizing and classes. xcit_mm/deployment/run.py runs it without torch. The file is
compared with torch at other sizes than the traced one. If it deviates, nothing is written and the
exit code is 1.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("export", CALLS, description=DESCRIPTION)
    add = parser.add_argument
    add("config", metavar="MODEL", help="a model's name, a work folder, a checkpoint or a config")
    add("checkpoint", nargs="?", help=CHECKPOINT)
    add("--out", type=Path, required=True, metavar="FILE", help="file to write, .onnx")
    part_help = "what to write (default: %(default)s)"
    add("--part", choices=("backbone", "model"), default="model", help=part_help)
    add("--verbose", action="store_true", help=VERBOSE)
    args = parser.parse_args(argv)

    def work() -> None:
        from ..deployment import export_model  # which an older torch cannot import

        config, checkpoint = find_model(args.config, args.checkpoint)
        lines = export_model(config, checkpoint, args.out, args.part)
        with ignore_broken_pipe():
            print(*lines, f"{args.out} ({args.out.stat().st_size / 1e6:.1f} MB)", sep="\n")

    return cli_main(work, f"{args.out} is not written", args.verbose)
