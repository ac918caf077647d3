"""`xcit-mm weights`: list and inspect XCiT weights."""

from collections.abc import Sequence

from ..utils.cli import CommandParser
from ..utils.errors import ArgumentError
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
    """Print a table for each model in a file that `prefix` can choose."""
    checkpoint = load_checkpoint(file)
    for prefix in list_prefixes(checkpoint) or [""]:
        weights = parse_checkpoint(checkpoint, prefix=prefix)
        model = describe(weights.trunk)
        print(f"prefix      {weights.prefix or 'none'}")
        print(f"layout      {weights.layout}")
        print(f"task        {weights.task}")
        print(f"arch/patch  {model}")
        print(f"bands       {weights.trunk[stem_key(weights.trunk)].shape[1]}")
        print(f"pyramid     {'yes' if weights.needs_pyramid else 'no'}")


def show(action: str, file: str | None) -> None:
    """List the published files, or inspect a file."""
    if (file is None) == (action == "inspect"):
        raise ArgumentError("file", "give one to inspect, and none to list")
    if file is None:
        list_names()
    else:
        inspect(file)


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser("weights", CALLS)
    actions = "print the published files, or the layout and architecture of a file"
    parser.add_argument("action", choices=("list", "inspect"), help=actions)
    file = "path, URL, xcit://NAME or hf://OWNER/NAME"
    parser.add_argument("file", nargs="?", metavar="FILE", help=file)
    return parser.run(argv, show, "nothing is written")
