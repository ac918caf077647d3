"""Pascal VOC's format: an xml file for each image, and perhaps lists of the images of a split."""

from array import array
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from ..utils.texts import class_name
from .dataset import Dataset, NewObject
from .inventory import Inventory
from .photo_labels import PhotoLabels, is_rotation, is_set, read_folder, stated_size


def read(inventory: Inventory) -> Dataset | None:
    """Read a folder that has Pascal VOC's xml files."""
    paths = [path for path in inventory.describing(".xml") if _is_voc(path)]
    return read_folder("Pascal VOC", paths, read_xml, inventory)


def _is_voc(path: Path) -> bool:
    """Return whether an xml file is Pascal VOC's, or damaged. Other tools write other xml files."""
    try:
        for _, element in ElementTree.iterparse(path, events=["start"]):
            return element.tag == "annotation"
    except (ElementTree.ParseError, ValueError, LookupError):  # LookupError: an unknown encoding
        pass
    return True


def read_xml(path: Path) -> PhotoLabels:
    """Read objects. Pixels count from 1, and the last pixel of a box belongs to it. Difficult
    objects neither train nor score, as in mmdet.

    Raises:
        ValueError: If the file cannot be read, or an object has no box.
    """
    objects = []
    unread: Counter[str] = Counter()
    try:
        root = ElementTree.parse(path).getroot()
        for number, element in enumerate(root.iter("object"), start=1):
            if _is_rotated(element):
                unread["rotated boxes"] += 1
                continue
            name = class_name(element.findtext("name") or "")
            left, right = sorted(_read_sides(element, "xmin", "xmax"))
            top, bottom = sorted(_read_sides(element, "ymin", "ymax"))
            box = [left - 1, top - 1, right - left + 1, bottom - top + 1]
            outlines = [
                array("d", [float(value.text or "") - 1 for value in polygon])
                for polygon in element.iter("polygon")
            ]
            new = NewObject(name, box, outlines or None, f"object {number}")
            objects.append(new._replace(is_crowd=is_set(element.findtext("difficult"))))
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"{path} cannot be read ({error}): expected objects with boxes") from None
    size = stated_size(root.findtext("size/width"), root.findtext("size/height"))
    return PhotoLabels(objects, size, unread, photo=root.findtext("filename"))


def _is_rotated(element: ElementTree.Element) -> bool:
    """Return whether an object is a rotated box without an outline."""
    if element.find("polygon") is not None:
        return False
    attributes = {
        attribute.findtext("name"): attribute.findtext("value")
        for attribute in element.iter("attribute")
    }
    return element.find("robndbox") is not None or is_rotation(attributes.get("rotation"))


def _read_sides(element: ElementTree.Element, *names: str) -> list[float]:
    sides = [element.findtext(f"bndbox/{name}") for name in names]
    if None in sides:
        raise ValueError("an object has no bndbox")
    return [float(side or "") for side in sides]
