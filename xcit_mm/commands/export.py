"""`xcit-mm export`: write a trained detector or segmentor as ONNX."""

from collections.abc import Sequence
from pathlib import Path

from ..utils.cli import CommandParser
from .options import add_options, choose_checkpoint

CALLS = """
xcit-mm export MODEL --out model.onnx
xcit-mm export CONFIG CHECKPOINT --out model.onnx
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("export", CALLS)
    add_options(parser, ("model", "following", "--checkpoint"))
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="file to write, .onnx"
    )
    add_options(parser, ["--verbose"])
    return parser.run(argv, export, "the file is not written")


def export(model: str, checkpoint: str | None, following: str | None, out: Path) -> None:
    """Export a model, and print how exact and how large the file is."""
    from .. import export as write  # an older torch cannot import it

    deviation = write(model, out, checkpoint=choose_checkpoint(checkpoint, following))
    print(f"within {deviation:.1e} of torch, in units of the largest value")
    print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
