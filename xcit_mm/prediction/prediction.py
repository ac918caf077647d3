"""A model's prediction for an image: arrays, drawings, and the formats of other libraries."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import supervision as sv

from ..datasets.coco import encode_mask, from_corners
from ..utils.palettes import Palette, make_palette
from .drawing import FONT, as_photo, check_font, draw_instances, draw_segmentation_map


def label_type(names: Sequence[str]) -> type[np.unsignedinteger]:
    """Return the type of a map of so many classes."""
    return np.uint8 if len(names) <= 256 else np.uint16


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """A model's prediction for an image, as NumPy arrays.

    `len` is the number of a detector's objects.

        prediction = predictor("photo.jpg")
        cv2.imwrite("drawing.jpg", prediction.draw(min_score=0.5))
        prediction.above(0.5).to_coco()

    Attributes:
        image: (H, W, 3), BGR, uint8; or (H, W, bands), as given, if the config loads other images.
        instances: A detector's objects in descending order of scores, else None. Predicted masks
            are a `CompactMask`. Objects that a user labelled have no scores: `confidence` is None.
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
        """Left, top, right and bottom in pixels, (n, 4).

        Raises:
            AttributeError: If a segmentor predicted the image, as in all attributes of objects.
        """
        return self._objects.xyxy

    @property
    def scores(self) -> np.ndarray:
        """Score of each predicted object, (n,)."""
        return self._objects.confidence

    @property
    def labels(self) -> np.ndarray:
        """Class number of each object, from 0, (n,)."""
        return self._objects.class_id

    @property
    def masks(self) -> np.ndarray | None:
        """Mask of each object, (n, H, W), bool, or None for a detector without masks."""
        masks = self._objects.mask
        return None if masks is None else np.asarray(masks)

    @property
    def _objects(self) -> Any:
        if self.instances is None:
            raise AttributeError("a segmentor predicts no objects: use segmentation")
        return self.instances

    def above(self, score: float) -> "Prediction":
        """Select the objects with at least this score, or all objects without scores."""
        if self._objects.confidence is None:
            return self
        return replace(self, instances=self._objects[self.scores >= score])

    def draw(self, min_score: float = 0.3, font: str | None = None) -> np.ndarray:
        """Draw the prediction over a copy of the image: (H, W, 3), BGR; wider with a map's legend.

        If the image has other bands than a photo, the first three are shown as red, green and blue.
        Three bands of uint8 are taken for BGR.

        Args:
            min_score: Minimum score of the objects that are drawn.
            font: Path of the font of the names. Default: DejaVu Sans, which has European letters.

        Raises:
            OSError: If the font cannot be read.
        """
        image = as_photo(self.image)
        colors = make_palette(len(self.names), self.palette)
        font = font or FONT
        check_font(font)
        if self.segmentation is not None:
            return draw_segmentation_map(image, self.segmentation, self.names, colors, font)
        instances = self.above(min_score)._objects
        return draw_instances(image, instances, self.names, colors, font)

    def to_coco(
        self, image_id: int | str | None = 1, category_ids: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the objects as COCO results. By default, ids of classes count from 1."""
        ids = range(1, len(self.names) + 1) if category_ids is None else category_ids
        boxes = from_corners(self.boxes).tolist()
        objects = zip(self.labels.tolist(), boxes, self.scores.tolist(), strict=True)
        results: list[dict[str, Any]] = [
            dict(image_id=image_id, category_id=int(ids[label]), bbox=box, score=score)
            for label, box, score in objects
        ]
        if self._objects.mask is not None:
            for result, mask in zip(results, self._objects.mask, strict=True):
                result["segmentation"] = encode_mask(mask)
        return results

    def to_supervision(self) -> sv.Detections:
        """Return the objects as supervision's annotators and metrics take them, with names."""
        return replace(self._objects, data=dict(class_name=np.array(self.names)[self.labels]))

    def __len__(self) -> int:
        return len(self._objects)

    def __repr__(self) -> str:
        if self.segmentation is None:
            counts = Counter(self.names[label] for label in self.labels)
            names = [f"{count} {name}" for name, count in counts.items()]
        else:
            names = [self.names[number] for number in np.unique(self.segmentation)]
        height, width = self.image.shape[:2]
        return f"Prediction of {height}x{width} pixels: {', '.join(names) or 'no objects'}"
