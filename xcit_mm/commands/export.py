"""`xcit-mm export`: write a trained detector or segmentor as ONNX."""

from collections.abc import Sequence
from pathlib import Path

from ..utils.cli import CommandParser, cli_main
from ..weights.zoo import find_model
from .options import CHECKPOINT, MODEL, VERBOSE

CALLS = """
xcit-mm export MODEL --out model.onnx
xcit-mm export CONFIG CHECKPOINT --out model.onnx
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("export", CALLS)
    add = parser.add_argument
    add("config", metavar="MODEL", help=MODEL)
    add("checkpoint", nargs="?", help=CHECKPOINT)
    add("--out", type=Path, required=True, metavar="FILE", help="file to write, .onnx")
    add("--verbose", action="store_true", help=VERBOSE)
    args = parser.parse_args(argv)

    def work() -> None:
        from ..deployment import export_model  # which an older torch cannot import

        config, checkpoint = find_model(args.config, args.checkpoint)
        lines = export_model(config, checkpoint, args.out)
        print(*lines, f"{args.out} ({args.out.stat().st_size / 1e6:.1f} MB)", sep="\n")

    return cli_main(work, f"{args.out} is not written", args.verbose)
