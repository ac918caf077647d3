"""The command `xcit-mm`."""

import sys
from collections.abc import Sequence
from importlib import import_module

from xcit_mm.version import __version__

COMMANDS = {
    "predict": "detect or segment in images and folders of images",
    "raster": "detect or segment in a raster on a map, larger than memory",
    "finetune": "fine-tune a model on your own data",
    "train": "train a config",
    "test": "score a model on the data set of its config",
    "export": "write a model as ONNX",
    "doctor": "check the installation, or a training run before it starts",
    "weights": "list and inspect weights",
    "tool": "run a script of mmdet or mmseg with this package",
}
"""Summary of every command, which is a module of `xcit_mm.commands`."""

_USAGE = """usage: xcit-mm COMMAND ...

{commands}

xcit-mm COMMAND --help lists the arguments, xcit-mm --version the version. A MODEL is the name of a
published model, the work folder of a training run, or a config and its checkpoint. For example:

  xcit-mm predict maskrcnn_xcit_small_12_p16 photo.jpg"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        argv: Command line after the name of the program. Default: `sys.argv[1:]`.
    """
    argv = sys.argv[1:] if argv is None else argv
    command, *arguments = argv or ["--help"]
    if command in ("-h", "--help"):
        lines = [f"  {name:10} {summary}" for name, summary in COMMANDS.items()]
        print(_USAGE.format(commands="\n".join(lines)))
        return 0
    if command == "--version":
        print(f"xcit_mm {__version__}")
        return 0
    if command in COMMANDS:
        try:
            module = import_module(f"xcit_mm.commands.{command}")
        except ModuleNotFoundError as error:
            sys.exit(f"xcit-mm {command}: {error}: install the extra for it, see docs/install.md")
        return module.main(arguments)
    print(f"{command!r} is not a command: choose from {', '.join(COMMANDS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
