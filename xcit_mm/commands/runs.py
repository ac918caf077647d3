"""Options of a training and of a test."""

import argparse
from pathlib import Path


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `train` and `test` share, some of which the library's script has too."""
    add = parser.add_argument
    work_dir_help = "folder of logs and checkpoints (default: work_dirs/CONFIG)"
    add("--work-dir", type=Path, metavar="DIR", help=work_dir_help)
    changes = parser.add_argument("--cfg-options", nargs="+", action="extend", default=[])
    changes.metavar = "KEY=VALUE"
    changes.help = "changes of the config"
    add("--skip-checks", action="store_true", help="start without the doctor's checks")
    add("--verbose", action="store_true", help="print the library's own log")
    launchers = "none, pytorch, slurm or mpi (default: %(default)s)"
    add("--launcher", default="none", metavar="NAME", help=launchers)
