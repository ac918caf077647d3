"""Train and test with the script of the library that a config belongs to, after checks."""

import argparse
import copy
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.hooks import Hook
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import OPTIM_WRAPPERS

from ..checks.doctor import check_test, check_training
from ..checks.findings import Finding
from ..training.console import console_of_run
from ..training.folder_config import FolderConfigHook
from ..training.resuming import NotSaved
from ..training.schedule import CannotResume, is_complete
from ..training.termination import TerminationHook
from ..utils.arguments import errors_of_one_line
from ..utils.atomic import atomic_path
from ..utils.cli import cli_main, parse_cfg_options
from ..utils.compat import add_hooks_to_runs, find_bases_by_package, load_urls_by
from ..utils.configs import data_sets, part_class, read_config, type_name
from ..utils.errors import reason
from ..utils.folders import lock_folder
from ..utils.scripts import find_script, load_script
from ..weights.matching import CheckpointMismatch
from ..weights.reader import check_checkpoint
from ..weights.zoo import find_config, find_model, load_checkpoint
from .report import report
from .source import refresh_dataset_copies
from .state import compare_source, find_state, training_length


class Run(NamedTuple):
    """A training or a test, as a user starts it.

    Attributes:
        tool: 'train' or 'test'.
        options: Options of the command of this name.
        config: Path of the config.
        cfg: The config, changed by --cfg-options.
        work_dir: Folder of logs and checkpoints.
        is_first: Whether this process is the first of its machine, which checks and prints.
        is_writer: Whether it is the first of all machines, which alone writes into shared folders.
    """

    tool: str
    options: argparse.Namespace
    config: str
    cfg: Config
    work_dir: Path
    is_first: bool
    is_writer: bool

    @classmethod
    def of(cls, tool: str, config: str, options: argparse.Namespace) -> "Run":
        """Read the config of a run, and find its folder and the rank of this process."""
        cfg = read_config(config, parse_cfg_options(options.cfg_options))
        default = cfg.get("work_dir") or Path("work_dirs") / Path(config).stem
        is_first = _is_zero("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
        is_writer = is_first and _is_zero("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
        work_dir = options.work_dir or Path(default)
        return cls(tool, options, config, cfg, work_dir, is_first, is_writer)

    def say(self, line: str) -> None:
        if self.is_first:
            print(line, file=sys.stderr)

    def check(self, findings: Iterable[Finding]) -> None:
        """Print notes, and raise ValueError for the first failure, unless checks are skipped.

        Other processes wait for the first of their machine in the library's script, and for the
        first of all if it may be writing copies.
        """
        is_checked_here = self.is_writer if self.cfg.get("source") else self.is_first
        if self.options.skip_checks or not is_checked_here:
            return
        for finding in findings:
            if finding.level == "FAIL":
                fix = "--skip-checks starts the run without checks"
                raise ValueError(f"{finding.message()} ({fix})")
            if finding.level == "note":
                self.say(str(finding))

    def load_script(self, config: str, flags: Sequence[str], changes: Sequence[str]) -> ModuleType:
        """Import the library's script, and set its command line, whose errors end the program."""
        options = self.options
        if options.launcher != "none" and get_device() in ("cpu", "mps"):
            problem = "mmengine starts several processes on GPUs only, and this machine has none"
            raise ValueError(f"{problem}: leave out --launcher")
        path = find_script(self.cfg, config, self.tool)
        sys.argv = [str(path), config, *flags, *options.flags]
        sys.argv += ["--work-dir", str(self.work_dir), "--launcher", options.launcher]
        if changes:
            sys.argv += ["--cfg-options", *changes]
        script = load_script(path)
        with errors_of_one_line(self.tool):
            script.parse_args()  # again in its main(), but checks come before
        return script


def _is_zero(*variables: str) -> bool:
    """Return whether the first environment variable that is set is 0, or none is set."""
    ranks = [os.environ[name] for name in variables if os.environ.get(name)]
    return not ranks or ranks[0] == "0"


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
    work, interrupted = {
        "train": (_train, "--resume resumes from the last checkpoint"),
        "test": (_test, "the test has no scores yet"),
    }[tool]

    def work_in_console() -> None:
        if options.verbose:
            work(options)
            return
        with console_of_run():  # which shows less
            work(options)

    errors = (CheckpointMismatch, CannotResume, NotSaved, ConnectionError, FloatingPointError)
    # mmengine raises a TypeError for a key that a part does not take, a KeyError without a type.
    return cli_main(work_in_console, interrupted, *errors, TypeError, KeyError)


@contextmanager
def _exit_on_error() -> Iterator[None]:
    """End the program with one line after an error, before the library's script runs."""
    try:
        yield
    except (ValueError, TypeError, OSError, ModuleNotFoundError) as error:
        sys.exit(reason(error))


def _run_script(script: ModuleType, *hooks: Hook) -> None:
    with find_bases_by_package(), load_urls_by(load_checkpoint), add_hooks_to_runs(*hooks):
        script.main()


def _train(options: argparse.Namespace) -> None:
    with ExitStack() as lock:
        with _exit_on_error():
            run = Run.of("train", find_config(options.config), options)
            if run.is_writer:
                lock.enter_context(lock_folder(run.work_dir, "--work-dir"))
            script = _prepare_training(run)
        if script is None:
            return
        _run_script(script, TerminationHook(), FolderConfigHook())
        if run.is_writer:
            for line in report(run.work_dir, run.cfg):
                print(line, file=sys.stderr)


def _test(options: argparse.Namespace) -> None:
    with _exit_on_error():
        config, checkpoint = find_model(options.config, options.checkpoint)
        run = Run.of("test", config, options)
        flags = [checkpoint]
        if options.tta:
            flags.append("--tta")
        if options.show_dir:
            flags += ["--show-dir", options.show_dir]
        if run.is_writer:
            refresh_dataset_copies(run.cfg)
        script = run.load_script(config, flags, options.cfg_options)
        check_checkpoint(checkpoint)
        run.check(check_test(run.cfg, checkpoint))
    _run_script(script)


def _prepare_training(run: Run) -> ModuleType | None:
    """Return the library's script, after checks that the training can start, or None if the
    training is complete.
    """
    cfg = run.cfg
    if run.is_writer:
        refresh_dataset_copies(cfg)
    end, unit = training_length(cfg)
    checkpoint = None
    if run.options.resume is not None:
        state = find_state(run.options.resume, run.work_dir, cfg)
        if state is None:
            problem = f"{run.work_dir} has no checkpoint yet"
            run.say(f"{problem}: the run starts at the first iteration")
        else:
            checkpoint, saved = state
            if end and is_complete(saved, unit, end):
                complete = f"the run is complete: {checkpoint} has all {end} {unit}"
                run.say(f"{complete}; raise max_{unit} to extend it")
                return None
            if run.is_first:
                compare_source(checkpoint, saved, cfg)
    start = checkpoint or cfg.get("load_from") or "the config's initial weights"
    config = run.config
    flags, changes = _make_arguments(run)
    has_path_in_config = checkpoint is not None and cfg.default_scope == "mmseg"
    if checkpoint is not None:
        cfg.load_from = None  # the run does not read it, so it is not checked
        flags += ["--resume"] if has_path_in_config else ["--resume", checkpoint]
    if has_path_in_config:
        # The --resume of mmseg takes no path, and a value of --cfg-options no spaces: the path goes
        # into a config with all changes.
        config = str(run.work_dir / "resumed" / f"{Path(config).stem}.py")
        changes = []
    script = run.load_script(config, flags, changes)
    length = f"{end} {'iterations' if unit == 'iters' else unit}"
    run.say(f"{_describe_model(cfg)}, {length} from {start}, in {run.work_dir}")
    run.check(check_training(copy.deepcopy(cfg)))
    if has_path_in_config:
        cfg.load_from = checkpoint
        with atomic_path(Path(config)) as unfinished:
            cfg.dump(unfinished)
    return script


def _make_arguments(run: Run) -> tuple[list[str], list[str]]:
    """Return flags and --cfg-options of a training's script. Set what it adds in the config too."""
    cfg = run.cfg
    flags = []
    changes = {}
    wrapper = cfg.get("optim_wrapper") or {}
    wrapper_class = part_class(wrapper, OPTIM_WRAPPERS, cfg.get("default_scope"))
    if get_device() == "cpu" and (run.options.amp or wrapper_class is AmpOptimWrapper):
        changes["optim_wrapper.type"] = "mmengine.CPUAmpOptimWrapper"  # in bfloat16
    elif run.options.amp:
        flags.append("--amp")
    if "content" in (cfg.get("source") or {}):  # compared when the run resumes
        changes["source.content"] = cfg.source.content
    cfg.merge_from_dict(changes)
    return flags, [*run.options.cfg_options, *(f"{key}={value}" for key, value in changes.items())]


def _describe_model(cfg: Config) -> str:
    """Describe a model and the data that it is trained on."""
    model = type_name(cfg.model)
    backbone: dict = cfg.model.get("backbone") or {}
    if "type" in backbone:
        model += f" with {type_name(backbone)}"
    if "patch_size" in backbone:
        model += f"-{str(backbone.get('arch')).upper()}/{backbone['patch_size']}"
    dataset = next(data_sets(cfg, "train"), {})
    folders = dataset.get("data_prefix") or {}
    paths = [dataset.get("data_root"), dataset.get("ann_file"), *folders.values()]
    path = next(filter(None, paths), None)
    return f"{model} on {path}" if path else model
