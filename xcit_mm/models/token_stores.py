"""Stores of the tokens of a large image, in memory or in a file, read and written by rows."""

import shutil
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from ..utils.atomic import finish, named_in_errors, remove_unfinished
from ..utils.ranks import Ranks


class TokensInMemory:
    """Tokens (height, width, C) on a device."""

    is_finished = False

    def __init__(self, shape: tuple[int, int, int], device: torch.device) -> None:
        self.tokens = torch.empty(shape, device=device)

    def read(self, rows: slice, columns: slice = slice(None)) -> Tensor:
        return self.tokens[rows, columns]

    def write(self, rows: slice, tokens: Tensor) -> None:
        self.tokens[rows] = tokens

    def finish(self, ranks: Ranks) -> None:
        pass


class TokensInFile:
    """Tokens (height, width, C) in a file of float32, which has its name when it is finished.

    Several processes may write rows of their own into it. The file is not mapped: the pages that
    were read would count as memory of the process.

    Args:
        folder: Folder of the file.
        name: Its name when it is finished.
        current_name: Its name now, from `prepare_files`.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        device: torch.device,
        folder: Path,
        name: str,
        current_name: str,
    ) -> None:
        self.shape = shape
        self.device = device
        self.name = folder / name
        self.path = folder / current_name
        self.is_finished = current_name == name

    def read(self, rows: slice, columns: slice = slice(None)) -> Tensor:
        height, width, channels = self.shape
        first, last, _ = rows.indices(height)
        left, right, _ = columns.indices(width)
        tokens = np.empty((last - first, right - left, channels), np.float32)
        with self.path.open("rb") as file:
            for row, content in enumerate(tokens, first):
                file.seek(4 * channels * (row * width + left))
                if file.readinto(content.data) < content.nbytes:
                    raise EOFError(f"{self.path} is incomplete: remove it")
        return torch.from_numpy(tokens).to(self.device)

    def write(self, rows: slice, tokens: Tensor) -> None:
        _, width, channels = self.shape
        with named_in_errors(self.path), self.path.open("r+b") as file:
            file.seek(4 * channels * rows.start * width)
            file.write(tokens.contiguous().cpu().numpy().data)

    def finish(self, ranks: Ranks) -> None:
        """Give the file its name when all processes have written their rows."""
        ranks.of_first(lambda: finish(self.path, self.name))
        self.path = self.name


TokenStore: TypeAlias = TokensInMemory | TokensInFile


def prepare_files(folder: Path, names: Sequence[str], size: int) -> list[str]:
    """Make the files of stores, and return the names that they have until they are finished.

    Files that an earlier run has finished stay, up to the first that is missing: the run goes on
    there, and replaces the files after it.

    Args:
        size: Bytes of each.

    Raises:
        OSError: If the disk is too small.
    """
    remove_unfinished(folder)
    finished = list(takewhile(lambda name: (folder / name).exists(), names))
    missing = names[len(finished) :]
    check_disk(folder, size * len(missing), "predict in tiles")
    # New names: a process of a stopped run may still write to its own.
    run = uuid4().hex
    unfinished = [f".unfinished-{run}-{name}" for name in missing]
    for name in unfinished:
        with (folder / name).open("wb") as file:
            file.truncate(size)  # to its full length: processes write at several places
    return [*finished, *unfinished]


def check_disk(folder: Path | str, size: int, fix: str) -> None:
    """Raise OSError if tokens of a size in bytes do not fit on the disk of a folder."""
    free = shutil.disk_usage(folder).free
    if size > free:
        sizes = f"{size / 1e9:.1f} GB, but {free / 1e9:.1f} GB are free"
        raise OSError(f"the tokens take {sizes} on the disk of {folder}: {fix}")
