"""A COCO json, read for what can be wrong with it."""

import contextlib
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from mmengine.registry import DATASETS

from ..utils.configs import dataset_class
from ..utils.errors import reason

__all__ = ["Coco", "load_instances", "read_coco"]

Coco = dict[str, list[dict]]
_KINDS = ("images", "annotations", "categories")

# Their numbers are nine tenths of a COCO json; the first point of each annotation is all that is looked at.
_POLYGONS = re.compile(rb"\[\[\s*([-+.eE\d]+\s*,\s*[-+.eE\d]+)[-+.,eE\d\s\[\]]*\]\]")


def read_coco(path: str) -> Coco:
    """Read a COCO json: its images, annotations and categories, of most polygons only the first point.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not JSON, lacks one of the three or an id, or has an id twice.
    """
    try:
        content = _parsed(Path(path).read_bytes())
        ids = {kind: Counter(one["id"] for one in content[kind]) for kind in _KINDS}
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not in COCO's format: {reason(error)}") from None
    for kind, counts in ids.items():
        repeated = sum(counts.values()) - len(counts)
        if repeated:
            raise ValueError(f"{path} has {repeated} {kind} with the id of another entry")
    return {kind: content[kind] for kind in _KINDS}


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(_POLYGONS.sub(rb"[[\1]]", text))
    except ValueError:  # it is no JSON, or holds lists of other depths, of which the substitution takes brackets away
        return json.loads(text)


def load_instances(dataset: dict, content: Coco) -> list[dict]:
    """The images that a data set of mmdet makes of a COCO json, after its filter, each with its `instances`.

    Args:
        dataset: The config of a `CocoDataset`, or of a class that is derived from it.
        content: Its json, which `read_coco` has read, so that it is not parsed again.
    """
    kind: Any = dataset_class(dataset)

    class Parsed(kind.COCOAPI):
        def __init__(self, path: str) -> None:
            super().__init__()
            self.dataset = content
            self.createIndex()
            self.img_ann_map, self.cat_img_map = self.imgToAnns, self.catToImgs

    reader = type(kind.__name__, (kind,), dict(COCOAPI=Parsed))
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        return DATASETS.build(
            {**dataset, "type": reader, "pipeline": [], "serialize_data": False, "lazy_init": False}
        ).data_list
