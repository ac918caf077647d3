"""Train and test with the library that a config belongs to, after checks of the run."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device

from ..training.repeating import NotDeterministic
from ..utils.cli import cli_main
from ..utils.configs import read_config
from ..utils.errors import reason
from ..utils.scripts import load_script
from ..weights.folders import last_checkpoint
from ..weights.matching import CheckpointMismatch
from ..weights.models import find_config, find_model
from .config import find_script
from .doctor import check_resume, check_test, check_training, is_first_process
from .findings import raise_first
from .machine import check_launcher, is_mixed_precision

_ERRORS = (ValueError, TypeError, OSError, ModuleNotFoundError)
_SKIP = "--skip-checks"
_DETERMINISTIC = "--deterministic"


def run_tool(tool: str, argv: list[str]) -> int:
    """Check a run, then run `tools/TOOL.py` of mmdet, mmseg or mmpretrain with the same command line.

    The checks write nothing, and an error is one line. `--resume` has the same meaning for all libraries: the run
    resumes from the given checkpoint, by default from the last checkpoint of the work directory. Without a checkpoint
    the run starts as without `--resume`.

    Args:
        tool: 'train' or 'test'.
        argv: Command line after the name of the program.

    Returns:
        The exit code.
    """
    command: list[str] = []

    def run() -> int | None:
        sys.argv = command
        try:
            return load_script(Path(command[0])).main()
        except KeyboardInterrupt:
            if is_first_process():
                raise
            return 130

    end = "--resume resumes from the last checkpoint" if tool == "train" else "the test has no scores yet"
    code = cli_main(lambda: command.extend(_checked_command(tool, argv)), "the run has not started", *_ERRORS)
    return code if code or not command else cli_main(run, end, CheckpointMismatch, NotDeterministic)


def _parser(tool: str) -> argparse.ArgumentParser:
    """Return a parser of the flags that the libraries' scripts share."""
    training = tool == "train"
    finetuning = " To fine-tune a published model: train --from MODEL --data DATA." if training else ""
    parser = argparse.ArgumentParser(
        usage=f"{Path(sys.argv[0]).name} CONFIG {'' if training else '[CHECKPOINT] '}[FLAG ...]",
        epilog=f"The library of the config defines the flags: --help after CONFIG lists all of them.{finetuning}",
        add_help=False,
    )
    add = parser.add_argument
    add("config", metavar="CONFIG", help="a config of mmdet, mmseg or mmpretrain, a model's name or a work folder")
    if not training:
        add("checkpoint", metavar="CHECKPOINT", nargs="?", help="a path, a URL or xcit://NAME (default: the model's)")
    content = "checkpoints" if training else "scores"
    add("--work-dir", metavar="DIR", help=f"folder of logs and {content} (default: work_dirs/NAME_OF_CONFIG)")
    if training:
        default = "the last in the work directory"
        add("--resume", nargs="?", const="", metavar="CHECKPOINT", help=f"resume from CHECKPOINT (default: {default})")
        add("--amp", action="store_true", help="train in mixed precision, on a CPU in bfloat16")
        add(_DETERMINISTIC, action="store_true", help="give the same weights every time on a machine")
        add("--auto-scale-lr", action="store_true", help="scale the learning rate to the batch (mmdet, mmpretrain)")
    else:
        add("--out", metavar="PATH", help="write predictions: a .pkl (mmdet, mmpretrain) or a folder (mmseg)")
        add("--show-dir", metavar="DIR", help="draw predictions beside ground truth")
        add("--show", action="store_true", help="show the drawings in a window")
        add("--wait-time", metavar="SECONDS", help="time for which a window shows an image")
        add("--tta", action="store_true", help="predict several views of each image")
    add(_SKIP, action="store_true", help="start the run without checks")
    add("--cfg-options", nargs="+", metavar="KEY=VALUE", help="change the config")
    add("--launcher", metavar="LAUNCHER", help="none, pytorch, slurm or mpi (default: none)")
    return parser


def _script_of(config: str, argv: list[str], tool: str) -> tuple[Config, str]:
    cfg = read_config(config, argv)
    return cfg, str(find_script(cfg, config, tool))


