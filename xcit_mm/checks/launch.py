"""Train and test with the library that a config belongs to, after checks of the run."""

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from ..training.batches import UnequalBatch
from ..utils.cli import cli_main, parse_cfg_options
from ..utils.compat import log_config_to_file_only
from ..utils.configs import part_class, read_config, type_name
from ..utils.errors import reason
from ..utils.scripts import load_script
from ..weights.matching import CheckpointMismatch
from ..weights.reader import check_checkpoint
from ..weights.zoo import (
    find_checkpoint_in,
    find_config,
    find_model,
    last_checkpoint,
    load_checkpoint,
)
from .doctor import check_test, check_training
from .findings import Finding
from .preflight import find_script


def run_tool(tool: str, argv: list[str]) -> int:
    """Check a run, then run `tools/TOOL.py` of mmdet, mmseg or mmpretrain with the same command
    line.

    The checks write nothing, and an error is one line. `--resume` has the same meaning for all
    libraries: the run resumes from the given checkpoint, by default from the last checkpoint of the
    work directory. Without a checkpoint the run starts as without `--resume`.

    Args:
        tool: 'train' or 'test'.
        argv: Command line after the name of the program.

    Returns:
        The exit code.
    """
    options, flags = _parser(tool).parse_known_intermixed_args(argv)
    options.prints = (os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0") == "0"

    def run() -> int:
        try:
            script = (_train if tool == "train" else _test)(options, flags)
        except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
            sys.exit(reason(error))
        with log_config_to_file_only():
            script.main()
        if tool == "train" and options.prints:
            print(f"weights: {find_checkpoint_in(options.work_dir)}", file=sys.stderr)
            print(f"predict: xcit-mm predict PHOTO.jpg --model {options.work_dir}", file=sys.stderr)
        return 0

    end = (
        "--resume resumes from the last checkpoint"
        if tool == "train"
        else "the test has no scores yet"
    )
    return cli_main(run, end, CheckpointMismatch, UnequalBatch, ConnectionError)


def _parser(tool: str) -> argparse.ArgumentParser:
    """Return a parser of the flags of the libraries' scripts that the checks need."""
    last = (
        " To fine-tune a published model: train --from MODEL --data DATA."
        if tool == "train"
        else ""
    )
    parser = argparse.ArgumentParser(
        usage=f"{Path(sys.argv[0]).name} CONFIG {'' if tool == 'train' else '[CHECKPOINT] '}[FLAG ...]",
        epilog=f"Other flags are those of the config's library.{last}",
    )
    parser.add_argument(
        "config", help="a config of mmdet, mmseg or mmpretrain, a model's name or a work folder"
    )
    if tool == "train":
        parser.add_argument(
            "--resume",
            nargs="?",
            const="",
            help="resume from a checkpoint (default: the run's last)",
        )
    else:
        parser.add_argument(
            "checkpoint", nargs="?", help="a path, a URL or xcit://NAME (default: the model's)"
        )
        parser.add_argument("--show-dir", help="draw predictions beside ground truth")
        parser.add_argument(
            "--tta", action="store_true", help="predict several views of each image"
        )
    parser.add_argument(
        "--work-dir", type=Path, help="folder of logs and checkpoints (default: work_dirs/CONFIG)"
    )
    parser.add_argument("--skip-checks", action="store_true", help="start the run without checks")
    parser.add_argument(
        "--cfg-options", nargs="+", action="extend", metavar="KEY=VALUE", help="change the config"
    )
    parser.add_argument(
        "--launcher", default="none", help="none, pytorch, slurm or mpi (default: none)"
    )
    return parser


def _load(tool: str, options: argparse.Namespace, arguments: list[str]) -> tuple[Config, Any]:
    """Return the config and the library's script, whose parser has read the arguments."""
    changes = ["--cfg-options", *options.cfg_options] if options.cfg_options else []
    cfg = read_config(options.config, parse_cfg_options(changes))
    if options.launcher != "none" and get_device() in ("cpu", "mps"):
        raise ValueError(
            "mmengine starts several processes on GPUs only, and this machine has none: leave --launcher"
        )
    path = find_script(cfg, options.config, tool)
    options.work_dir = options.work_dir or Path(
        cfg.get("work_dir") or Path("work_dirs") / Path(options.config).stem
    )
    own = ["--work-dir", str(options.work_dir), "--launcher", options.launcher]
    sys.argv = [str(path), options.config, *arguments, *own, *changes]
    script: Any = load_script(path)
    args = script.parse_args()
    script.parse_args = lambda: args
    return cfg, script


def _check(options: argparse.Namespace, findings: Iterable[Finding]) -> None:
    """Print notes, and raise an error for the first failure, unless checks are skipped."""
    for found in () if options.skip_checks else findings:
        if found.level == "FAIL":
            raise ValueError(f"{found.message()} (--skip-checks starts the run without checks)")
        if found.level == "note" and options.prints:
            print(found, file=sys.stderr)


def _test(options: argparse.Namespace, flags: list[str]) -> Any:
    """Return the library's script with its arguments, after checks that the test can start."""
    options.config, options.checkpoint = find_model(options.config, options.checkpoint)
    flags = [
        *["--tta"] * options.tta,
        *(["--show-dir", options.show_dir] if options.show_dir else []),
        *flags,
    ]
    cfg, script = _load("test", options, [options.checkpoint, *flags])
    check_checkpoint(options.checkpoint)
    _check(options, check_test(cfg, bool(options.show_dir)))
    return script


def _train(options: argparse.Namespace, flags: list[str]) -> Any:
    """Return the library's script with its arguments, after checks that the training can start."""
    options.config = find_config(options.config)
    cfg, script = _load("train", options, flags)
    args, changes = script.parse_args(), {}
    wrapper = part_class(cfg.get("optim_wrapper") or {}, OPTIM_WRAPPERS, cfg.default_scope)
    if get_device() == "cpu" and (args.amp or wrapper is AmpOptimWrapper):
        args.amp, changes = False, {"optim_wrapper.type": "mmengine.CPUAmpOptimWrapper"}
    if options.resume is not None:
        checkpoint = options.resume or _find_last(options.work_dir)
        if checkpoint:
            _check_state(checkpoint)
            args.resume = (
                True if cfg.default_scope == "mmseg" else checkpoint
            )  # mmseg's flag has no value
            cfg.load_from, changes["load_from"] = None, checkpoint
        elif options.prints:
            print(
                f"{options.work_dir} has no checkpoint yet: the run starts at the first iteration",
                file=sys.stderr,
            )
    args.cfg_options = {**(args.cfg_options or {}), **changes}
    _check(options, check_training(cfg, leave_large=True))
    if options.prints:
        loop = cfg.get("train_cfg") or {}
        length = next(
            (
                f"{loop[f'max_{unit}']} {unit}"
                for unit in ("iters", "epochs")
                if loop.get(f"max_{unit}")
            ),
            "",
        )
        start = changes.get("load_from") or cfg.get("load_from") or "its init_cfg"
        print(
            f"{type_name(cfg.model)}, {length} from {start}; logs and config: {options.work_dir}",
            file=sys.stderr,
        )
    return script


def _find_last(work_dir: Path) -> str | None:
    """Return the last checkpoint of a run, or else its newest: a kill may leave an empty pointer."""
    checkpoint = last_checkpoint(work_dir)
    if checkpoint and ("://" in checkpoint or Path(checkpoint).is_file()):
        return checkpoint
    saved = [path for kind in ("iter", "epoch") for path in work_dir.glob(f"{kind}_*.pth")]
    return str(max(saved, key=lambda path: path.stat().st_mtime)) if saved else None


def _check_state(checkpoint: str) -> None:
    """Raise ValueError or OSError unless a checkpoint can be read and holds the state of a run of
    mmengine.
    """
    content = load_checkpoint(checkpoint)
    meta = content.get("meta") if isinstance(content, dict) else None
    if (
        not isinstance(meta, dict)
        or not {"epoch", "iter"} <= meta.keys()
        or content.get("message_hub") is None
    ):
        fix = "start from it with load_from"
        raise ValueError(
            f"cannot resume from {checkpoint}: it holds weights, not the state of a run: {fix}"
        )
