"""Segmentation maps of images too large for one pass, from logits blended where tiles overlap."""

from collections.abc import Callable, Iterator
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor

from .tiles import PredictBatch, TiledImage

MAX_HELD = 2**29  # bytes of logits in memory between two rows of tiles


def segment_in_tiles(
    predict: PredictBatch,
    image: np.ndarray,
    tile: int,
    overlap: int,
    threshold: float | None = None,
    batch_size: int = 1,
) -> BaseDataElement:
    """Predict a segmentation map from logits blended where tiles overlap.

    Memory holds the logits of a batch of tiles, and up to `MAX_HELD` bytes of those that a row of tiles leaves to the
    next along the image's shorter side. The rest is in a temporary file.

    Args:
        predict: Function from images to SegDataSamples with `seg_logits`.
        image: (H, W, 3).
        tile: Side of a tile, in pixels.
        overlap: Minimum overlap of neighbouring tiles, in pixels.
        threshold: For a segmentor of one channel, the probability above which a pixel belongs to class 1.
        batch_size: Number of tiles to predict together.

    Returns:
        A SegDataSample with `pred_sem_seg` (1, H, W), without `seg_logits`.

    Raises:
        ValueError: If the tile is not positive or the overlap not between 0 and the tile.
    """
    from mmseg.structures import SegDataSample

    shape = image.shape[:2]
    is_wide = shape[0] < shape[1]  # then the strips are columns: rows of the transposed image

    def logits(crops: list[np.ndarray]) -> list[Tensor]:
        return [sample.seg_logits.data.transpose(1, 2 if is_wide else 1) for sample in predict(crops)]

    def read(rows: slice, columns: slice) -> np.ndarray:
        return image[columns, rows] if is_wide else image[rows, columns]

    tiled = TiledImage(read, shape[::-1] if is_wide else shape, tile, overlap)
    labels = torch.cat([strip for _, strip in iter_segmented(logits, tiled, threshold, batch_size)]).int()
    sample = SegDataSample(metainfo=dict(ori_shape=shape, img_shape=shape))
    sample.pred_sem_seg = PixelData(data=(labels.T if is_wide else labels)[None])
    return sample


def iter_segmented(
    predict: Callable[[list[np.ndarray]], list[Tensor]],
    image: TiledImage,
    threshold: float | None = None,
    batch_size: int = 1,
    first: int = 0,
) -> Iterator[tuple[int, Tensor]]:
    """Yield a segmentation map in strips, one for each row of tiles; see `segment_in_tiles`.

    Args:
        predict: Function from images to logits (C, h, w), which are changed in place.
        first: Row of tiles to begin with. Earlier rows that overlap it are predicted too, so that each strip equals
            the strip of a run from the top.

    Yields:
        The first row of the strip in the image, and its classes (h, W), uint8, or int32 if there are more than 255.
        0 where nothing is to be predicted.

    Raises:
        OSError: If the temporary file cannot be written.
    """
    rows, columns = image.rows, image.columns
    row_ends = [*(row.start for row in rows[1:]), rows[-1].stop]
    column_ends = [*(column.start for column in columns[1:]), columns[-1].stop]
    begin = next(number for number, row in enumerate(rows) if row.stop > rows[first].start)
    above = _Logits()
    for number in range(begin, len(rows)):
        row = rows[number]
        height = row_ends[number] - row.start  # of the strip that this row of tiles completes
        labels = torch.zeros(height, image.shape[1], dtype=torch.uint8)
        left: Tensor | None = None  # weighted logits that the previous tile leaves to the next tile
        below = _Logits()
        results = image.iter_predicted(predict, [(row, column) for column in columns], batch_size)
        for column, next_column, logits in zip(columns, column_ends, results, strict=True):
            earlier = left, above.pop(column.start)
            if logits is None:  # earlier logits lie within this tile, where nothing is to be predicted
                left = None
                continue
            logits *= row.weight.to(logits)[:, None] * column.weight.to(logits)
            for part in earlier:
                if part is not None:
                    logits[:, : part.shape[1], : part.shape[2]] += part.to(logits.device)
            width = next_column - column.start
            left = logits[:, :, width:].clone() if next_column < column.stop else None
            if number < len(rows) - 1:
                below.add(column.start, logits[:, height:, :width])
            done = logits[:, :height, :width]
            if len(logits) > 255 and labels.dtype == torch.uint8:
                labels = labels.int()
            labels[:, column.start : next_column] = done.argmax(dim=0) if len(done) > 1 else done[0] > threshold
        above = below
        if number >= first:
            yield row.start, labels


class _Logits:
    """Weighted logits (C, h, w) that a row of tiles leaves to the next, in a file beyond `MAX_HELD` bytes."""

    def __init__(self) -> None:
        self._held: dict[int, Tensor] = {}
        self._stored: dict[int, tuple[int, Tensor]] = {}  # position in the file, and an empty tensor of the same kind
        self._free = MAX_HELD
        self._file: Any = None

    def add(self, column: int, logits: Tensor) -> None:
        if logits.nbytes <= self._free:
            self._free -= logits.nbytes
            self._held[column] = logits.clone()
            return
        try:
            if self._file is None:
                self._file = TemporaryFile()  # noqa: SIM115  # is open as long as this object exists
            self._stored[column] = self._file.tell(), torch.empty_like(logits, device="meta")
            self._file.write(logits.cpu().contiguous().view(torch.uint8).numpy())
        except OSError as error:
            problem = f"{error.strerror}: logits between rows of tiles are stored in {gettempdir()}"
            raise OSError(f"{problem}; set TMPDIR to a folder with more space") from None

    def pop(self, column: int) -> Tensor | None:
        """Remove and return the logits of a tile, or return None if nothing was predicted in the tile."""
        if column not in self._stored:
            return self._held.pop(column, None)
        assert self._file is not None
        position, kind = self._stored[column]
        content = bytearray(kind.nbytes)
        self._file.seek(position)
        self._file.readinto(content)
        return torch.frombuffer(content, dtype=kind.dtype).view(kind.shape)