def _checked_command(tool: str, argv: list[str]) -> list[str]:
    """Return the library's script and its arguments, after checks that the run can start; [] after a help text."""
    if "-h" in argv or "--help" in argv:
        config = next((argument for argument in argv if argument.endswith(".py")), None)
        if config:
            return [_script_of(config, [], tool)[1], "--help"]
        _parser(tool).print_help()
        return []
    skip, deterministic = _SKIP in argv, _DETERMINISTIC in argv and tool == "train"
    argv = [argument for argument in argv if argument != _SKIP and not (deterministic and argument == _DETERMINISTIC)]
    options = _parser(tool).parse_known_intermixed_args(argv)[0]  # the checkpoint may follow a flag
    argv = _named_model(tool, options, argv)
    cfg, script = _script_of(options.config, argv, tool)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when CUDA starts
        seed = (cfg.get("randomness") or {}).get("seed") or 0
        argv += ["--cfg-options", "randomness.deterministic=True", f"randomness.seed={seed}"]
    if tool == "train" and get_device() == "cpu" and (options.amp or is_mixed_precision(cfg)):
        argv = [argument for argument in argv if argument != "--amp"]
        argv += ["--cfg-options", "optim_wrapper.type=mmengine.CPUAmpOptimWrapper"]
    raise_first(check_launcher(options.launcher))
    if tool == "test":
        _start_check(skip, check_test, cfg, options.checkpoint, options.tta)
        return [script, *argv]
    if options.resume is None:
        _start_check(skip, check_training, cfg, options.amp)
        return [script, *argv]
    argv = _without_resume(argv)
    work_dir = Path(options.work_dir or cfg.get("work_dir") or Path("work_dirs") / Path(options.config).stem)
    checkpoint = options.resume or last_checkpoint(work_dir)
    if checkpoint:
        _start_check(skip, check_resume, checkpoint, work_dir)
        saved = work_dir / "last_checkpoint"  # from which mmengine takes a path that a moved folder no longer has
        moved = "" if options.resume or checkpoint == saved.read_text().strip() else checkpoint
        argv += _resume_flags(cfg.default_scope, options.resume or moved)
        cfg.load_from = None
    _start_check(skip, check_training, cfg, options.amp)
    if not checkpoint and is_first_process():
        print(f"{work_dir} has no checkpoint yet: the run starts at the first iteration", file=sys.stderr)
    return [script, *argv]


def _named_model(tool: str, options: argparse.Namespace, argv: list[str]) -> list[str]:
    """Put the paths of a model into `options` and at the start of a command line that may have a name instead."""
    given = [options.config] if tool == "train" or options.checkpoint is None else [options.config, options.checkpoint]
    for value in given:
        argv.remove(value)
    if tool == "train":
        options.config = find_config(options.config)
        return [options.config, *argv]
    options.config, options.checkpoint = find_model(*given)
    return [options.config, options.checkpoint, *argv]


def _start_check(skip: bool, check: Callable[..., Any], *arguments: object) -> None:
    """Check a run, unless checks are skipped. An error names the flag that skips them."""
    try:
        if not skip:
            check(*arguments)
    except _ERRORS as error:
        sys.exit(f"{reason(error)} ({_SKIP} starts the run without checks)")


def _without_resume(argv: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--resume", nargs="?")
    return parser.parse_known_args(argv)[1]


def _resume_flags(library: str, checkpoint: str) -> list[str]:
    """Return the flags with which a library's script resumes from a checkpoint, or from the last one if it is ''.

    A bare `--resume` is not enough for mmseg's script, which resumes from the config's `load_from` if that is set.

    Raises:
        ValueError: If mmseg's script cannot take the path.
    """
    if library != "mmseg":
        return ["--resume", checkpoint] if checkpoint else ["--resume"]
    if set(checkpoint) & set(" ,'\""):  # --cfg-options makes a list or another path of it
        raise ValueError(f"--resume {checkpoint!r}: mmseg takes no blank, comma or quote in it: link it elsewhere")
    return ["--resume", "--cfg-options", f"load_from={checkpoint or None}"]
