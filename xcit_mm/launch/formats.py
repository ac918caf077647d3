"""Recognition of the format of a data set with boxes."""

from collections import Counter
from pathlib import Path

from .coco import find_jsons, read_jsons
from .dataset import Dataset, Objects
from .files import LAYOUTS, PHOTO_SUFFIXES, list_files
from .labelme import read_labelme
from .voc import read_voc
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
    xml_files = list_files(data, ".xml")
    if xml_files:
        return read_voc(data, xml_files)
    names = _find_one(data, "classes.txt", "obj.names")
    if names:
        return read_yolo_folder(data, names)
    shapes = [path for path in list_files(data, ".json") if b'"shapes"' in path.read_bytes()]
    if shapes:
        return read_labelme(data, shapes)
    raise ValueError(f"{data} is {_describe(data)}: expected {EXPECTED}; {LAYOUTS}")


def _find_one(data: Path, *names: str) -> Path | None:
    """Return the file below a folder that has one of the names.

    Raises:
        ValueError: If several have.
    """
    paths = [path for path in list_files(data, *names) if path.name in names]
    if len(paths) > 1:
        raise ValueError(f"{data} has {paths[0]} and {paths[1]}: give the folder of one")
    return paths[0] if paths else None


def _describe(data: Path) -> str:
    """Describe what a folder holds, by the most frequent kind of file besides images."""
    suffixes = Counter(path.suffix.lower() for path in list_files(data))
    for suffix, count in suffixes.most_common():
        if suffix not in PHOTO_SUFFIXES:
            return f"a folder of {count} {suffix} files"
    return "a folder of images or none"
