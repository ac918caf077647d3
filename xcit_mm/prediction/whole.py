"""A large image that the trunk sees whole, while neck and heads see windows of its maps."""

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from ..models.labels import has_plain_labels, predict_labels
from ..models.large import Taps, large_taps
from ..models.large_heads import LargeHeads
from ..models.locality import parts_that_see_windows
from ..models.trunk_check import check_trunk
from ..models.windows import CELL, Window, windows_along
from ..models.xcit import STRIDES
from ..utils.folders import lock_folder
from ..utils.memory import return_freed_memory
from ..utils.output import progress_bar, say
from ..utils.ranks import Ranks
from .joining import Part
from .prediction import Prediction
from .seen import Places, Seen
from .sources import Source
from .view import View

MEMORY = 2**28
"""Bytes that the taps of an image may take in memory. Larger ones are in files."""


class SeenWhole(Seen):
    """An image that the trunk sees whole. Neck and heads read its taps window by window.

    Args:
        folder: Where the folder for the taps is made, if they do not fit into `MEMORY`. It is
            removed in the end, but not after an error: another call with the same image and model
            goes on after the last tap that was finished. Default: the temporary folder.
        group: A group of torch.distributed, whose processes see the image together. The taps are
            then always in files, in a folder that all of them see, and each process predicts the
            windows that it wants. Default: this process alone.
    """

    def __init__(
        self,
        predictor: Any,
        source: Source,
        view: View,
        folder: str | Path | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(predictor, source, view)
        self._folder = folder
        self._group = group
        self._ranks = Ranks(group)
        self._heads: LargeHeads | None = None
        self._sample = predictor.preprocess.blank_sample()
        self._has_warned = False

    @contextmanager
    def _seeing(self) -> Iterator[None]:
        """Run the trunk, and keep its taps.

        Raises:
            BlockingIOError: If another process uses the folder.
            OSError: If the folder's disk has too little space, a process does not see the folder,
                or another process has ended.
            ValueError: If a step of the test pipeline changes sizes.
        """
        with self._folder_of_taps() as folder:
            with self.predictor.network.autocast():
                self._heads = LargeHeads(self.predictor.model, self._run_trunk(folder))
                return_freed_memory()
                places = product(self.spread(0), self.spread(1))
                windows = (
                    (_on_grid(row.span, column.span), _on_grid(row.inside, column.inside))
                    for row, column in places
                )
                self._heads.add_pools(windows, self._group)
            try:
                yield
            finally:
                self._heads = None

    @contextmanager
    def _folder_of_taps(self) -> Iterator[Path | None]:
        """Yield the folder of the taps, or None if they fit into memory.

        A folder that was given is locked against other processes, holds what a later run resumes,
        and is removed at the end unless the block raises.
        """
        backbone = self.predictor.model.backbone
        sides = self.resized.height, self.resized.width
        tokens = math.prod(_padded(side) // backbone.patch_size for side in sides)
        needed = 4 * tokens * backbone.arch.embed_dim * len(backbone.out_indices)
        if needed <= MEMORY and self._ranks.size == 1:
            yield None
        elif self._folder is None:
            with TemporaryDirectory(prefix="xcit_mm-") as temporary:
                say(f"{needed / 1e9:.1f} GB are written to {temporary}: give `see` a folder")
                yield Path(temporary)
        else:
            settings = self.predictor.settings | self.view.settings | self.source.fingerprint()
            folder = Path(self._folder).absolute() / f"taps-{crc32(repr(settings).encode()):08x}"
            is_first = self._ranks.rank == 0
            with lock_folder(folder) if is_first else nullcontext():
                self._ranks.wait()
                yield folder
                self._ranks.wait()  # others may still read the taps
            if is_first:
                shutil.rmtree(folder)  # unless the block raised

    def _run_trunk(self, folder: Path | None) -> Taps:
        predictor = self.predictor
        backbone = predictor.model.backbone
        size = self.resized.height, self.resized.width

        def read_rows(first: int, last: int) -> tuple[Tensor, Tensor | None]:
            pixels, valid = self.resized.read(slice(first, last), slice(0, size[1]))
            sample = predictor.preprocess(pixels, resizes=False)
            if sample["inputs"].shape[1:] != pixels.shape[:2]:
                problem = "a step of the test pipeline other than Resize and Pad changes sizes"
                raise ValueError(f"{problem}: remove it, or predict in tiles")
            batch = {name: [value] for name, value in sample.items()}
            inputs = predictor.model.data_preprocessor(batch, False)["inputs"][0]
            has_data = None if valid.all() else torch.from_numpy(valid.copy())
            return inputs[:, : last - first, : size[1]], has_data

        # Shown if it takes seconds. It stays on the screen unless it is below a bar of images.
        passes = 1 + len(backbone.blocks)
        is_hidden = self._ranks.rank > 0
        with progress_bar(passes, "pass", is_hidden, desc="trunk", delay=2, leave=None) as bar:
            return large_taps(
                backbone,
                read_rows,
                *size,
                folder=folder,
                memory=MEMORY,
                progress=lambda done, passes: bar.update(done - bar.n),
                group=self._group,
            )

    def _predict_windows(self, places: Places) -> Iterator[Part]:
        """Predict windows. A window with as many objects as a detector may return is divided."""
        return_freed_memory()  # once for each row of a raster
        limit = self.predictor.most_objects
        for rows, columns, _, valid in self._read(places):
            prediction = self._predict(rows, columns)
            if limit is not None and len(prediction) >= limit:
                halves = self._halves(rows, self.resized.height)
                quarters = list(product(halves, self._halves(columns, self.resized.width)))
                if len(quarters) > 1:
                    yield from self._predict_windows(quarters)
                    continue
                if not self._has_warned:
                    size = f"{rows.stop - rows.start}x{columns.stop - columns.start}"
                    problem = f"max_per_img={limit} is reached in {size} pixels"
                    say(f"{problem}: objects may be missed, so set a higher one in test_cfg")
                self._has_warned = True
            yield Part(rows, columns, prediction, valid)

    def _halves(self, window: Window, length: int) -> list[Window]:
        """Divide a window in two, or return it alone if the halves would read as much."""
        inside = window.inside
        cells = math.ceil((inside.stop - inside.start) / 2 / CELL)
        return windows_along(inside, length, cells * CELL, self.view.overlap)

    @torch.no_grad()
    def _predict(self, row: Window, column: Window) -> Prediction:
        assert self._heads is not None
        size = row.stop - row.start, column.stop - column.start
        with self.predictor.network.autocast():
            model, images = self._heads.model_at(*_on_grid(row.span, column.span))
            padded = tuple(images.shape[2:])
            sample = self._sample.clone()
            sample.set_metainfo(
                dict(
                    img_shape=size,
                    ori_shape=size,
                    pad_shape=padded,
                    batch_input_shape=padded,
                    # Of left, right, top and bottom: mmseg would stretch logits otherwise.
                    padding_size=(0, padded[1] - size[1], 0, padded[0] - size[0]),
                    scale_factor=(1.0, 1.0),
                )
            )
            if has_plain_labels(model):
                (predicted,) = predict_labels(model, images, [sample])
            else:
                (predicted,) = model.predict(images, [sample])
        return self.predictor.to_prediction(np.broadcast_to(np.uint8(0), (*size, 3)), predicted)


def _on_grid(*sides: slice) -> tuple[slice, slice]:
    """Return rows and columns with the padding at the end of the image."""
    rows, columns = (slice(side.start, _padded(side.stop)) for side in sides)
    return rows, columns


def _padded(length: int) -> int:
    return math.ceil(length / STRIDES[-1]) * STRIDES[-1]


def check_whole(model: Any) -> None:
    """Raise ValueError if a model cannot predict whole images.

    A message names the parts that see windows in place of the image.
    """
    for part in _parts_in_windows(model):
        say(f"{part} sees windows, not the image: the result is not that of the whole image")


def is_exact_whole(model: Any) -> bool:
    """Return whether a model predicts a whole image in windows as it would in memory."""
    try:
        return not _parts_in_windows(model)
    except ValueError:
        return False


def _parts_in_windows(model: Any) -> list[str]:
    """Return the names of the parts of a model that see windows in place of the image.

    Raises:
        ValueError: If the model cannot predict whole images.
    """
    check_trunk(model.backbone)
    if (getattr(model, "test_cfg", None) or {}).get("mode") == "slide":
        raise ValueError("mode='slide' of test_cfg cuts images: set mode='whole' in the config")
    parts = parts_that_see_windows(model, CELL)
    # mmseg's last step resizes the logits to the image.
    if getattr(model, "align_corners", False):
        parts.append(type(model.decode_head).__name__)
    return list(dict.fromkeys(parts))
