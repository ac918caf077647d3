"""`xcit-mm weights`: list and inspect XCiT weights."""

import argparse
import reprlib
from collections.abc import Sequence

from ..utils.arguments import CommandParser
from ..utils.cli import cli_main, ignore_broken_pipe
from ..weights.bands import stem_key
from ..weights.layouts import CLASSIFIER_PREFIXES, describe, parse_checkpoint
from ..weights.published import PUBLISHED, local_path
from ..weights.zoo import load_checkpoint

CALLS = """
xcit-mm weights list
xcit-mm weights inspect FILE
"""

# The keys of a dense XCiT and of a classifier.
KNOWN_PREFIXES = (
    "patch_embed.proj.",
    "pos_embeder.token_projection.",
    "blocks.",
    "fpn",
    *CLASSIFIER_PREFIXES,
)


def inspect(args: argparse.Namespace) -> None:
    """Print layout, architecture and metadata of a file."""
    weights = parse_checkpoint(load_checkpoint(args.file), args.ema)
    trunk = weights.trunk
    tensors = {**trunk, **weights.heads}
    floats = [value for value in tensors.values() if value.is_floating_point()]
    dtypes = {str(value.dtype).removeprefix("torch.") for value in floats}
    statistics = ("running_mean", "running_var", "_tracked")
    learned = sum(value.numel() for key, value in tensors.items() if not key.endswith(statistics))
    count = f"{learned / 1e6:.3f} M in {len(tensors)} tensors, {', '.join(sorted(dtypes))}"
    entry = f", under {weights.source!r}" if weights.source else ""
    rows = {
        "layout": f"{weights.layout}{entry}",
        "task": weights.task,
        "arch/patch": describe(trunk),
        "bands": str(trunk[stem_key(trunk)].shape[1]),
        "parameters": count,
        "pyramid": "yes" if any(key.startswith("fpn") for key in trunk) else "no",
        "unknown": ", ".join(key for key in trunk if not key.startswith(KNOWN_PREFIXES)) or "none",
    }
    for title, cell in rows.items():
        print(f"{title:11} {cell}")
    short_repr = reprlib.Repr()  # a small file may hold lists of endless depth
    short_repr.maxdict = short_repr.maxlist = short_repr.maxtuple = 20
    short_repr.maxstring = short_repr.maxother = 200
    for key, value in weights.metadata.items():
        if isinstance(value, argparse.Namespace):
            value = vars(value)
        if isinstance(value, dict):
            value = dict(value)  # repr names the type of a subclass, such as OrderedDict
        line = " ".join((value if isinstance(value, str) else short_repr.repr(value)).split())
        print(f"{key:11} {line[:200]}{'...' if len(line) > 200 else ''}")


def list_names(args: argparse.Namespace) -> None:
    """Print detectors and segmentors, then trunks with class attention."""
    row = "{:<36}{:<12}{:<9}{:<8}{:<22}{:<12}{}".format
    print(row("name", "downloaded", "model", "pixels", "training", "licence", "URL"))
    for name, file in PUBLISHED.items():
        downloaded = "yes" if local_path(name).exists() else "-"
        model = f"{file.arch}/p{file.patch_size}"
        facts = (model, file.resolution, file.training, file.licence, file.url)
        print(row(f"xcit://{name}", downloaded, *facts))


def main(argv: Sequence[str] | None = None) -> int:
    description = "FILE is a path, a URL or xcit://NAME."
    parser = CommandParser("weights", CALLS, description=description)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog=parser.prog)
    command = commands.add_parser("list", help="print the published files")
    command.set_defaults(run=list_names)
    inspect_help = "print layout, architecture and metadata of a file"
    command = commands.add_parser("inspect", help=inspect_help)
    command.add_argument("file", help="path, URL or xcit://NAME")
    ema_help = "take model_ema or state_dict_ema of a training file (default: its model)"
    command.add_argument("--ema", action="store_true", help=ema_help)
    command.set_defaults(run=inspect)
    args = parser.parse_args(argv)

    def work() -> None:
        with ignore_broken_pipe():
            args.run(args)

    # torch raises a RuntimeError if q, k and v of class attention cannot be joined.
    errors = (ValueError, OSError, RuntimeError, ModuleNotFoundError)
    return cli_main(work, "nothing is written", *errors)
