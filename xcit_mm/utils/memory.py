"""How a process keeps and returns freed memory."""

import ctypes
import os
import platform

# Parameters of mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 2**30


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next tensors instead of returning it to the system.

    By default each tensor of more than 32 MB has new pages. The system clears them one by one, in a
    tenth of a model's time on a CPU. If the user has set `MALLOC_` variables, nothing is changed.
    The setting acts on the whole process, so only commands call this function.
    """
    is_set = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if platform.libc_ver()[0] != "glibc" or is_set:
        return
    libc = ctypes.CDLL(None)
    # An older glibc may refuse so large a threshold. Then the other one must stay too: setting it
    # would fix the first at 128 kB, and the system would clear the pages of all larger tensors.
    if libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES):
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def return_freed_memory() -> None:
    """Return the memory that glibc has kept to the system.

    This helps between phases with tensors of other sizes. They do not fit into the places of the
    earlier tensors, so the process would grow.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
