"""Data sets written for mmdet as COCO jsons. Segmentation maps stay where they are."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ..utils.atomic import atomic_write
from .coco import Annotation, Category, CocoImage
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
    path: Path,
    classes: Sequence[str],
    images: Sequence[CocoImage],
    annotations: Sequence[Annotation],
) -> None:
    """Write a COCO json, whose images, categories and annotations are numbered from 1.

    Args:
        classes: Names of the categories 1, 2, ...
        images: With ids of any kind.
        annotations: With the ids of their images and the numbers of their categories.
    """
    numbers = {image.id: number for number, image in enumerate(images, start=1)}
    lists: dict[str, Iterable[Any]] = dict(
        categories=(Category(number, name) for number, name in enumerate(classes, start=1)),
        images=(replace(image, id=numbers[image.id]) for image in images),
        annotations=(
            replace(annotation, id=number, image_id=numbers[annotation.image_id])
            for number, annotation in enumerate(annotations, start=1)
        ),
    )
    with atomic_write(path) as file:
        start = "{"
        for name, entries in lists.items():
            file.write(f'{start}"{name}": ['.encode())
            separator = b"\n"
            for entry in entries:  # one by one: the whole text would take as much memory again
                file.write(separator + msgspec.json.encode(entry))
                separator = b",\n"
            start = "],\n"
        file.write(b"]}")
