"""One command for both libraries: find the one that a config belongs to, check the run, hand over its own script."""

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from mmengine.config import Config

from ..utils.configs import read_config
from ..weights.matching import CheckpointMismatch
from .preflight import check_resume, last_checkpoint
from .start import check_test, check_training, is_first_process

__all__ = ["find_script", "run_tool"]

# With the requirements that install each.
_LIBRARIES = dict(mmdet="mm", mmseg="mm", mmpretrain="classification")
_FLAGS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = dict(
    train=(
        ("--work-dir", dict(metavar="DIR", help="for logs and checkpoints (default: work_dirs/NAME_OF_CONFIG)")),
        (
            "--resume",
            dict(nargs="?", const="", metavar="CHECKPOINT", help="go on from it (default: the last in the work dir)"),
        ),
        ("--amp", dict(action="store_true", help="train in mixed precision, on a GPU")),
        ("--auto-scale-lr", dict(action="store_true", help="fit the learning rate to the batch (mmdet, mmpretrain)")),
    ),
    test=(
        ("--work-dir", dict(metavar="DIR", help="for logs and scores (default: work_dirs/NAME_OF_CONFIG)")),
        ("--out", dict(metavar="PATH", help="write predictions: a .pkl (mmdet, mmpretrain) or a folder (mmseg)")),
        ("--show-dir", dict(metavar="DIR", help="draw predictions beside ground truth")),
        ("--show", dict(action="store_true", help="show them in a window")),
        ("--wait-time", dict(metavar="SECONDS", help="for which a window shows one")),
        ("--tta", dict(action="store_true", help="predict in several views of each image")),
    ),
)
_SHARED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--cfg-options", dict(nargs="+", metavar="KEY=VALUE", help="change the config")),
    ("--launcher", dict(metavar="LAUNCHER", help="none, pytorch, slurm or mpi (default: none)")),
)


def run_tool(tool: str, argv: list[str]) -> None:
    """Run the `tools/TOOL.py` of mmdet, mmseg or mmpretrain on a config of theirs, with the arguments as given.

    What can be known to fail is reported first, in one line, before anything is written. `--resume` means the same for
    all of them: it goes on from the checkpoint given, else from the last in the work folder, and while there is none,
    the run starts as it would without.

    Args:
        tool: 'train' or 'test'.
        argv: The command line after the program's name.
    """
    parser = _parser(tool)
    if "-h" in argv or "--help" in argv:
        config = next((arg for arg in argv if arg.endswith(".py")), None)
        if config is None:
            parser.print_help()
            return
        argv = [config, "--help"]
    try:
        if "--help" in argv:
            cfg = read_config(argv[0], [])
            script = find_script(cfg, argv[0], tool)
        else:
            options = parser.parse_known_args(argv)[0]
            cfg = read_config(options.config, argv)
            script = find_script(cfg, options.config, tool)
            argv = _checked(tool, cfg, options, argv)
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.argv = [str(script), *argv]
    try:
        _load(script).main()
    except CheckpointMismatch as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        if is_first_process():
            fix = ": --resume goes on from the last checkpoint" if tool == "train" else ""
            print(f"\ninterrupted{fix}", file=sys.stderr)
        sys.exit(130)


def _load(script: Path) -> ModuleType:
    """Import a library's script under its own name.

    Spawned workers import `__main__` again. It has to stay the tool here, which imports xcit_mm before mmcv.ops.
    """
    spec = importlib.util.spec_from_file_location(f"{script.stem}_script", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _parser(tool: str) -> argparse.ArgumentParser:
    """The flags that the libraries' scripts share, to tell a flag's value from the config and to list them."""
    arguments = ["CONFIG"] + ["CHECKPOINT"] * (tool == "test")
    parser = argparse.ArgumentParser(
        usage=f"python tools/{tool}.py {' '.join(arguments)} [FLAG ...]",
        epilog="The flags are those of the library that the config belongs to: --help after CONFIG lists all of them.",
        add_help=False,
    )
    parser.add_argument("config", metavar="CONFIG", help="a config of mmdet, mmseg or mmpretrain")
    if tool == "test":
        parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a path, a URL or xcit://NAME")
    for name, options in (*_FLAGS[tool], *_SHARED):
        parser.add_argument(name, **options)
    return parser


def _checked(tool: str, cfg: Config, options: argparse.Namespace, argv: list[str]) -> list[str]:
    """The command line for the library's script, once the run is known to be able to start."""
    if tool == "test":
        check_test(cfg, options.checkpoint, options.tta)
        return argv
    if options.resume is None:
        check_training(cfg, options.amp)
        return argv
    work_dir = Path(options.work_dir or cfg.get("work_dir") or Path("work_dirs") / Path(options.config).stem)
    resumed = options.resume or last_checkpoint(work_dir)
    seed = check_resume(resumed, work_dir) if resumed else None
    flags = _resume_flags(cfg.default_scope, options.resume) if resumed else []
    cfg.load_from = None if resumed else cfg.get("load_from")
    check_training(cfg, options.amp)
    if not resumed and is_first_process():
        print(f"nothing was saved in {work_dir} yet: the run starts at the first iteration", file=sys.stderr)
    argv = [*_without_resume(argv), *flags]
    if seed is not None and (cfg.get("randomness") or {}).get("seed") is None:
        # mmengine restores it only after it has shuffled the data with another one.
        argv += ["--cfg-options", f"randomness.seed={seed}"]
    return argv


def _without_resume(argv: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--resume", nargs="?")
    return parser.parse_known_args(argv)[1]


def _resume_flags(library: str, checkpoint: str) -> list[str]:
    """What makes a library's script go on from a checkpoint, or from the last one if that is empty.

    A bare `--resume` is not enough for mmseg's, which resumes from the config's `load_from`, if there is one.

    Raises:
        ValueError: If the path cannot be handed on.
    """
    if library != "mmseg":
        return ["--resume", checkpoint] if checkpoint else ["--resume"]
    if set(checkpoint) & set(" ,'\""):  # of which --cfg-options makes a list, or another path
        raise ValueError(f"--resume {checkpoint!r}: mmseg takes no blank, comma or quote in it: link it elsewhere")
    return ["--resume", "--cfg-options", f"load_from={checkpoint or None}"]


def find_script(cfg: Config, config: str, tool: str) -> Path:
    """The library's own `tools/TOOL.py` for a config.

    Raises:
        ValueError: If the config belongs to no library.
        FileNotFoundError, ModuleNotFoundError: If the library, or its tools, are not installed.
    """
    library = cfg.get("default_scope")
    if library not in _LIBRARIES:
        raise ValueError(f"default_scope={library!r} in {config}: must be one of {', '.join(_LIBRARIES)}")
    package = importlib.util.find_spec(library)
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            f"{config} needs {library}, which is not installed: pip install -r requirements/{_LIBRARIES[library]}.txt"
        )
    script = Path(package.origin).parent / ".mim" / "tools" / f"{tool}.py"
    if not script.is_file():
        raise FileNotFoundError(f"{script} is missing: install {library} with pip or mim, which bring its tools along")
    return script
