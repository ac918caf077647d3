"""Trained detectors and segmentors on images and videos."""

from typing import Any, NamedTuple

import cv2
import numpy as np
from mmengine.config import Config
from mmengine.infer import BaseInferencer
from mmengine.structures import BaseDataElement
from torch import nn

from ..models.factory import model_from_config
from ..runs.configs import read_config, tested_metainfo
from ..runs.preflight import check_backbone, check_checkpoint, check_device
from .results import Instances, instances_of
from .tiling import check_tile, detect_in_tiles, segment_in_tiles

__all__ = ["Prediction", "Predictor"]


class Prediction(NamedTuple):
    """What a model finds in an image.

    Attributes:
        image: (H, W, 3), BGR, 8 bit.
        instances: Of a detector.
        labels: Of a segmentor, the class of every pixel (H, W).
    """

    image: np.ndarray
    instances: Instances | None
    labels: np.ndarray | None


class Predictor:
    """mmdet's or mmseg's inferencer for a config and a checkpoint, loaded whole or not at all.

    Args:
        config: Path of a config of mmdet or mmseg.
        checkpoint: A path, a URL or `xcit://NAME`.
        device: As in torch; default: a GPU if there is one.
        tile: Side in pixels of the tiles in which to predict images, for those too large for one pass; see
            `xcit_mm.prediction.tiling`. Each goes through the config's test pipeline, its resizing included.
        overlap: Least overlap of tiles in pixels; default: a quarter of the tile.

    Raises:
        FileNotFoundError: If config or checkpoint are not there.
        ValueError: If the config is of neither library, the checkpoint does not fit it, tile and overlap do not
            fit each other, or there is no such device.
    """

    def __init__(
        self,
        config: str,
        checkpoint: str,
        device: str | None = None,
        tile: int | None = None,
        overlap: int | None = None,
    ) -> None:
        if overlap is not None and tile is None:
            raise ValueError(f"{overlap=} without a tile: give the tile's side too")
        if tile is not None:
            overlap = tile // 4 if overlap is None else overlap
            check_tile(tile, overlap)
        self.tile, self.overlap = tile, overlap or 0
        check_device(device)
        cfg = read_config(config, [])
        check_checkpoint(checkpoint)
        check_backbone(cfg)
        self.is_detector = cfg.get("default_scope") == "mmdet"
        inferencer = _inferencer_class(cfg)
        model: Any = model_from_config(cfg, checkpoint)
        # The checkpoint's classes are the config's data's, by construction.
        model.dataset_meta = self.metainfo = tested_metainfo(cfg)
        self.inferencer = inferencer(cfg, model, device=device)
        self.inferencer.show_progress = False

    def __call__(self, image: np.ndarray) -> BaseDataElement:
        """Predictions for an image (H, W, 3), BGR, 8 bit, in its pixels: a DetDataSample or SegDataSample.

        With a tile they are as `detect_in_tiles` and `segment_in_tiles` return them.

        Raises:
            ValueError: If the image is too small, or too narrow for the config's resizing.
        """
        if self.tile is None:
            return self._predict(image)
        if self.is_detector:
            return detect_in_tiles(self._predict, image, self.tile, self.overlap)
        head = self.inferencer.model.decode_head
        # Mask2Former's head has none.
        threshold = getattr(head[-1] if isinstance(head, nn.ModuleList) else head, "threshold", None)
        return segment_in_tiles(self._predict, image, self.tile, self.overlap, threshold)

    def _predict(self, image: np.ndarray) -> BaseDataElement:
        try:
            result = self.inferencer(image, return_datasamples=True)
        except cv2.error:
            raise ValueError(
                f"image of {image.shape[0]}x{image.shape[1]} pixels: the config's resizing leaves nothing of it; pad it"
            ) from None
        return result["predictions"][0] if self.is_detector else result

    def predict(self, image: np.ndarray) -> Prediction:
        """What a call finds, in plain numbers; raises as it does."""
        sample = self(image)
        if self.is_detector:
            return Prediction(image, instances_of(sample), None)
        label_type = np.uint8 if len(self.metainfo["classes"]) <= 256 else np.uint16
        return Prediction(image, None, sample.pred_sem_seg.data[0].cpu().numpy().astype(label_type))


def _inferencer_class(cfg: Config) -> type[BaseInferencer]:
    """mmdet's or mmseg's inferencer, which is given a filled model where it would take weights."""
    if cfg.get("default_scope") == "mmdet":
        from mmdet.apis import DetInferencer as Inferencer
    elif cfg.get("default_scope") == "mmseg":
        from mmseg.apis import MMSegInferencer as Inferencer
    else:
        raise ValueError(f"default_scope={cfg.get('default_scope')!r}: must be one of mmdet, mmseg")

    class FilledInferencer(Inferencer):
        def _init_model(self, cfg: Config, weights: nn.Module, device: str = "cpu") -> nn.Module:
            return weights.to(device)

    return FilledInferencer
