"""Train and test with the script of the library that a config belongs to, after checks."""

import argparse
import copy
import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from ..checks.doctor import check_test, check_training
from ..checks.findings import Finding
from ..training.console import console_of_run
from ..training.resuming import NotSaved
from ..training.schedule import CannotResume, is_complete
from ..training.termination import TerminationHook
from ..utils.arguments import errors_of_one_line
from ..utils.atomic import atomic_path
from ..utils.cli import cli_main, parse_cfg_options
from ..utils.compat import (
    add_hooks_to_runs,
    find_bases_by_package,
    load_urls_by,
    log_config_to_file_only,
)
from ..utils.configs import data_sets, part_class, read_config, type_name
from ..utils.errors import reason
from ..utils.folders import lock_folder
from ..utils.scripts import find_script, load_script
from ..weights.matching import CheckpointMismatch
from ..weights.reader import check_checkpoint
from ..weights.zoo import find_config, find_model, load_checkpoint
from .config import refresh_copies
from .report import report
from .state import check_is_of_config, find_state, training_length


def run_tool(tool: str, options: argparse.Namespace) -> int:
    """Check a run, then run `tools/TOOL.py` of mmdet, mmseg or mmpretrain with the same options.

    The checks write nothing, and an error is one line. `--resume` has the same meaning for all
    libraries: the run resumes from the given checkpoint, by default from the last checkpoint of the
    work directory. Without a checkpoint the run starts as without `--resume`.

    Args:
        tool: 'train' or 'test'.
        options: Options of the command of this name, of which `flags` are those of the library.

    Returns:
        The exit code.
    """
    _read_ranks(options)

    is_training = tool == "train"
    hooks = [TerminationHook()] if is_training else []

    def run() -> int:
        with ExitStack() as lock:
            try:
                script = _prepare_training(options, lock) if is_training else _prepare_test(options)
            except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
                sys.exit(reason(error))
            if script is None:
                return 0
            with (
                find_bases_by_package(),
                load_urls_by(load_checkpoint),
                add_hooks_to_runs(*hooks),
            ):
                script.main()
            if is_training and options.is_writer:
                for line in report(options.work_dir, options.cfg):
                    print(line, file=sys.stderr)
            return 0

    def run_in_console() -> int:
        with log_config_to_file_only() if options.verbose else console_of_run():
            return run()

    next_step = "--resume resumes from the last checkpoint"
    if tool == "test":
        next_step = "the test has no scores yet"
    errors = (CheckpointMismatch, CannotResume, NotSaved, ConnectionError, FloatingPointError)
    return cli_main(run_in_console, next_step, *errors)


