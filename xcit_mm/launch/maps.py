"""Folders of images and of segmentation maps, and perhaps the names of the classes."""

from pathlib import Path

import numpy as np
from PIL import Image

from .dataset import Dataset, Maps
from .files import find_photos, split_of

IGNORED = 255  # the label of unlabelled pixels


def read_maps(data: Path) -> Dataset[Maps]:
    """Describe a folder with images (.jpg) and segmentation maps (.png), each split in a folder.

    Raises:
        ValueError: If there are no training images with maps.
    """
    files: dict[str, list[Path]] = {}
    for path in find_photos(data):
        split = split_of(path.parent.relative_to(data))
        if split:
            files.setdefault(split, []).append(path)
    splits = {}
    for split, paths in files.items():
        maps = {path.stem: path for path in paths if path.suffix == ".png"}
        photos = [path for path in paths if path.suffix.lower() in (".jpg", ".jpeg")]
        pairs = [(photo, maps[photo.stem]) for photo in photos if photo.stem in maps]
        if pairs:
            splits[split] = Maps(pairs)
            splits[split].left_out["images without a map"] = len(photos) - len(pairs)
    if "train" not in splits:
        folders = "images/train and annotations/train, also val"
        expected = f"expected folders such as {folders}, with photos as .jpg and maps as .png"
        raise ValueError(f"{data} has no images and segmentation maps: {expected}")
    return Dataset(_read_classes(data, splits["train"]), splits)


def _read_classes(data: Path, training: Maps) -> tuple[str, ...]:
    """Read the names of the labels, or number the labels of the training maps."""
    file = data / "classes.txt"
    if file.is_file():
        names = file.read_text(encoding="utf-8-sig").splitlines()
        return tuple(name.strip() for name in names if name.strip())
    labels: set[int] = set()
    for _, path in training.pairs:
        labels.update(np.unique(np.asarray(Image.open(path))).tolist())
    return tuple(f"class {label}" for label in range(max(labels - {IGNORED}) + 1))
