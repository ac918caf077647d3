"""Recognition of the format of a data set with boxes."""

from collections import Counter
from pathlib import Path

from .coco import find_jsons, read_jsons
from .dataset import Dataset, Objects
from .files import PHOTO_SUFFIXES
from .voc import read_voc
from .yolo import read_yolo

EXPECTED = (
    "a COCO json or a folder with one, YOLO's folder with data.yaml, "
    "or Pascal VOC's folders with xml files"
)


def read_objects(data: Path) -> Dataset[Objects]:
    """Describe a data set with boxes, perhaps with masks: a COCO json, or a folder of any format.

    Raises:
        FileNotFoundError: If files are missing.
        ValueError: If the format is another, or the data cannot train a detector.
    """
    if data.is_file():
        return read_jsons({"train": data})
    if not data.is_dir():
        raise FileNotFoundError(f"no folder or file at {data}: expected {EXPECTED}")
    for description in data.glob("data.y*ml"):
        return read_yolo(description)
    jsons = find_jsons(data)
    if jsons:
        return read_jsons(jsons)
    xml_files = list(data.rglob("*.xml"))
    if xml_files:
        return read_voc(data, xml_files)
    raise ValueError(f"{data} is {_describe(data)}: expected {EXPECTED}")


def _describe(data: Path) -> str:
    """Describe what a folder holds, by the most frequent kind of file besides images."""
    files = [path for path in data.rglob("*.*") if path.suffix.lower() not in PHOTO_SUFFIXES]
    jsons = [path for path in files if path.suffix == ".json"]
    if any(b'"shapes"' in path.read_bytes()[:100_000] for path in jsons[:9]):
        return "a folder of labelme's json files"
    for suffix, count in Counter(path.suffix.lower() for path in files).most_common(1):
        return f"a folder of {count} {suffix} files"
    return "a folder of images or none"
