"""Data sets written for mmdet as COCO jsons. Segmentation maps stay where they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..utils.atomic import atomic_write
from .coco import Annotation, Category, CocoFile, CocoImage
from .dataset import Dataset, Maps


def write_dataset(dataset: Dataset, folder: Path) -> dict[str, dict[str, Any]]:
    """Write the objects of a data set into train.json and val.json of a folder. Return the
    arguments by which mmdet or mmseg reads 'train' and, if there is one, 'val'.
    """
    arguments: dict[str, dict[str, Any]] = {}
    for name, split in (("train", dataset.train), ("val", dataset.val)):
        path = folder / f"{name}.json"
        if split is None:
            path.unlink(missing_ok=True)  # of a former writing
        elif isinstance(split, Maps):
            folders = dict(img_path=str(split.image_folder), seg_map_path=str(split.map_folder))
            arguments[name] = dict(data_prefix=folders, img_suffix=split.suffix)
        else:
            write_coco(path, dataset.classes, split.images, split.annotations)
            arguments[name] = dict(ann_file=str(path), data_prefix=dict(img=""))
    return arguments


def write_coco(
    path: Path, classes: Sequence[str], images: list[CocoImage], annotations: list[Annotation]
) -> None:
    """Write a COCO json. Its images and annotations get the ids 1, 2, ..., as classes have."""
    numbers = {image.id: number for number, image in enumerate(images, start=1)}
    for image in images:
        image.id = numbers[image.id]
    for number, annotation in enumerate(annotations, start=1):
        annotation.id = number
        annotation.image_id = numbers[annotation.image_id]
    categories = [Category(number, name) for number, name in enumerate(classes, start=1)]
    with atomic_write(path) as file:
        file.write(msgspec.json.encode(CocoFile(images, categories, annotations)))
