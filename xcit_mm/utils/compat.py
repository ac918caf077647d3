"""Private names of other libraries: each with the reason for its use and the version it was seen in.

Nothing else in the package imports or replaces a private name. Libraries other than torch are imported on use.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from mmengine.runner import Runner

__all__ = ["BatchNorm", "is_resuming", "without_process_group"]

# torch 2.13: the base class of every BatchNorm layer, SyncBatchNorm included. The public classes are siblings without a
# public base class.
BatchNorm = torch.nn.modules.batchnorm._BatchNorm


def is_resuming(runner: "Runner") -> bool:
    """Whether a run of mmengine (0.10.7) resumes. Hooks of mmengine read the same attribute."""
    return runner._resume


@contextmanager
def without_process_group() -> Iterator[None]:
    """Compute as a single process within the block, although the process belongs to a group.

    SyncBN of torch (2.13), mmengine (0.10.7) and the losses of mmdet (3.3) and mmseg (1.2) communicate only if
    `torch.distributed.is_initialized()`, which is replaced here. torch has no public switch: no other group can become
    the default group, and to leave the group with NCCL takes all processes.
    """
    is_initialized = torch.distributed.is_initialized
    torch.distributed.is_initialized = lambda: False
    try:
        yield
    finally:
        torch.distributed.is_initialized = is_initialized
