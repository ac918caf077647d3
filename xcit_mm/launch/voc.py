"""Pascal VOC's format: an xml file for each image, and perhaps lists of the images of a split."""

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from .dataset import Dataset, Objects, Shape, describe_photos
from .files import SPLITS, find_photos, pair_labels, split_of


def read_voc(data: Path, xml_files: Iterable[Path]) -> Dataset[Objects]:
    """Describe a folder with these xml files. Photos without one are left out.

    Raises:
        ValueError: If a file cannot be read, or there are no training images.
    """
    lists = _read_lists(data)
    photos: dict[str, list[tuple[Path, list[Shape]]]] = {}
    for photo, xml in pair_labels(find_photos(data), xml_files, data):
        split = split_of(photo.parent.relative_to(data)) or "train"
        if lists:
            split = next((name for name, stems in lists.items() if photo.stem in stems), "")
        if xml and split:
            photos.setdefault(split, []).append((photo, _read_shapes(xml)))
    if "train" not in photos:
        raise ValueError(f"{data} has no training images: expected a folder or list 'train'")
    # The photos of a split may lack a class.
    labels = {shape.label for split in photos.values() for _, shapes in split for shape in shapes}
    classes = tuple(sorted(labels))
    splits = {name: describe_photos(split, classes) for name, split in photos.items()}
    return Dataset(classes, splits)


def _read_lists(data: Path) -> dict[str, set[str]]:
    """Read the names of the images of each split, if there are lists."""
    files = {path.stem: path for path in data.rglob("ImageSets/Main/*.txt")}
    lists = {}
    for split, names in SPLITS.items():
        for name in names:
            if name in files and split not in lists:
                lists[split] = set(files[name].read_text().split())
    return lists


def _read_shapes(xml: Path) -> list[Shape]:
    """Read objects. Pixels count from 1, and the last pixel of a box belongs to it."""
    shapes = []
    try:
        for element in ElementTree.parse(xml).iter("object"):
            sides = [element.findtext(f"bndbox/{side}", "") for side in ("xmin", "xmax")]
            left, right = sorted(map(float, sides))
            sides = [element.findtext(f"bndbox/{side}", "") for side in ("ymin", "ymax")]
            top, bottom = sorted(map(float, sides))
            box = [left - 1, top - 1, right - left + 1, bottom - top + 1]
            polygons = [
                [float(value.text or "") - 1 for value in polygon]
                for polygon in element.iter("polygon")
            ]
            shapes.append(Shape(element.findtext("name", "").strip(), box, polygons))
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"{xml} cannot be read ({error}): expected objects with boxes") from None
    return shapes
