"""Trained detectors and segmentors on images, with predictions as pictures and files that other tools read."""

from typing import Any

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.infer import BaseInferencer
from mmengine.structures import BaseDataElement
from torch import nn

from ..models.factory import model_from_config
from ..runs.configs import read_config, tested_metainfo
from ..runs.preflight import check_backbone, check_checkpoint
from .tiling import check_tile, detect_in_tiles, segment_in_tiles

__all__ = ["Predictor"]

# Room for an instance's label beyond its box, downwards and to the right, in pixels.
_LABEL = (30, 250)


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
        ValueError: If the config is of neither library, the checkpoint does not fit it, or tile and overlap do not
            fit each other.
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
        self.tile, self.overlap = tile, tile // 4 if tile is not None and overlap is None else overlap or 0
        if tile is not None:
            check_tile(tile, self.overlap)
        cfg = read_config(config, [])
        check_checkpoint(checkpoint)
        check_backbone(cfg)
        self.is_detector = cfg.get("default_scope") == "mmdet"
        inferencer = _inferencer_class(cfg)
        model: Any = model_from_config(cfg, checkpoint)
        # The checkpoint's classes are the config's data's, by construction.
        given = tested_metainfo(cfg)
        model.dataset_meta = self.metainfo = dict(given, palette=given.get("palette", "random"))
        self.inferencer = inferencer(cfg, model, device)
        self.inferencer.show_progress = False
        self.inferencer.visualizer.dataset_meta = self.metainfo
        if not self.is_detector:
            self.inferencer.visualizer.set_dataset_meta(self.metainfo["classes"], self.metainfo["palette"])

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

    def draw(self, image: np.ndarray, sample: BaseDataElement, score_thr: float) -> np.ndarray:
        """The image (H, W, 3), BGR, under its predictions; boxes and masks from a score of `score_thr` on."""
        if self.is_detector and isinstance(sample.pred_instances.get("masks"), list):
            return self._draw_one_by_one(image, sample, score_thr)
        options = dict(pred_score_thr=score_thr) if self.is_detector else {}
        visualizer = self.inferencer.visualizer
        visualizer.add_datasample("", image[..., ::-1].copy(), sample, draw_gt=False, **options)
        return visualizer.get_image()[..., ::-1]

    def _draw_one_by_one(self, image: np.ndarray, sample: BaseDataElement, score_thr: float) -> np.ndarray:
        """Draw each instance on its own part of the image: masks as large as the image would fill the memory."""
        from pycocotools.mask import decode

        picture = image.copy()
        found = sample.pred_instances
        found = found[found.scores > score_thr]
        for number in reversed(range(len(found))):  # the best is drawn last, on top
            one = found[number]
            left, top, right, bottom = one.bboxes[0].int().tolist()
            part = slice(max(top - 5, 0), bottom + _LABEL[0]), slice(max(left - 5, 0), right + _LABEL[1])
            mask = torch.from_numpy(decode(one.masks[0])[part]).bool()
            one.masks = mask[None]
            if not mask.any():
                del one.masks  # mmdet draws no empty ones
            one.bboxes = one.bboxes - torch.tensor([part[1].start, part[0].start] * 2)
            alone = type(sample)(pred_instances=one)
            picture[part] = self.draw(picture[part], alone, score_thr)
        return picture


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
