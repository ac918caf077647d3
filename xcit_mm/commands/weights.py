"""`xcit-mm weights`: list and inspect XCiT weights."""

from collections.abc import Sequence

from ..utils.arguments import CommandParser
from ..utils.cli import cli_main, ignore_broken_pipe
from ..weights.bands import stem_key
from ..weights.layouts import describe, list_prefixes, parse_checkpoint
from ..weights.published import PUBLISHED, local_path
from ..weights.zoo import load_checkpoint

CALLS = """
xcit-mm weights list
xcit-mm weights inspect FILE [--prefix PREFIX] [--ema]
"""


def list_names() -> None:
    """Print detectors and segmentors, then trunks with class attention."""
    row = "{:<36}{:<12}{:<9}{:<8}{:<22}{:<38}{:<12}{}".format
    print(row("name", "downloaded", "model", "pixels", "training", "timm", "licence", "URL"))
    for name, file in PUBLISHED.items():
        downloaded = "yes" if local_path(name).exists() else "-"
        facts = (file.resolution, file.training, file.timm_name or "-", file.licence, file.url)
        print(row(f"xcit://{name}", downloaded, f"{file.arch}/p{file.patch_size}", *facts))


def inspect(file: str, use_ema: bool, prefix: str | None) -> None:
    """Print a table of each model of a file, or of the one under a prefix."""
    checkpoint = load_checkpoint(file)
    prefixes = [prefix] if prefix else list_prefixes(checkpoint, use_ema)
    for name in prefixes or [""]:
        weights = parse_checkpoint(checkpoint, use_ema, name)
        print(f"prefix      {weights.prefix or 'none'}")
        print(f"layout      {weights.layout}")
        print(f"task        {weights.task}")
        print(f"arch/patch  {describe(weights.trunk)}")
        print(f"bands       {weights.trunk[stem_key(weights.trunk)].shape[1]}")
        print(f"pyramid     {'yes' if weights.needs_pyramid else 'no'}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("weights", CALLS)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", prog=parser.prog)
    commands.add_parser("list", help="print the published files")
    command = commands.add_parser("inspect", help="print layout and architecture of a file")
    command.add_argument("file", help="path, URL, xcit://NAME or hf://OWNER/NAME")
    command.add_argument("--prefix", help="of the model (default: each model of the file)")
    ema_help = "take model_ema or state_dict_ema of a training file (default: its model)"
    command.add_argument("--ema", action="store_true", help=ema_help)
    args = parser.parse_args(argv)

    def work() -> None:
        with ignore_broken_pipe():
            if "file" in args:
                inspect(args.file, args.ema, args.prefix)
            else:
                list_names()

    return cli_main(work, "nothing is written")
