"""The format of a data set: which formats explain a folder, and which of these is meant."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from ..utils.errors import counted
from . import map_folders, old_coco, old_yolo
from .inventory import Inventory
from .old_dataset import LAYOUTS, Dataset

EXPECTED = "a COCO json or a folder with one, or YOLO's folder with data.yaml"
_Reader = Callable[[Inventory], Dataset | None]
_EXPECTED_MAPS = "folders of images and of segmentation maps"


def read_objects(data: Path) -> Dataset:
    """Read a data set with boxes, perhaps with masks: a COCO json, a description of YOLO, or a
    folder.

    Raises:
        FileNotFoundError: If files are missing.
        ValueError: If no format explains the folder, several do, or the data cannot be read.
    """
    return _read(data, {"COCO": old_coco.read, "YOLO": old_yolo.read}, EXPECTED)


def read_maps(data: Path) -> Dataset:
    """Read a folder with photos and segmentation maps. The errors are those of `read_objects`."""
    return _read(data, {"maps": map_folders.read}, _EXPECTED_MAPS)


def _read(data: Path, readers: Mapping[str, _Reader], expected: str) -> Dataset:
    """Read a data set by the one format that finds objects, or else labels without objects."""
    if not data.exists():
        raise FileNotFoundError(f"no folder or file at {data}: expected {expected}")
    inventory = Inventory.of(data)
    datasets: list[Dataset] = []
    errors: dict[str, Exception] = {}
    for data_format, read in readers.items():
        try:
            dataset = read(inventory)
        except (ValueError, OSError) as error:
            errors[data_format] = error
        else:
            datasets += [dataset] if dataset else []
    if errors:
        data_format, first_error = next(iter(errors.items()))
        if not datasets:
            raise first_error
        files = " or ".join(f"{dataset.data_format} ({dataset.source})" for dataset in datasets)
        fix = f"if only {files} is meant, move the files of {data_format} elsewhere"
        raise ValueError(f"{first_error}; {fix}") from None
    explaining = [dataset for dataset in datasets if dataset.count_labels()] or datasets
    if not explaining:
        suffixes = Counter(path.suffix.lower() for path in inventory.files)
        files = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(5))
        problem = f"{data} has no labels that are read, but {files or 'no files'}"
        raise ValueError(f"{problem}: expected {expected}; {LAYOUTS}")
    if len(explaining) > 1:
        objects = [
            f"{counted(dataset.count_labels(), 'object')} of {dataset.data_format} "
            f"({dataset.source})"
            for dataset in explaining
        ]
        fix = "move the files of all but one format elsewhere"
        raise ValueError(f"{data} has {' and '.join(objects)}: {fix}")
    chosen = explaining[0]
    for dataset in datasets:
        if dataset is not chosen and dataset.source:
            reason = f"of {dataset.data_format} without objects"
            chosen.left_out.rename(dataset.source, reason)
    return chosen
