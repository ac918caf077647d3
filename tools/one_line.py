"""What every tool may end in: an error that its user can mend, another tool that failed, or Ctrl-C."""

import subprocess
import sys
from collections.abc import Callable

__all__ = ["exit_code"]


def exit_code(work: Callable[[], int | None], interrupted: str, *errors: type[Exception]) -> int:
    """Do a tool's work; the program ends by one line for these errors, with 130 on Ctrl-C.

    The code is what `work` gives, None being 0. A started tool that fails has said why: its exit code is passed on.
    """
    try:
        return work() or 0
    except subprocess.CalledProcessError as error:
        if error.returncode < 0:  # killed, it has said nothing
            sys.exit(str(error))
        return error.returncode
    except errors as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
    except KeyboardInterrupt as stop:
        print(f"\ninterrupted: {str(stop) or interrupted}", file=sys.stderr)
        return 130