def _read_ranks(options: argparse.Namespace) -> None:
    """Note whether this process is the first of its machine, which checks and prints, and the first
    of all machines, which alone writes into the folders that they share.
    """

    def is_zero(*variables: str) -> bool:
        ranks = [os.environ[name] for name in variables if os.environ.get(name)]
        return not ranks or ranks[0] == "0"

    options.is_first = is_zero("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
    is_first_of_all = is_zero("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
    options.is_writer = options.is_first and is_first_of_all


def _prepare_training(options: argparse.Namespace, lock: ExitStack) -> ModuleType | None:
    """Return the library's script, after checks that the training can start, or None if it is
    complete. The work folder stays locked until the stack is closed.
    """
    options.config = find_config(options.config)
    cfg = _read_config(options)
    if options.is_writer:
        lock.enter_context(lock_folder(options.work_dir, "--work-dir"))
        refresh_copies(cfg)
    _choose_precision(options, cfg)
    end, unit = training_length(cfg)
    state = None if options.resume is None else find_state(options.resume, options.work_dir)
    checkpoint = None
    if state is not None:
        checkpoint, content = state
        check_is_of_config(checkpoint, content, cfg, is_chosen=bool(options.resume))
        if end and is_complete(content, unit, end):
            complete = f"the run is complete: {checkpoint} has all {end} {unit}"
            _say(options, f"{complete}; raise max_{unit} to extend it")
            return None
    elif options.resume is not None:
        problem = f"{options.work_dir} has no checkpoint yet"
        _say(options, f"{problem}: the run starts at the first iteration")
    start = checkpoint or cfg.get("load_from") or "the config's initial weights"
    copied_config = _add_resume(options, cfg, checkpoint)
    script = _load_script("train", options, cfg)
    length = f"{end} {'iterations' if unit == 'iters' else unit}"
    _say(options, f"{_describe_model(cfg)}, {length} from {start}, in {options.work_dir}")
    _check(options, check_training(copy.deepcopy(cfg)))
    if copied_config:
        cfg.load_from = checkpoint
        with atomic_path(copied_config) as unfinished:
            cfg.dump(unfinished)
    return script


def _describe_model(cfg: Config) -> str:
    """Describe a model and the data that it is trained on."""
    model = type_name(cfg.model)
    backbone: dict = cfg.model.get("backbone") or {}
    if "type" in backbone:
        model += f" with {type_name(backbone)}"
    if "patch_size" in backbone:
        model += f"-{str(backbone.get('arch')).upper()}/{backbone['patch_size']}"
    for dataset in data_sets(cfg, "train"):
        folders = dataset.get("data_prefix") or {}
        places = [dataset.get("data_root"), dataset.get("ann_file"), *folders.values()]
        return " on ".join([model, *list(filter(None, places))[:1]])
    return model


def _add_resume(options: argparse.Namespace, cfg: Config, checkpoint: str | None) -> Path | None:
    """Let the library's script resume from a checkpoint, if there is one. Return the path of the
    config to write for that, if any.
    """
    if checkpoint is None:
        return None
    cfg.load_from = None  # the run does not read it
    if cfg.default_scope != "mmseg":
        options.flags += ["--resume", checkpoint]
        return None
    # The --resume of mmseg takes no path, and a value of --cfg-options no spaces: the path goes
    # into the config, at the place where the run stores its config anyway.
    copied_config = options.work_dir / f"{Path(options.config).stem}.py"
    options.config = str(copied_config)
    options.cfg_options = []
    options.flags.append("--resume")
    return copied_config


def _prepare_test(options: argparse.Namespace) -> ModuleType:
    """Return the library's script, after checks that the test can start."""
    options.config, options.checkpoint = find_model(options.config, options.checkpoint)
    options.flags.insert(0, options.checkpoint)
    if options.tta:
        options.flags.append("--tta")
    if options.show_dir:
        options.flags += ["--show-dir", options.show_dir]
    cfg = _read_config(options)
    if options.is_writer:
        refresh_copies(cfg)
    script = _load_script("test", options, cfg)
    check_checkpoint(options.checkpoint)
    _check(options, check_test(cfg, options.checkpoint))
    return script


def _read_config(options: argparse.Namespace) -> Config:
    """Read the config of a run, and choose its work folder."""
    cfg = read_config(options.config, parse_cfg_options(["--cfg-options", *options.cfg_options]))
    options.cfg = cfg
    default = cfg.get("work_dir") or Path("work_dirs") / Path(options.config).stem
    options.work_dir = options.work_dir or Path(default)
    return cfg


def _load_script(tool: str, options: argparse.Namespace, cfg: Config) -> ModuleType:
    """Import the library's script, and set its command line, whose errors end the program."""
    if options.launcher != "none" and get_device() in ("cpu", "mps"):
        problem = "mmengine starts several processes on GPUs only, and this machine has none"
        raise ValueError(f"{problem}: leave out --launcher")
    path = find_script(cfg, options.config, tool)
    sys.argv = [str(path), options.config, *options.flags]
    sys.argv += ["--work-dir", str(options.work_dir), "--launcher", options.launcher]
    if options.cfg_options:
        sys.argv += ["--cfg-options", *options.cfg_options]
    script = load_script(path)
    with errors_of_one_line(tool, options.help):
        script.parse_args()  # again in its main(), but checks come before
    return script


def _choose_precision(options: argparse.Namespace, cfg: Config) -> None:
    """Train in bfloat16 if mixed precision is wanted on a CPU, else as the library does."""
    wrapper = part_class(cfg.get("optim_wrapper") or {}, OPTIM_WRAPPERS, cfg.get("default_scope"))
    if get_device() == "cpu" and (options.amp or wrapper is AmpOptimWrapper):
        cfg.optim_wrapper.type = "mmengine.CPUAmpOptimWrapper"
        options.cfg_options.append(f"optim_wrapper.type={cfg.optim_wrapper.type}")
    elif options.amp:
        options.flags.append("--amp")


def _check(options: argparse.Namespace, findings: Iterable[Finding]) -> None:
    """Print notes, and raise an error for the first failure, unless checks are skipped. Other
    processes of a machine wait for the first in the library's script, and those of other machines
    for the first of all, if it may be writing the copies.
    """
    has_copies = bool(options.cfg.get("source"))
    if options.skip_checks or not (options.is_writer if has_copies else options.is_first):
        return
    for finding in findings:
        if finding.level == "FAIL":
            raise ValueError(f"{finding.message()} (--skip-checks starts the run without checks)")
        if finding.level == "note":
            _say(options, str(finding))


def _say(options: argparse.Namespace, line: str) -> None:
    """Print a line on stderr in the first process."""
    if options.is_first:
        print(line, file=sys.stderr)
