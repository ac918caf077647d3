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
from .config import find_script, is_mixed_precision
from .doctor import check_resume, check_test, check_training, is_first_process

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
    options, argv = _parser(tool).parse_known_intermixed_args(argv)  # the checkpoint may follow a flag

    def prepare() -> None:
        sys.argv = (_train if tool == "train" else _test)(options, argv)

    def run() -> int | None:
        with log_config_to_file_only():
            return load_script(Path(sys.argv[0])).main()

    end = "--resume resumes from the last checkpoint" if tool == "train" else "the test has no scores yet"
    code = cli_main(prepare, "the run has not started", *_ERRORS)
    code = code or cli_main(run, end, CheckpointMismatch, UnequalBatch)
    if tool == "train" and not code and is_first_process():
        print(f"weights: {find_checkpoint_in(options.work_dir)}", file=sys.stderr)
        print(f"predict: xcit-mm predict PHOTO.jpg --model {options.work_dir}", file=sys.stderr)
    return code


def _parser(tool: str) -> argparse.ArgumentParser:
    """Return a parser of the flags of the libraries' scripts that the checks need."""
    last = " To fine-tune a published model: train --from MODEL --data DATA." if tool == "train" else ""
    parser = argparse.ArgumentParser(
        usage=f"{Path(sys.argv[0]).name} CONFIG {'' if tool == 'train' else '[CHECKPOINT] '}[FLAG ...]",
        epilog=f"Other flags are those of the config's library.{last}",
    )
    parser.add_argument("config", help="a config of mmdet, mmseg or mmpretrain, a model's name or a work folder")
    if tool == "train":
        parser.add_argument("--resume", nargs="?", const="", help="resume from a checkpoint (default: the run's last)")
        parser.add_argument("--amp", action="store_true", help="train in mixed precision, on a CPU in bfloat16")
    else:
        parser.add_argument("checkpoint", nargs="?", help="a path, a URL or xcit://NAME (default: the model's)")
        parser.add_argument("--show-dir", help="draw predictions beside ground truth")
        parser.add_argument("--tta", action="store_true", help="predict several views of each image")
    parser.add_argument("--work-dir", type=Path, help="folder of logs and checkpoints (default: work_dirs/CONFIG)")
    parser.add_argument(_SKIP, action="store_true", help="start the run without checks")
    parser.add_argument(
        "--cfg-options", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="change the config"
    )
    parser.add_argument("--launcher", default="none", help="none, pytorch, slurm or mpi (default: none)")
    return parser


def _test(options: argparse.Namespace, flags: list[str]) -> list[str]:
    """Return the library's script and its arguments, after checks that the test can start."""
    given = [options.config] if options.checkpoint is None else [options.config, options.checkpoint]
    options.config, options.checkpoint = find_model(*given)
    cfg, command = _start(options, "test")
    notes = _check(options, check_test, cfg, options.checkpoint, bool(options.show_dir)) or ()
    print(*notes, sep="\n", end="\n" * bool(notes), file=sys.stderr)
    flags += ["--show-dir", options.show_dir] if options.show_dir else []
    return [*command, options.checkpoint, *["--tta"] * options.tta, *flags, *_options(options)]


def _train(options: argparse.Namespace, flags: list[str]) -> list[str]:
    """Return the library's script and its arguments, after checks that the training can start."""
    options.config = find_config(options.config)
    cfg, command = _start(options, "train")
    options.work_dir = options.work_dir or Path(cfg.get("work_dir") or Path("work_dirs") / Path(options.config).stem)
    if get_device() == "cpu" and (options.amp or is_mixed_precision(cfg)):
        options.cfg_options.append("optim_wrapper.type=mmengine.CPUAmpOptimWrapper")
    else:
        flags += ["--amp"] * options.amp
    if options.resume is not None:
        flags += _resume(options, cfg)
    _check(options, check_training, cfg)
    if is_first_process():
        loop = cfg.get("train_cfg") or {}
        length = next((f"{loop[f'max_{unit}']} {unit}" for unit in ("iters", "epochs") if loop.get(f"max_{unit}")), "")
        start = cfg.get("load_from") or "its init_cfg"
        print(f"{type_name(cfg.model)}, {length} from {start}; logs and config: {options.work_dir}", file=sys.stderr)
    return [*command, *flags, *_options(options)]


def _start(options: argparse.Namespace, tool: str) -> tuple[Config, list[str]]:
    """Return the config, and the library's script with it."""
    cfg = read_config(options.config, ["--cfg-options", *options.cfg_options])
    if options.launcher != "none" and get_device() in ("cpu", "mps"):
        raise ValueError("mmengine starts several processes on GPUs only, and this machine has none: leave --launcher")
    return cfg, [str(find_script(cfg, options.config, tool)), options.config]


def _options(options: argparse.Namespace) -> list[str]:
    work_dir = ["--work-dir", str(options.work_dir)] if options.work_dir else []
    changes = ["--cfg-options", *options.cfg_options] if options.cfg_options else []
    return [*work_dir, "--launcher", options.launcher, *changes]


def _check(options: argparse.Namespace, check: Callable[..., Any], *arguments: object) -> Any:
    """Check a run, unless checks are skipped. An error names the flag that skips them."""
    try:
        return None if options.skip_checks else check(*arguments)
    except _ERRORS as error:
        sys.exit(f"{reason(error)} ({_SKIP} starts the run without checks)")


def _resume(options: argparse.Namespace, cfg: Config) -> list[str]:
    """Return the flags with which a library's script resumes; none if there is no checkpoint yet.

    Raises:
        ValueError: If mmseg's script cannot take the path.
    """
    checkpoint = options.resume or last_checkpoint(options.work_dir) or ""
    if not options.resume and "://" not in checkpoint and not Path(checkpoint).is_file():
        saved = [path for kind in ("iter", "epoch") for path in options.work_dir.glob(f"{kind}_*.pth")]
        checkpoint = str(max(saved, key=lambda path: path.stat().st_mtime, default=""))  # a kill empties the pointer
    if not checkpoint:
        if is_first_process():
            print(f"{options.work_dir} has no checkpoint yet: the run starts at the first iteration", file=sys.stderr)
        return []
    _check(options, check_resume, checkpoint)
    cfg.load_from, pointer = None, options.work_dir / "last_checkpoint"
    if cfg.default_scope != "mmseg":
        return ["--resume", checkpoint]
    follows = not options.resume and pointer.is_file() and pointer.read_text() == checkpoint  # mmengine reads it too
    if not follows and set(checkpoint) & set(" ,'\""):  # --cfg-options makes a list or another path of it
        raise ValueError(f"--resume {checkpoint!r}: mmseg takes no blank, comma or quote in it: link it elsewhere")
    options.cfg_options.append(f"load_from={None if follows else checkpoint}")
    return ["--resume"]
