"""A user's files for a fine-tuning, each read by the reader for its format."""

import os
from collections.abc import Sequence
from pathlib import Path

from ..utils.errors import ArgumentError, preview
from . import maps, yolo
from .coco import CocoFile, read_coco
from .dataset import PAGE, Dataset


def read_dataset(
    data: Path,
    is_detector: bool,
    order: Sequence[str] = (),
    *,
    val: Path | None = None,
    images: Path | None = None,
    val_images: Path | None = None,
) -> Dataset:
    """Read a data set for a fine-tuning.

    Its classes are the categories with objects in the training, or the lines of classes.txt.

    Args:
        data: A COCO json, a data.yaml, or a folder with images and maps.
        is_detector: Whether to read objects, or else segmentation maps.
        order: Names of classes. If the objects have the same names, they get this order.
        val: The COCO json for the validation.
        images: Folder of the images in a COCO json. Default: the folder of the json.
        val_images: Folder of the images in `val`. Default: `images`.

    Raises:
        OSError: If a file or folder is missing.
        ValueError: If a file does not match its format. The message names the file and the place.
        yaml.YAMLError: If a data.yaml is not YAML.
    """
    for name, path in dict(val=val, images=images, val_images=val_images).items():
        if path and data.suffix != ".json":
            raise ArgumentError(
                name, f"it is for a COCO json, but the data are {data}: leave it out"
            )
    if val_images and not val:
        raise ArgumentError("val_images", "it is for the images of a validation: give val too")
    if not is_detector:
        return maps.read(data)
    held_out = None
    if data.suffix in (".yaml", ".yml"):
        train, held_out = yolo.read(data)
    elif data.suffix == ".json":
        train = _read_objects(data, images)
        if val:
            held_out = _read_objects(val, val_images or images)
    elif not data.exists():
        raise FileNotFoundError(f"no data at {data}: correct the path")
    else:
        problem = f"a detector takes a COCO json or a data.yaml, not {data}: {PAGE} shows both"
        fix = "docs/recipes.md converts other formats; for a raster, give its labels too"
        raise ArgumentError("data", f"{problem}; {fix}")
    if not train.annotations:
        raise ValueError(f"{data}: no image for training has an object: see {PAGE}")
    return dataset_of_objects(train, held_out, order, val or data)


def dataset_of_objects(
    train: CocoFile, val: CocoFile | None, order: Sequence[str], val_name: object = "the validation"
) -> Dataset:
    """Make a data set from objects. Its classes are the categories with objects in the training.

    Args:
        order: As in `read_dataset`.
        val_name: What an error calls the validation.

    Raises:
        ValueError: If the validation does not have a category of the training.
    """
    used = {annotation.category_id for annotation in train.annotations}
    classes = [category.name for category in train.categories if category.id in used]
    if set(classes) == set(order):
        classes = list(order)
    _number_classes(train, classes)
    left_out = 0
    if val is not None:
        missing = sorted(set(classes).difference(category.name for category in val.categories))
        if missing:
            problem = f"{val_name} has no category {preview(missing)}, which the training has"
            raise ValueError(f"{problem}: add it to its categories")
        left_out = _number_classes(val, classes)
        if not val.annotations:
            problem = f"no image for validation has an object of the classes {preview(classes)}"
            raise ValueError(f"{val_name}: {problem}")
    return Dataset(tuple(classes), train, val, left_out)


def _read_objects(path: Path, folder: Path | None) -> CocoFile:
    """Read a COCO json, and replace the names of its images with their paths."""
    coco = read_coco(path)
    for image in coco.images:
        image.file_name = os.path.join(folder or path.parent, image.file_name)
    return coco


def _number_classes(content: CocoFile, classes: Sequence[str]) -> int:
    """Number the classes of objects, remove other objects, and return how many were removed."""
    names = {category.id: category.name for category in content.categories}
    numbers = {name: number for number, name in enumerate(classes, start=1)}
    objects = content.annotations
    content.annotations = [entry for entry in objects if names[entry.category_id] in numbers]
    for entry in content.annotations:
        entry.category_id = numbers[names[entry.category_id]]
    return len(objects) - len(content.annotations)
