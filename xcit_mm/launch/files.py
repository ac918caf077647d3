"""The files of a data set: its photos, their splits, and which label belongs to which photo."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

SPLITS = {
    "train": ("train", "training", "trainval"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
"""Splits of a data set, with the names that people give them."""

PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")

# Folders that divide photos and labels.
_KINDS = {"images", "jpegimages", "labels", "annotations"}


def find_photos(folder: Path) -> list[Path]:
    """List the photos below a folder."""
    files = sorted(folder.rglob("*.*"))
    return [path for path in files if path.suffix.lower() in PHOTO_SUFFIXES]


def common_folder(paths: Iterable[Path]) -> Path:
    """Return the deepest folder that holds all files."""
    return Path(os.path.commonpath([path.parent for path in paths]))


def split_of(folder: Path) -> str | None:
    """Return the split that a folder is named after: 'val' of Validation/images."""
    for part in reversed(folder.parts):
        words = re.findall("[a-z]+", part.lower())
        for split, names in SPLITS.items():
            if not set(names).isdisjoint(words):
                return split
    return None


def pair_labels(
    photos: Iterable[Path], labels: Iterable[Path], root: Path
) -> list[tuple[Path, Path | None]]:
    """Return each photo with its label, or None.

    A label has the stem of its photo. It is beside the photo, or its path below `root` differs only
    by a folder such as labels/ in place of images/.
    """
    by_key = {_key(label, root): label for label in labels}
    return [(photo, by_key.get(_key(photo, root))) for photo in photos]


def _key(path: Path, root: Path) -> tuple[str, ...]:
    folders = path.relative_to(root).parts[:-1]
    return (*(name for name in folders if name.lower() not in _KINDS), path.stem)
