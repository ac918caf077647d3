"""Pascal VOC's format: an xml file for each image, and perhaps lists of the images of a split."""

from pathlib import Path
from xml.etree import ElementTree

from .dataset import Shape


def read_xml(path: Path) -> list[Shape]:
    """Read objects. Pixels count from 1, and the last pixel of a box belongs to it."""
    shapes = []
    try:
        for element in ElementTree.parse(path).iter("object"):
            left, right = sorted(_read_numbers(element, "xmin", "xmax"))
            top, bottom = sorted(_read_numbers(element, "ymin", "ymax"))
            box = [left - 1, top - 1, right - left + 1, bottom - top + 1]
            polygons = [
                [float(value.text or "") - 1 for value in polygon]
                for polygon in element.iter("polygon")
            ]
            shapes.append(Shape(element.findtext("name", "").strip(), box, polygons))
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"{path} cannot be read ({error}): expected objects with boxes") from None
    return shapes


def _read_numbers(element: ElementTree.Element, *sides: str) -> list[float]:
    return [float(element.findtext(f"bndbox/{side}", "")) for side in sides]
