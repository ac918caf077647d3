"""The files that a user gives to `train --from`, each read by the reader of its format."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import maps, yolo
from .coco import CocoFile, read_coco
from .dataset import Dataset, make_dataset


@dataclass(frozen=True)
class Source:
    """Files of a user.

    Attributes:
        data: A COCO json, a data.yaml, or a folder of images and maps.
        val: The COCO json of the validation, or None.
        images: The folder of the images of COCO jsons. Default: that of the json.
        val_images: The folder of the images of `val`. Default: `images`.
    """

    data: Path
    val: Path | None = None
    images: Path | None = None
    val_images: Path | None = None


def read_dataset(source: Source, is_detector: bool, order: Sequence[str] = ()) -> Dataset:
    """Read a data set.

    Args:
        is_detector: Whether objects are wanted, or else segmentation maps.
        order: Names whose order the classes of objects take if they have the same names.

    Raises:
        OSError: If a file or folder is missing.
        ValueError: If a file is not what its format says. The message names it and the place.
    """
    data = source.data
    if data.suffix != ".json" and (source.val or source.images or source.val_images):
        raise ValueError(f"--val, --images and --val-images belong to a COCO json, not to {data}")
    if not is_detector:
        return maps.read(data)
    if data.suffix in (".yaml", ".yml"):
        return yolo.read(data, order)
    if data.suffix != ".json":
        recipe = "docs/recipes.md converts Pascal VOC, labelme and CreateML"
        raise ValueError(f"{data} is neither a COCO json nor a data.yaml: {recipe}")
    train = _read_with_photos(data, source.images)
    val = None
    if source.val is not None:
        val = _read_with_photos(source.val, source.val_images or source.images)
    return make_dataset(data, train, val, order)


def _read_with_photos(path: Path, folder: Path | None) -> CocoFile:
    """Read a json, with the paths of its images as their names."""
    coco = read_coco(path)
    for image in coco.images:
        image.file_name = os.path.join(folder or path.parent, image.file_name)
    missing = [image.file_name for image in coco.images if not os.path.isfile(image.file_name)]
    if missing:
        problem = f"{len(missing)} of {len(coco.images)} images of {path} are missing"
        raise FileNotFoundError(f"{problem}, such as {missing[0]}: name their folder by --images")
    return coco
