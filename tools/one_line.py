"""What every tool may end in: an error that its user can mend, another tool that failed, or Ctrl-C."""

import subprocess
import sys
from collections.abc import Callable

__all__ = ["exit_code"]


def exit_code(work: Callable[[], object], interrupted: str, *errors: type[Exception]) -> int:
    """Do a tool's work; the program ends by one line for these errors, with 130 on Ctrl-C.

    A started tool that fails has said why: its exit code is passed on.
    """
    try:
        work()
    except subprocess.CalledProcessError as error:
        if error.returncode < 0:  # killed, it has said nothing
            sys.exit(str(error))
        return error.returncode
    except errors as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    return 0
