"""Recognition of the format of a data set with boxes."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ..utils.images import image_size
from .coco import find_jsons, read_json, read_jsons
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
    if data.is_dir():
        return _read_folder(data)
    if not data.is_file():
        raise FileNotFoundError(f"no folder or file at {data}: expected {EXPECTED}")
    if data.suffix in (".yaml", ".yml"):
        return read_yolo(data)
    return read_json(data)


def _read_folder(data: Path) -> Dataset[Objects]:
    description = _find_only(data, "data.yaml", "data.yml")
    if description:
        return read_yolo(description)
    left_out: Counter[str] = Counter()
    jsons = find_jsons(data, left_out)
    if jsons:
        return read_jsons(jsons, data, left_out)
    xml_files = list_files(data, ".xml")
    if xml_files:
        return _read_labels(data, xml_files, read_xml, left_out)
    names = _find_only(data, "classes.txt", "obj.names")
    if names:
        return read_yolo_folder(data, names)
    shapes = [path for path in list_files(data, ".json") if b'"shapes"' in path.read_bytes()]
    if shapes:
        return _read_labels(data, shapes, partial(read_shapes, left_out=left_out), left_out)
    raise ValueError(f"{data} has no labels: expected {EXPECTED}; {LAYOUTS}")


def _find_only(data: Path, *names: str) -> Path | None:
    """Return the file below a folder that has one of the names. Several are an error."""
    paths = [path for path in list_files(data, *names) if path.name in names]
    if len(paths) > 1:
        raise ValueError(f"{data} has {paths[0]} and {paths[1]}: give the folder of one")
    return paths[0] if paths else None


def _read_labels(
    data: Path,
    labels: Sequence[Path],
    read: Callable[[Path], list[Shape]],
    left_out: Counter[str],
) -> Dataset[Objects]:
    """Describe a folder with a file of labels for each photo. Other photos are left out."""
    photos = find_photos(data)
    # Pascal VOC's SegmentationClass and SegmentationObject hold maps.
    photos = [path for path in photos if "segmentation" not in path.parent.name.lower()]
    pairs = pair_splits(divide_photos(photos, data), labels, data, left_out)
    splits = {}
    classes: set[str] = set()  # of all splits: one may lack a class
    for split, labelled in drop_unlabelled(pairs, data, left_out).items():
        splits[split] = Objects([])
        for photo, label in labelled:
            shapes = read(label)
            splits[split].photos.append(Photo(photo, image_size(photo), shapes))
            classes.update(shape.label for shape in shapes)
    return new_dataset(sorted(classes), splits, left_out)
