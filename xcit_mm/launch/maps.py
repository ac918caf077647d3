"""Folders of images and of segmentation maps, and perhaps the names of the classes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from .dataset import Dataset, Maps, new_dataset
from .files import (
    LABEL_FOLDERS,
    PHOTO_FOLDERS,
    divide_photos,
    drop_unlabelled,
    find_photos,
    has_label_ending,
    pair_splits,
    read_lines,
)

IGNORED = 255  # the label of unlabelled pixels


def read_maps(data: Path) -> Dataset[Maps]:
    """Describe a folder with photos and segmentation maps.

    Maps are recognised by the names of folders, by endings such as _mask, or by having one channel.
    Splits are folders, or Pascal VOC's lists.

    Raises:
        ValueError: If a file cannot be read, no training photo has a map, or the maps have one
            class.
    """
    files = find_photos(data)
    maps = [path for path in files if _is_map(path, data)]
    photos = sorted(set(files).difference(maps))
    left_out: Counter[str] = Counter()
    photos_of_splits = divide_photos(photos, data, "Segmentation")
    pairs = pair_splits(photos_of_splits, maps, data, left_out)
    labelled = drop_unlabelled(pairs, data, left_out)
    classes = _read_classes(data, [label for _, label in labelled["train"]])
    if len(classes) < 2:
        problem = f"{data} has one class, {classes[0]!r}"
        fix = "write the labels 0, 1, ... into the maps, and their names into classes.txt"
        raise ValueError(f"{problem}, besides the ignored label {IGNORED}: {fix}")
    splits = {split: Maps(pairs_of_split, data) for split, pairs_of_split in labelled.items()}
    return new_dataset(classes, splits, left_out)


@contextmanager
def _open(path: Path) -> Iterator[Image.Image]:
    """Open an image. What goes wrong inside the context is an error with its path."""
    try:
        with Image.open(path) as image:
            yield image
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _is_map(path: Path, root: Path) -> bool:
    for name in reversed(path.relative_to(root).parts[:-1]):
        if name.lower() in LABEL_FOLDERS:
            return True
        if name.lower() in PHOTO_FOLDERS:
            return False
    if has_label_ending(path):
        return True
    with _open(path) as image:
        return image.format != "JPEG" and len(image.getbands()) == 1


def _read_classes(data: Path, maps: list[Path]) -> list[str]:
    """Read the names of the labels, or number the labels of the training maps."""
    file = data / "classes.txt"
    if file.is_file():
        names = read_lines(file)
        if not names:
            raise ValueError(f"{file} is empty: write the name of a label on each line")
        return names
    labels: set[int] = set()
    for path in maps:
        with _open(path) as image:
            labels.update(np.unique(np.asarray(image)).tolist())
    return [f"class {label}" for label in range(max(labels - {IGNORED}, default=0) + 1)]
