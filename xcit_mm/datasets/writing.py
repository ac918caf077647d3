"""Data sets written for mmdet as COCO jsons. Segmentation maps stay where they are."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec.structs import replace

from ..utils.atomic import atomic_write
from .coco import Annotation, Category, CocoImage
from .dataset import Dataset, Maps

_CHUNK = 10_000  # entries of a json that are encoded together


def write_dataset(dataset: Dataset, folder: Path) -> dict[str, dict[str, Any]]:
    """Write the objects of a data set into a folder, train.json and perhaps val.json.

    Returns:
        The arguments by which mmdet's CocoDataset or mmseg's BaseSegDataset reads 'train' and, if
        there is one, 'val'.
    """
    splits = dict(train=dataset.train, val=dataset.val)
    arguments: dict[str, dict[str, Any]] = {}
    for name, split in splits.items():
        path = folder / f"{name}.json"
        if split is None:
            path.unlink(missing_ok=True)  # of a former writing
        elif isinstance(split, Maps):
            folders = dict(img_path=str(split.photos), seg_map_path=str(split.maps))
            suffixes = dict(img_suffix=split.suffix, seg_map_suffix=".png")
            arguments[name] = dict(data_prefix=folders, **suffixes)
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
    categories = [Category(number, name) for number, name in enumerate(classes, start=1)]
    numbered_images = (replace(image, id=numbers[image.id]) for image in images)
    numbered_annotations = (
        replace(annotation, id=number, image_id=numbers[annotation.image_id])
        for number, annotation in enumerate(annotations, start=1)
    )
    with atomic_write(path) as file:
        file.write(b'{"categories": ' + msgspec.json.encode(categories))
        file.write(b', "images": ')
        _write_list(file, numbered_images)
        file.write(b', "annotations": ')
        _write_list(file, numbered_annotations)
        file.write(b"}")


def _write_list(file: IO[bytes], entries: Iterator[Any]) -> None:
    """Write a list in pieces, as the text of a large list takes as much memory again."""
    separator = b"["
    for first in entries:
        chunk = [first, *islice(entries, _CHUNK)]
        file.write(separator + msgspec.json.encode(chunk)[1:-1])
        separator = b",\n"
    file.write(b"[]" if separator == b"[" else b"]")
