"""The command `xcit-mm`, which runs the scripts in tools/ of a clone or an installed package."""

import sys
from pathlib import Path

from xcit_mm.utils.scripts import load_script, shipped_folder
from xcit_mm.version import __version__

COMMANDS = {
    "predict": ("infer", "detect or segment in images, folders and videos"),
    "raster": ("raster", "detect or segment in a raster on a map, larger than memory"),
    "train": ("train", "train a config"),
    "test": ("test", "score a model on the data set of its config"),
    "export": ("export", "write a model as ONNX"),
    "doctor": ("doctor", "check the installation, or a training run before it starts"),
    "weights": ("weights", "list, download, inspect and convert weights"),
}
"""Script in tools/ and summary of every command."""

_USAGE = """usage: xcit-mm COMMAND ...

{commands}

xcit-mm COMMAND --help lists the arguments, xcit-mm --version the version. A MODEL is the name of a
published model, the work folder of a training run, or a config and its checkpoint. For example:

  xcit-mm predict photo.jpg --model maskrcnn_xcit_small_12_p16"""


def main() -> int:
    """Run a command with the arguments of the process and return its exit code."""
    tools = shipped_folder("tools")
    sys.path.insert(0, str(tools))  # for the modules that the scripts share
    from broken_pipe import ignore_broken_pipe

    with ignore_broken_pipe():
        return _run(tools)


def _run(tools: Path) -> int:
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("-h", "--help"):
        lines = [f"  {name:10} {summary}" for name, (_, summary) in COMMANDS.items()]
        print(_USAGE.format(commands="\n".join(lines)))
        return 0
    if command == "--version":
        print(f"xcit_mm {__version__}")
        return 0
    if command not in COMMANDS:
        print(f"{command!r} is not a command: choose from {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    sys.argv[:2] = [f"xcit-mm {command}"]
    return load_script(tools / f"{COMMANDS[command][0]}.py").main()


if __name__ == "__main__":
    sys.exit(main())
