"""`xcit-mm test`: score a model on the data set of its config."""

from collections.abc import Sequence

from .. import launch
from ..utils.cli import CommandParser, cli_main
from ..utils.memory import keep_freed_memory
from ..utils.ranks import is_first
from .options import add_launcher, add_model, add_run_options, checkpoint_of, run_options

CALLS = """
xcit-mm test work_dirs/nuts                  # its best or last checkpoint
xcit-mm test CONFIG CHECKPOINT [OPTION ...]
"""


def main(argv: Sequence[str] | None = None) -> int:
    keep_freed_memory()
    parser = CommandParser("test", CALLS)
    add_model(parser, checkpoint_follows=True)
    add_run_options(parser)
    add_launcher(parser)
    args = parser.parse_intermixed_args(argv)

    def work() -> None:
        options = dict(run_options(args), launcher=args.launcher)
        scores = launch.evaluate(args.model, checkpoint=checkpoint_of(args), **options)
        if is_first():
            for name, score in scores.items():
                print(f"{name.rpartition('/')[2]}  {score:.4g}")

    return cli_main(work, "the test has no scores yet", args.verbose, parser)
