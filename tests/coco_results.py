"""COCO results of a detector for one image, as tools/infer.py writes them."""

from typing import Any

from xcit_mm.batch.merging import coco_results
from xcit_mm.batch.shards import Record
from xcit_mm.prediction.results import Instances, encode_masks


def results_of(found: Instances, image_id: int, category_ids: list[int]) -> list[dict[str, Any]]:
    """Convert the instances of an image of 96 x 96 pixels."""
    boxes, scores, labels = found[:3]
    values = dict(boxes=boxes.tolist(), scores=scores.tolist(), labels=labels.tolist(), masks=encode_masks(found))
    return list(coco_results(Record(0, "", "", height=96, width=96, **values), image_id, category_ids))
