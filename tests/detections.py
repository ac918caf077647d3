"""Comparison of detections that are equal up to rounding."""

from collections.abc import Sequence

import numpy as np
from pycocotools.mask import decode

from xcit_mm.batch.shards import Record
from xcit_mm.deployment.comparison import DetectionComparison
from xcit_mm.deployment.runtime import Detections


def assert_equal_detections(pairs: Sequence[tuple[Detections, Detections]], count: int) -> None:
    """Check that images have `count` detections, and that each has a match of the same class, box, score and mask.

    Random weights give near ties, whose order rounding decides, and which of them is the last of `count`. So the order
    is free, and a detection with the lowest score needs no match. At most a tenth of the detections may be so low.
    """
    compared = DetectionComparison()
    for found, expected in pairs:
        assert len(found.scores) == len(expected.scores) == count
        assert (found.masks is None) == (expected.masks is None)
        compared.add(found, expected, (100, 100), cut=float(expected.scores.min()))
    assert compared.unmatched == 0 and compared.detections >= 0.9 * 2 * count * len(pairs) > 0
    assert compared.boxes < 1e-5 and compared.scores < 1e-4  # in 100 pixels, in the highest score
    assert compared.different_pixels <= 1e-4 * compared.pixels


def record_to_detections(record: Record) -> Detections:
    masks = None
    if record.masks is not None:
        codes = [dict(size=[record.height, record.width], counts=counts) for counts in record.masks]
        masks = decode(codes).transpose(2, 0, 1).astype(bool)
    return Detections(np.array(record.boxes), np.array(record.scores), np.array(record.labels), masks)
