"""`xcit-mm export`: write a trained detector or segmentor as ONNX."""

from collections.abc import Sequence
from pathlib import Path

from ..utils.cli import CommandParser, cli_main
from .options import VERBOSE, add_model, checkpoint_of

CALLS = """
xcit-mm export MODEL --out model.onnx
xcit-mm export CONFIG CHECKPOINT --out model.onnx
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("export", CALLS)
    add_model(parser, checkpoint_follows=True)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE", help="file to write, .onnx")
    add("--verbose", action="store_true", help=VERBOSE)
    args = parser.parse_args(argv)

    def work() -> None:
        from ..deployment import export  # which an older torch cannot import

        deviation = export(args.model, args.out, checkpoint=checkpoint_of(args))
        print(f"within {deviation:.1e} of torch, in units of the largest value")
        print(f"{args.out} ({args.out.stat().st_size / 1e6:.1f} MB)")

    return cli_main(work, f"{args.out} is not written", args.verbose, parser)
