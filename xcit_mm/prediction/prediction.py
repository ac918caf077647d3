"""A model's prediction for an image: arrays, drawings, and the formats of other libraries."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from io import BytesIO
from typing import Any

import cv2
import numpy as np
import supervision as sv
from PIL import Image
from pycocotools import mask as rle

from ..utils.palettes import Palette
from .drawing import draw_instances, draw_segmentation_map

MAX_SHOWN = 1280  # pixels of a side of the image that a notebook shows


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """A model's prediction for an image, as NumPy arrays. A notebook shows it as its drawing.

    `len` is the number of objects, or of classes in a segmentor's map.

    Attributes:
        image: (H, W, 3), BGR, uint8; or (H, W, bands), as given, if the config loads other images.
        instances: A detector's objects in descending order of scores, else None. Masks of tiles are
            a `CompactMask`.
        segmentation: A segmentor's class of every pixel, (H, W), uint8 or uint16, else None.
        names: Name of each class.
        palette: Color of each class in drawings, RGB, if the config has colors.
    """

    image: np.ndarray
    instances: sv.Detections | None
    segmentation: np.ndarray | None
    names: Sequence[str]
    palette: Palette | None = None

    @property
    def boxes(self) -> np.ndarray:
        """Left, top, right and bottom in pixels, (n, 4), by descending score. A segmentor's raises
        AttributeError.
        """
        return self._objects.xyxy

    @property
    def scores(self) -> np.ndarray:
        """Score of each object, (n,)."""
        return self._objects.confidence

    @property
    def labels(self) -> np.ndarray:
        """Class number of each object, from 0, (n,)."""
        return self._objects.class_id

    @property
    def masks(self) -> np.ndarray | None:
        """Mask of each object, (n, H, W), bool, or None for a model without masks."""
        masks = self._objects.mask
        return None if masks is None else np.asarray(masks)

    @property
    def _objects(self) -> Any:
        if self.instances is None:
            raise AttributeError("a segmentor predicts no objects: use segmentation")
        return self.instances

    def above(self, score: float) -> "Prediction":
        """Select the objects with a higher score."""
        return replace(self, instances=self._objects[self.scores > score])

    def draw(self, min_score: float = 0.3, alpha: float = 0.5, labels: bool = True) -> np.ndarray:
        """Draw the prediction over a copy of the image: (H, W, 3), BGR; wider with the legend of a
        segmentation map.

        Args:
            min_score: Score above which objects are drawn.
            alpha: Opacity of masks and segmentation maps, from 0 to 1.
            labels: Whether to draw names and scores, or the legend of a segmentation map.

        Raises:
            ValueError: If the image has bands other than BGR of 8 bits.
        """
        image = cv2.cvtColor(self.image, cv2.COLOR_GRAY2BGR) if self.image.ndim == 2 else self.image
        if image.shape[2] != 3 or image.dtype != np.uint8:
            raise ValueError(
                f"image of {image.dtype}, {image.shape}: only (H, W, 3), BGR, uint8 is drawn"
            )
        style = self.names, self.palette, alpha, labels
        if self.segmentation is not None:
            return draw_segmentation_map(image, self.segmentation, *style)
        return draw_instances(image, self.above(min_score).instances, *style)

    def plot(self, min_score: float = 0.3, alpha: float = 0.5, labels: bool = True) -> Image.Image:
        """Return the drawing of `draw` as an image of Pillow, in RGB."""
        return Image.fromarray(self.draw(min_score, alpha, labels)[..., ::-1])

    def to_coco(
        self, image_id: int | str | None = 1, category_ids: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the objects as COCO results, as in predictions.json of `predict_many`.

        Args:
            image_id: Id of the image.
            category_ids: Id of each class. Default: from 1 on.
        """
        ids = range(1, len(self.names) + 1) if category_ids is None else category_ids
        left, top, right, bottom = self.boxes.T
        boxes = np.stack([left, top, right - left, bottom - top], axis=1).tolist()
        values = zip(self.labels.tolist(), boxes, self.scores.tolist(), strict=True)
        results: list[dict[str, Any]] = [
            dict(image_id=image_id, category_id=ids[label], bbox=box, score=score)
            for label, box, score in values
        ]
        for number, result in enumerate(() if self._objects.mask is None else results):
            code: Any = rle.encode(_mask_in_columns(self._objects.mask, number))
            result["segmentation"] = dict(size=code["size"], counts=code["counts"].decode())
        return results

    def to_supervision(self) -> sv.Detections:
        """Return the objects as supervision's annotators and metrics take them, with the classes'
        names.
        """
        return replace(self._objects, data=dict(class_name=np.array(self.names)[self.labels]))

    def to_pandas(self) -> Any:
        """Return a row per object: left, top, right and bottom in pixels, score, label and the
        class's name.

        Needs pandas, which is no requirement of this package.
        """
        table = import_module("pandas").DataFrame(
            self.boxes, columns=["left", "top", "right", "bottom"]
        )
        names = [self.names[label] for label in self.labels]
        return table.assign(score=self.scores, label=self.labels, name=names)

    def __len__(self) -> int:
        return len(self.scores) if self.segmentation is None else len(np.unique(self.segmentation))

    def __repr__(self) -> str:
        size = "{}x{} pixels".format(*self.image.shape[:2])
        if self.segmentation is not None:
            present = ", ".join(self.names[number] for number in np.unique(self.segmentation))
            return f"Prediction of {size}: {present}"
        counts = Counter(self.names[label] for label in self.labels)
        return f"Prediction of {size}: {', '.join(f'{count} {name}' for name, count in counts.items()) or 'no objects'}"

    def _repr_png_(self) -> bytes | None:
        """Return the drawing as PNG for a notebook, or None for images of other bands, which are
        not drawn.
        """
        try:
            drawn, png = self.plot(), BytesIO()
        except ValueError:
            return None
        drawn.thumbnail((MAX_SHOWN, MAX_SHOWN))
        drawn.save(png, "PNG")
        return png.getvalue()


def _mask_in_columns(masks: np.ndarray | sv.CompactMask, number: int) -> np.ndarray:
    """Return a mask (H, W), uint8, column by column in memory, as pycocotools takes it."""
    if isinstance(masks, np.ndarray):
        return np.asfortranarray(masks[number].view(np.uint8))
    whole, crop = np.zeros(masks.shape[1:], np.uint8, order="F"), masks.crop(number)
    left, top = masks.offsets[number]
    whole[top : top + crop.shape[0], left : left + crop.shape[1]] = crop
    return whole
