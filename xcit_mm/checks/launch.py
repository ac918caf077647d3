"""Train and test with the library that a config belongs to, after checks of the run."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device

from ..training.batches import UnequalBatch
from ..utils.cli import cli_main
from ..utils.compat import log_config_to_file_only
from ..utils.configs import read_config, type_name
from ..utils.errors import reason
from ..utils.scripts import load_script
from ..weights.matching import CheckpointMismatch
from ..weights.models import find_checkpoint_in, find_config, find_model, last_checkpoint
from .config import check_launcher, find_script, is_mixed_precision
from .doctor import check_resume, check_test, check_training, is_first_process, newest_checkpoint
from .findings import raise_first

_ERRORS = (ValueError, TypeError, OSError, ModuleNotFoundError)
_SKIP = "--skip-checks"


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

    def prepare() -> None:
        command.extend(_checked_command(tool, argv))

    def run() -> int | None:
        sys.argv = command
        try:
            with log_config_to_file_only():
                return load_script(Path(command[0])).main()
        except KeyboardInterrupt:
            if is_first_process():
                raise
            return 130

    end = "--resume resumes from the last checkpoint" if tool == "train" else "the test has no scores yet"
    code = cli_main(prepare, "the run has not started", *_ERRORS)
    if code or not command:
        return code
    code = cli_main(run, end, CheckpointMismatch, UnequalBatch)
    if tool == "train" and not code and is_first_process():
        options = _parser(tool).parse_known_args(command[1:])[0]
        _report_end(_work_dir(options, read_config(options.config, command)))
    return code


def _work_dir(options: argparse.Namespace, cfg: Config) -> Path:
    return Path(options.work_dir or cfg.get("work_dir") or Path("work_dirs") / Path(options.config).stem)


def _report_end(work_dir: Path) -> None:
    """Print where the weights of a training are, and the command that predicts with them."""
    print(f"weights: {find_checkpoint_in(work_dir)}", file=sys.stderr)
    print(f"predict: xcit-mm predict PHOTO.jpg --model {work_dir}", file=sys.stderr)


def _parser(tool: str) -> argparse.ArgumentParser:
    """Return a parser of the flags of the libraries' scripts that the checks need."""
    last = " To fine-tune a published model: train --from MODEL --data DATA." if tool == "train" else ""
    parser = argparse.ArgumentParser(
        usage=f"{Path(sys.argv[0]).name} CONFIG {'' if tool == 'train' else '[CHECKPOINT] '}[FLAG ...]",
        epilog=f"The library of the config defines the flags: --help after CONFIG lists all of them.{last}",
        add_help=False,
    )
    parser.add_argument("config", help="a config of mmdet, mmseg or mmpretrain, a model's name or a work folder")
    if tool == "train":
        parser.add_argument("--resume", nargs="?", const="", help="resume from a checkpoint (default: the run's last)")
        parser.add_argument("--amp", action="store_true", help="train in mixed precision, on a CPU in bfloat16")
    else:
        parser.add_argument("checkpoint", nargs="?", help="a path, a URL or xcit://NAME (default: the model's)")
        parser.add_argument("--show-dir", help="draw predictions beside ground truth")
        parser.add_argument("--tta", action="store_true", help="predict several views of each image")
    parser.add_argument("--work-dir", help="folder of logs and checkpoints (default: work_dirs/NAME_OF_CONFIG)")
    parser.add_argument(_SKIP, action="store_true", help="start the run without checks")
    parser.add_argument("--cfg-options", nargs="+", metavar="KEY=VALUE", help="change the config")
    parser.add_argument("--launcher", help="none, pytorch, slurm or mpi (default: none)")
    return parser


def _checked_command(tool: str, argv: list[str]) -> list[str]:
    """Return the library's script and its arguments, after checks that the run can start; [] after a help text."""
    if "-h" in argv or "--help" in argv:
        config = next((argument for argument in argv if argument.endswith(".py")), None)
        if config:
            return [str(find_script(read_config(config, []), config, tool)), "--help"]
        _parser(tool).print_help()
        return []
    skip, argv = _SKIP in argv, [argument for argument in argv if argument != _SKIP]
    options = _parser(tool).parse_known_intermixed_args(argv)[0]  # the checkpoint may follow a flag
    argv = _named_model(tool, options, argv)
    cfg = read_config(options.config, argv)
    script = str(find_script(cfg, options.config, tool))
    raise_first(check_launcher(options.launcher))
    if tool == "test":
        notes = _start_check(skip, check_test, cfg, options.checkpoint, options.tta, bool(options.show_dir))
        print(*(notes or ()), sep="\n", end="\n" * bool(notes), file=sys.stderr)
        return [script, *argv]
    if get_device() == "cpu" and (options.amp or is_mixed_precision(cfg)):
        argv = [argument for argument in argv if argument != "--amp"]
        argv += ["--cfg-options", "optim_wrapper.type=mmengine.CPUAmpOptimWrapper"]
    work_dir = _work_dir(options, cfg)
    if options.resume is not None:
        argv = _resumed(skip, argv, cfg, options, work_dir)
    _start_check(skip, check_training, cfg)
    if is_first_process():
        loop = cfg.get("train_cfg") or {}
        length = next((f"{loop[f'max_{unit}']} {unit}" for unit in ("iters", "epochs") if loop.get(f"max_{unit}")), "")
        start = cfg.get("load_from") or "its init_cfg"
        print(f"{type_name(cfg.model)}, {length} from {start}; logs and config: {work_dir}", file=sys.stderr)
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


def _start_check(skip: bool, check: Callable[..., Any], *arguments: object) -> Any:
    """Check a run, unless checks are skipped. An error names the flag that skips them."""
    try:
        return None if skip else check(*arguments)
    except _ERRORS as error:
        sys.exit(f"{reason(error)} ({_SKIP} starts the run without checks)")


def _resumed(skip: bool, argv: list[str], cfg: Config, options: argparse.Namespace, work_dir: Path) -> list[str]:
    """Return the command line with which a library's script resumes, or starts if there is no checkpoint yet.

    Raises:
        ValueError: If mmseg's script cannot take the path.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--resume", nargs="?")
    argv = parser.parse_known_args(argv)[1]
    pointer, last = work_dir / "last_checkpoint", last_checkpoint(work_dir) or ""
    if "://" not in last and not Path(last).is_file():
        last = str(newest_checkpoint(work_dir) or "")  # a kill may leave the pointer empty
    checkpoint = options.resume or last
    if not checkpoint:
        if is_first_process():
            print(f"{work_dir} has no checkpoint yet: the run starts at the first iteration", file=sys.stderr)
        return argv
    _start_check(skip, check_resume, checkpoint, work_dir)
    cfg.load_from = None
    follows = not options.resume and pointer.is_file() and pointer.read_text().strip() == checkpoint
    given = "" if follows else checkpoint  # mmengine reads the pointer too
    if cfg.default_scope != "mmseg":
        return [*argv, "--resume", *[given] * bool(given)]
    if set(given) & set(" ,'\""):  # --cfg-options makes a list or another path of it
        raise ValueError(f"--resume {given!r}: mmseg takes no blank, comma or quote in it: link it elsewhere")
    # A bare `--resume` of mmseg's script would resume from the config's `load_from`.
    return [*argv, "--resume", "--cfg-options", f"load_from={given or None}"]
