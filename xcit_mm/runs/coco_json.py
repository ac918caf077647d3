"""A COCO json, read for what can be wrong with it."""

import gc
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from .findings import reason

__all__ = ["Coco", "read_coco"]

# Their numbers are nine tenths of a COCO json, and none is looked at.
_POLYGONS = re.compile(rb"\[\[[-+.,eE\d\s\[\]]*\]\]")


class Coco(NamedTuple):
    """What a COCO json says that can be wrong; the file itself takes gigabytes once parsed.

    Attributes:
        names: Names of the categories by id, in the file's order.
        images: Images by id.
        labels: Image and category of every annotation.
        lacking: Number of annotations without a key.
    """

    names: dict[Any, str]
    images: dict[Any, dict]
    labels: list[tuple[Any, Any]]
    lacking: dict[str, int]


def read_coco(path: str) -> Coco:
    """Read a COCO json.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is not JSON, lacks what mmdet reads, or has an annotation id twice.
    """
    gc.disable()  # none of the millions of new objects is garbage, and looking for it takes seconds
    try:
        content = json.loads(_POLYGONS.sub(b"[[0]]", Path(path).read_bytes()))
        annotations = content["annotations"]
        coco = Coco(
            names={one["id"]: one["name"] for one in content["categories"]},
            images={one["id"]: one for one in content["images"]},
            labels=[(one["image_id"], one["category_id"]) for one in annotations],
            lacking={key: sum(key not in one for one in annotations) for key in ("bbox", "area", "iscrowd")}
            | {"segmentation": sum(not one.get("segmentation") for one in annotations)},
        )
        repeated = len(annotations) - len({one["id"] for one in annotations})
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not in COCO's format: {reason(error)}") from None
    finally:
        gc.enable()
    if repeated:
        raise ValueError(f"{path} has {repeated} annotations with the id of another one")
    return coco
