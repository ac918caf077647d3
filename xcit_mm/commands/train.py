"""`xcit-mm train`: train a config."""

from collections.abc import Sequence

from .. import launch
from ..utils.cli import CommandParser, cli_main
from ..utils.memory import keep_freed_memory
from .options import CONFIG, add_launcher, add_run_options, add_training_options, run_options

CALLS = """
xcit-mm train CONFIG [OPTION ...]
xcit-mm train CONFIG --resume           # continues from the last checkpoint
"""


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    parser = CommandParser("train", CALLS)
    add = parser.add_argument
    add("config", metavar="CONFIG", help=CONFIG)
    resume = "continue from a checkpoint (default: the last one)"
    add("--resume", nargs="?", const=True, default=False, metavar="FILE", help=resume)
    add_training_options(parser)
    add_run_options(parser)
    add_launcher(parser)
    args = parser.parse_intermixed_args(argv)

    def work() -> None:
        options = dict(run_options(args), amp=args.amp, auto_scale_lr=args.auto_scale_lr)
        launch.train(args.config, resume=args.resume, launcher=args.launcher, **options)

    return cli_main(work, "--resume continues from the last checkpoint", args.verbose, parser)
