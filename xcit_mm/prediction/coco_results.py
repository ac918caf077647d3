"""Predictions of a detector as a file in COCO's format."""

from pathlib import Path

import mmengine
from mmengine.structures import BaseDataElement

from .tiling import encode_mask

__all__ = ["CocoFile"]


class CocoFile:
    """Predictions of a detector, gathered in COCO's format: annotations with `score`, masks as RLE."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        self.content: dict[str, list[dict]] = dict(
            images=[],
            annotations=[],
            categories=[dict(id=number, name=name) for number, name in enumerate(classes, start=1)],
        )

    def add(self, name: str, sample: BaseDataElement) -> None:
        """Add an image and its predictions, best first."""
        from pycocotools.mask import area

        height, width = sample.ori_shape
        images, annotations = self.content["images"], self.content["annotations"]
        images.append(dict(id=len(images) + 1, file_name=name, height=height, width=width))
        found = sample.pred_instances.cpu()
        for number in range(len(found)):
            left, top, right, bottom = found.bboxes[number].tolist()
            annotation = dict(
                id=len(annotations) + 1, image_id=len(images), category_id=int(found.labels[number]) + 1, iscrowd=0,
                bbox=[left, top, right - left, bottom - top], area=(right - left) * (bottom - top),
                score=float(found.scores[number]),
            )  # fmt: skip
            if "masks" in found:
                rle = found.masks[number]
                if not isinstance(rle, dict):
                    rle = encode_mask(rle.numpy(), (0, 0), (height, width))
                annotation |= dict(segmentation=dict(rle, counts=rle["counts"].decode()), area=float(area(rle)))
            annotations.append(annotation)

    def write(self, path: Path) -> None:
        mmengine.dump(self.content, str(path))
