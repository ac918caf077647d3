"""Read a COCO json to check it."""

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

Coco = dict[str, list[dict]]
_KINDS = ("images", "annotations", "categories")

# The numbers of polygons are nine tenths of a COCO json. The checks use the first point of each annotation only.
_POLYGONS = re.compile(rb"\[\[\s*([-+.eE\d]+\s*,\s*[-+.eE\d]+)[-+.,eE\d\s\[\]]*\]\]")


def read_coco(path: str) -> Coco:
    """Read images, annotations and categories of a COCO json. Most polygons have only their first point.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not JSON, lacks a list or an id, or repeats an id.
    """
    try:
        content = _parsed(Path(path).read_bytes())
        ids = {kind: Counter(entry["id"] for entry in content[kind]) for kind in _KINDS}
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
    except ValueError:  # not JSON, or lists of other depths, whose brackets the substitution breaks
        return json.loads(text)


def load_instances(dataset: dict, content: Coco) -> list[dict]:
    """Return the images of a `CocoDataset` after its filter, each with its `instances`.

    Its json, as `read_coco` returns it, is not parsed a second time.
    """
    kind: Any = dataset_class(dataset)

    class Parsed(kind.COCOAPI):
        def __init__(self, path: str) -> None:
            super().__init__()
            self.dataset = content
            self.createIndex()
            self.img_ann_map, self.cat_img_map = self.imgToAnns, self.catToImgs

    reader = type(kind.__name__, (kind,), dict(COCOAPI=Parsed))
    config = {**dataset, "type": reader, "pipeline": [], "serialize_data": False, "lazy_init": False}
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        return DATASETS.build(config).data_list
