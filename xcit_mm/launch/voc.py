"""Pascal VOC's format: an xml file for each image, and perhaps lists of the images of a split."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from .dataset import Dataset, Objects, Shape, describe_labelled


def read_voc(data: Path, xml_files: Sequence[Path]) -> Dataset[Objects]:
    """Describe a folder with these xml files. Photos without one are left out.

    Raises:
        ValueError: If a file cannot be read, or there are no training images.
    """
    return describe_labelled(data, {xml: _read_shapes(xml) for xml in xml_files})


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
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ValueError(f"{xml} cannot be read ({error}): expected objects with boxes") from None
    return shapes
