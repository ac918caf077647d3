"""Recognition of the format of a data set with boxes."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ..utils.images import image_size
from .coco import find_jsons, read_jsons
from .dataset import Dataset, Objects, Photo, Shape, new_dataset
from .files import (
    LAYOUTS,
    divide_photos,
    drop_unlabelled,
    find_photos,
    list_files,
    pair_splits,
)
from .labelme import read_shapes
from .voc import read_xml
from .yolo import read_yolo, read_yolo_folder

EXPECTED = (
    "a COCO json or a folder with one, YOLO's folder with data.yaml or classes.txt, "
    "Pascal VOC's xml files, or labelme's json files"
)


def read_objects(data: Path) -> Dataset[Objects]:
    """Describe a data set with boxes, perhaps with masks: a COCO json, a data.yaml of YOLO, or a
    folder of any format.

    Raises:
        FileNotFoundError: If files are missing.
        ValueError: If the format is another, or the data cannot train a detector.
    """
    if data.suffix in (".yaml", ".yml") and data.is_file():
        return read_yolo(data)
    if data.is_file():
        folder = data.parent
        return read_jsons({"train": data}, folder.parent if "ann" in folder.name else folder)
    if not data.is_dir():
        raise FileNotFoundError(f"no folder or file at {data}: expected {EXPECTED}")
    description = _find_one(data, "data.yaml", "data.yml")
    if description:
        return read_yolo(description)
    jsons = find_jsons(data)
    if jsons:
        return read_jsons(jsons, data)
    left_out: Counter[str] = Counter()
    xml_files = list_files(data, ".xml")
    if xml_files:
        return _read_files(data, xml_files, read_xml, left_out)
    names = _find_one(data, "classes.txt", "obj.names")
    if names:
        return read_yolo_folder(data, names)
    files = [path for path in list_files(data, ".json") if b'"shapes"' in path.read_bytes()]
    if files:
        return _read_files(data, files, partial(read_shapes, left_out=left_out), left_out)
    raise ValueError(f"{data} has no labels: expected {EXPECTED}; {LAYOUTS}")


def _find_one(data: Path, *names: str) -> Path | None:
    """Return the file below a folder that has one of the names. Several are an error."""
    paths = [path for path in list_files(data, *names) if path.name in names]
    if len(paths) > 1:
        raise ValueError(f"{data} has {paths[0]} and {paths[1]}: give the folder of one")
    return paths[0] if paths else None


def _read_files(
    data: Path,
    labels: Sequence[Path],
    read: Callable[[Path], list[Shape]],
    left_out: Counter[str],
) -> Dataset[Objects]:
    """Describe a folder with a file of labels for each photo. Other photos are left out."""
    photos = [path for path in find_photos(data) if "segmentation" not in path.parent.name.lower()]
    pairs, unused = pair_splits(divide_photos(photos, data, "Main"), labels, data)
    left_out.update(unused)
    splits = {}
    for split, labelled in drop_unlabelled(pairs, data, left_out).items():
        splits[split] = Objects(
            [Photo(photo, image_size(photo), read(label)) for photo, label in labelled]
        )
    # The photos of a split may lack a class.
    every = [photo for objects in splits.values() for photo in objects.photos]
    classes = sorted({shape.label for photo in every for shape in photo.shapes})
    return new_dataset(classes, splits, left_out)
