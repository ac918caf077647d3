"""Stores of the tokens of a large image, in memory or in a file, read and written by rows."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..utils.atomic import finish, unfinished_path


class TokensInMemory:
    """Tokens (height, width, C) on a device."""

    is_finished = False

    def __init__(self, shape: tuple[int, int, int], device: torch.device) -> None:
        self.tokens = torch.empty(shape, device=device)

    def read(self, rows: slice, columns: slice = slice(None)) -> Tensor:
        return self.tokens[rows, columns]

    def write(self, rows: slice, tokens: Tensor) -> None:
        self.tokens[rows] = tokens

    def finish(self) -> None:
        pass


class TokensInFile:
    """Tokens (height, width, C) in a file of float32, which has its name when it is finished.

    The file is not mapped: the pages that were read would count as memory of the process.
    """

    def __init__(self, shape: tuple[int, int, int], device: torch.device, path: Path) -> None:
        self.shape = shape
        self.device = device
        self.name = path
        self.is_finished = path.exists()
        self.path = path if self.is_finished else unfinished_path(path)
        self.path.touch()

    def read(self, rows: slice, columns: slice = slice(None)) -> Tensor:
        height, width, channels = self.shape
        first, last, _ = rows.indices(height)
        left, right, _ = columns.indices(width)
        tokens = np.empty((last - first, right - left, channels), np.float32)
        with self.path.open("rb") as file:
            for row, content in enumerate(tokens, first):
                file.seek(4 * channels * (row * width + left))
                if file.readinto(content.data) < content.nbytes:
                    raise EOFError(f"{self.path} ends early")
        return torch.from_numpy(tokens).to(self.device)

    def write(self, rows: slice, tokens: Tensor) -> None:
        _, width, channels = self.shape
        with self.path.open("r+b") as file:
            file.seek(4 * channels * rows.start * width)
            file.write(tokens.contiguous().cpu().numpy().data)

    def finish(self) -> None:
        finish(self.path, self.name)
        self.path = self.name
