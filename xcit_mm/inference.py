"""Trained detectors and segmentors on images, with predictions as pictures and files that other tools read."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import cv2
import mmcv
import mmengine
import numpy as np
import torch
from mmengine.config import Config
from mmengine.infer import BaseInferencer
from mmengine.runner import CheckpointLoader
from mmengine.structures import BaseDataElement
from torch import nn

from .checkpoint import fitting_model
from .launch import read_config
from .preflight import check_backbone, check_checkpoint, tested_metainfo
from .tiling import check_tile, detect_in_tiles, encode_mask, segment_in_tiles

__all__ = ["IMAGES", "VIDEOS", "CocoFile", "Predictor", "files_below", "find_inputs", "read_frames"]

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm")
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm")

# Room for an instance's label beyond its box, downwards and to the right, in pixels.
_LABEL = (30, 250)


class Predictor:
    """mmdet's or mmseg's inferencer for a config and a checkpoint, loaded whole or not at all.

    Args:
        config: Path of a config of mmdet or mmseg.
        checkpoint: A path, a URL or `xcit://NAME`.
        device: As in torch; default: a GPU if there is one.
        tile: Side in pixels of the tiles in which to predict images, for those too large for one pass; see
            `xcit_mm.tiling`. Each goes through the config's test pipeline, its resizing included.
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
        self.tile, self.overlap = tile, tile // 4 if tile and overlap is None else overlap
        if tile is not None:
            check_tile(tile, self.overlap)
        cfg = read_config(config, [])
        check_checkpoint(checkpoint)
        check_backbone(cfg)
        self.is_detector = cfg.get("default_scope") == "mmdet"
        self.inferencer = _build_inferencer(cfg, device)
        model = self.inferencer.model
        content = CheckpointLoader.load_checkpoint(checkpoint, map_location="cpu")
        model.load_state_dict(fitting_model(model, content))
        # The checkpoint's classes are the config's data's, by construction.
        given = tested_metainfo(cfg)
        model.dataset_meta = self.metainfo = dict(given, palette=given.get("palette", "random"))
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


def _build_inferencer(cfg: Config, device: str | None) -> BaseInferencer:
    if cfg.get("default_scope") == "mmdet":
        from mmdet.apis import DetInferencer as Inferencer
    elif cfg.get("default_scope") == "mmseg":
        from mmseg.apis import MMSegInferencer as Inferencer
    else:
        raise ValueError(f"default_scope={cfg.get('default_scope')!r}: must be one of mmdet, mmseg")
    cfg.model.backbone.pop("init_cfg", None)  # the checkpoint holds all
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that no weights are loaded: they are, strictly, by the caller
        inferencer = Inferencer(cfg, device=device)
    inferencer.show_progress = False
    return inferencer


def find_inputs(given: str) -> list[Path]:
    """The images and videos that a path, a folder (searched to its depth) or a glob stands for, sorted.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If a file is neither by its name.
    """
    path = Path(given)
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = files_below(path, IMAGES + VIDEOS)
    else:
        anchor = Path(path.anchor)
        found = list(anchor.glob(str(path.relative_to(anchor)))) if any(c in given for c in "*?[") else []
        found = [one for one in found if one.is_file()]
    if not found:
        raise FileNotFoundError(f"no images or videos at {given}: give a file, a folder or a quoted glob")
    other = next((one for one in found if one.suffix.lower() not in IMAGES + VIDEOS), None)
    if other:
        raise ValueError(f"{other} is neither an image nor a video: {', '.join(IMAGES + VIDEOS)}")
    return sorted(found)


def files_below(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Files below a folder, through links too, sorted; `suffixes` in lower case."""
    names = (Path(root, name) for root, _, files in os.walk(folder, followlinks=True) for name in files)
    return sorted(path for path in names if path.suffix.lower() in suffixes)


def read_frames(path: Path) -> Iterator[np.ndarray]:
    """An image, or the frames of a video, as (H, W, 3), BGR, 8 bit; of an animation the first frame.

    Raises:
        ValueError: If it cannot be decoded.
        OSError: If it cannot be read.
    """
    if path.suffix.lower() in VIDEOS:
        with path.open("rb"):  # a missing permission is its own error
            video = mmcv.VideoReader(str(path))
        if not video.opened or len(video) == 0:
            raise ValueError("it holds no frames")
        yield from (frame for frame in video if frame is not None)
        return
    image = mmcv.imfrombytes(path.read_bytes()) if path.stat().st_size else None
    if image is None:
        raise ValueError("it is empty, broken or not an image")
    yield image


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
