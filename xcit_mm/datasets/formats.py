"""The format of a data set: which formats explain a folder, and which of these is meant."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..utils.errors import counted
from . import coco, labelme, map_folders, voc, yolo
from .dataset import LAYOUTS, Candidate, Dataset
from .inventory import Inventory

EXPECTED = (
    "a COCO json or a folder with one, YOLO's folder with data.yaml or classes.txt, "
    "Pascal VOC's xml files, or labelme's json files"
)
_EXPECTED_MAPS = "folders of images and of segmentation maps"


def read_objects(data: Path) -> Dataset:
    """Read a data set with boxes, perhaps with masks: a COCO json, a description of YOLO, or a
    folder.

    Raises:
        FileNotFoundError: If files are missing.
        ValueError: If no format explains the folder, several do, or the data cannot be read.
    """
    return _read(data, (coco, yolo, voc, labelme), EXPECTED)


def read_maps(data: Path) -> Dataset:
    """Read a folder with photos and segmentation maps. The errors are those of `read_objects`."""
    return _read(data, (map_folders,), _EXPECTED_MAPS)


def _read(data: Path, formats: Sequence[Any], expected: str) -> Dataset:
    if not data.exists():
        raise FileNotFoundError(f"no folder or file at {data}: expected {expected}")
    inventory = Inventory.of(data)
    proposals = [_propose(data_format, inventory) for data_format in formats]
    candidates = [proposal for proposal in proposals if proposal]
    datasets = [_read_candidate(candidate, candidates) for candidate in candidates]
    counts = [dataset.count_labels() for dataset in datasets]
    explaining = [number for number, count in enumerate(counts) if count]
    if len(explaining) > 1:
        names = [f"{counted(counts[i], 'object')} of {candidates[i]}" for i in explaining]
        fix = "remove one, or give its file by --data"
        raise ValueError(f"{data} has {' and '.join(names)}: {fix}")
    if not explaining and len(candidates) != 1:
        suffixes = Counter(path.suffix.lower() for path in inventory.files)
        found = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(5))
        problem = f"{data} has no labels, but {found or 'no files'}"
        raise ValueError(f"{problem}: expected {expected}; {LAYOUTS}")
    chosen = explaining[0] if explaining else 0
    for number, candidate in enumerate(candidates):
        if number != chosen:
            reason = f"of {candidate.data_format} without objects"
            datasets[chosen].left_out.rename(candidate.file, reason)
    return datasets[chosen]


def _propose(data_format: Any, inventory: Inventory) -> Candidate | None:
    """Return a format if it may explain a folder. An error is raised when the folder is read."""
    try:
        return data_format.propose(inventory)
    except (ValueError, OSError) as error:
        return Candidate(data_format.__name__, inventory.given, partial(_raise, error))


def _raise(error: Exception) -> Dataset:
    raise error


def _read_candidate(candidate: Candidate, candidates: Sequence[Candidate]) -> Dataset:
    """Read a folder in one format. An error names the other formats that may be meant."""
    try:
        return candidate.read()
    except (ValueError, OSError) as error:
        others = [str(other) for other in candidates if other is not candidate]
        if not others:
            raise
        fix = f"if this is not meant, remove it, or give the file of {' or '.join(others)}"
        raise ValueError(f"{error}; {fix} by --data") from None
