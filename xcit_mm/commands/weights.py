"""`xcit-mm weights`: list and inspect XCiT weights."""

from collections.abc import Sequence

from ..utils.cli import CommandParser, cli_main
from ..weights.layouts import describe, list_prefixes, parse_checkpoint
from ..weights.lookup import load_checkpoint
from ..weights.published import PUBLISHED, local_path
from ..weights.stem import stem_key

CALLS = """
xcit-mm weights list
xcit-mm weights inspect FILE
"""


def list_names() -> None:
    """Print detectors and segmentors, then trunks with class attention."""
    row = "{:<36}{:<12}{:<9}{:<8}{:<22}{:<38}{:<12}{}".format
    print(row("name", "downloaded", "model", "pixels", "training", "timm", "licence", "URL"))
    for name, file in PUBLISHED.items():
        downloaded = "yes" if local_path(name).exists() else "-"
        facts = (file.resolution, file.training, file.timm_name or "-", file.licence, file.url)
        print(row(f"xcit://{name}", downloaded, f"{file.arch}/p{file.patch_size}", *facts))


def inspect(file: str) -> None:
    """Print a table of each model of a file."""
    checkpoint = load_checkpoint(file)
    for prefix in list_prefixes(checkpoint) or [""]:
        weights = parse_checkpoint(checkpoint, prefix=prefix)
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
    args = parser.parse_args(argv)

    def work() -> None:
        if "file" in args:
            inspect(args.file)
        else:
            list_names()

    return cli_main(work, "nothing is written")
