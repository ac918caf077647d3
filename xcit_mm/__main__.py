"""The command `xcit-mm`, which runs the scripts in tools/ of a clone or of the installed package."""

import importlib.util
import sys
from pathlib import Path

COMMANDS = {
    "predict": ("infer", "detect or segment in images, videos, folders and rasters"),
    "train": ("train", "train a config"),
    "test": ("test", "score a model on the data set of its config"),
    "export": ("export", "write a model as ONNX"),
    "doctor": ("doctor", "check the installation, or a training run before it starts"),
    "features": ("features", "extract features, classify by them, find neighbours"),
    "visualize": ("visualize", "draw what a model computes for an image"),
    "weights": ("weights", "list, download, inspect and convert weights"),
}
"""Script in tools/ and summary of every command."""

_USAGE = """usage: xcit-mm COMMAND ...

{commands}

xcit-mm COMMAND --help lists the arguments. A MODEL is the name of a published model, the work folder of a training run,
or a config and its checkpoint. For example:

  xcit-mm predict photo.jpg maskrcnn_xcit_small_12_p16 --out found"""


def main() -> int:
    """Run a command with the arguments of the process and return its exit code."""
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("-h", "--help"):
        print(_USAGE.format(commands="\n".join(f"  {name:10} {text}" for name, (_, text) in COMMANDS.items())))
        return 0
    if command not in COMMANDS:
        print(f"{command!r} is not a command: choose from {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    package = Path(__file__).parent
    tools = next(path for path in (package / ".mim" / "tools", package.parent / "tools") if path.is_dir())
    sys.argv[:2] = [f"xcit-mm {command}"]
    sys.path.insert(0, str(tools))  # for the modules that the scripts share
    script = COMMANDS[command][0]
    spec = importlib.util.spec_from_file_location(f"xcit_mm_{script}", tools / f"{script}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main()


if __name__ == "__main__":
    sys.exit(main())
