"""Trained detectors and segmentors on images in memory."""

import logging
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, overload

import numpy as np
import supervision as sv
import torch
from mmengine.dataset import pseudo_collate
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.model import revert_sync_batchnorm
from mmengine.structures import BaseDataElement

from ..models.build import check_backbone, load_model
from ..models.precision import DTYPES, fast_dtype, prepare_for_autocast
from ..utils.configs import read_config, tested_metainfo
from ..utils.devices import check_device
from ..weights.reader import check_checkpoint
from ..weights.zoo import find_model
from .prediction import Prediction
from .preprocessing import ImageLike, Preprocessing
from .tiles import predict_tiled, windows


class Predictor:
    """A detector of mmdet or a segmentor of mmseg, with all weights from a checkpoint.

    `Predictor.from_pretrained` finds config and checkpoint by the name of a model. Options such as
    `tile` are arguments of both, not of a call.

    Args:
        config: Path to a config of mmdet or mmseg.
        checkpoint: A path, a URL or `xcit://NAME`.
        device: A device of torch. Default: a GPU if available.
        tile: Side in pixels of the tiles in which images are predicted. Default: whole images. Each
            tile goes through the config's test pipeline, resizing included.
        overlap: Minimum overlap of tiles, in pixels. Default: a quarter of the tile.
        batch_size: Number of images, or of tiles of an image, that the model predicts together. If
            memory runs out, the number is halved for images of that size.
        dtype: 'float32', 'float16', 'bfloat16', or 'auto' for `fast_dtype` of the device. In half
            precision, autocast computes convolutions and products, and the neck and the heads
            return float32, in which boxes are decoded and suppressed.
        min_score: Minimum score of a detector's instances. Default: that of the config.

    Attributes:
        model: The model, in eval mode.
        cfg: The config.
        arguments: Arguments that build the same predictor again, except for its device.
        preprocess: Preprocessing of an image.
        metainfo: Metainfo of the config's test set: `classes` and, if defined, `palette`.
        names: Name of each class, by its number in labels and maps.
        is_detector: Whether the model is a detector, else a segmentor.

    Raises:
        FileNotFoundError: If the config or the checkpoint does not exist.
        ValueError: If the config belongs to neither library or names an unregistered type, the
            checkpoint does not match the model, the tile and the overlap are invalid, or the device
            or dtype is not available.
    """

    def __init__(
        self,
        config: str | Path,
        checkpoint: str | Path | None = None,
        device: str | None = None,
        tile: int | None = None,
        overlap: int | None = None,
        batch_size: int = 1,
        dtype: str = "float32",
        min_score: float | None = None,
    ) -> None:
        if checkpoint is None:
            raise ValueError(
                f"{config} without a checkpoint: give both, or a name to Predictor.from_pretrained"
            )
        if overlap is not None and tile is None:
            raise ValueError(f"{overlap=} without a tile: give the tile's side too")
        if tile is not None:
            overlap = tile // 4 if overlap is None else overlap
            windows(tile, tile, overlap)  # checks them
        if dtype not in (*DTYPES, "auto"):
            raise ValueError(f"{dtype=}: must be one of {', '.join(DTYPES)}, auto")
        if batch_size < 1:
            raise ValueError(f"{batch_size=}: must be positive")
        check_device(device)
        device = device or get_device()
        self.tile, self.overlap, self.batch_size = tile, overlap or 0, batch_size
        dtype = fast_dtype(device) if dtype == "auto" else dtype
        self.dtype = DTYPES[dtype]
        self._limits: dict[
            tuple[int, int], int
        ] = {}  # batch size by image size, for sizes that ran out of memory
        self.cfg = read_config(config)
        check_checkpoint(checkpoint)
        scope = self.cfg.get("default_scope")
        if scope not in ("mmdet", "mmseg"):
            raise ValueError(f"default_scope={scope!r}: must be one of mmdet, mmseg")
        self.is_detector, self.min_score = scope == "mmdet", min_score
        if min_score is not None and not self.is_detector:
            raise ValueError(f"{min_score=}: only detectors have scores, leave it out")
        path = str(checkpoint) if "://" in str(checkpoint) else os.path.abspath(checkpoint)
        options = dict(
            tile=tile, overlap=overlap, batch_size=batch_size, dtype=dtype, min_score=min_score
        )
        self.arguments: dict[str, Any] = (
            dict(config=os.path.abspath(config), checkpoint=path) | options
        )
        check_backbone(self.cfg)
        self.metainfo = tested_metainfo(self.cfg)
        self.names: Sequence[str] = self.metainfo["classes"]
        self.preprocess = Preprocessing(self.cfg)
        self.model = revert_sync_batchnorm(load_model(self.cfg, checkpoint)).to(device)
        if self.dtype != torch.float32:
            prepare_for_autocast(self.model)

    @classmethod
    def from_pretrained(
        cls, model: str | Path, checkpoint: str | None = None, **options: Any
    ) -> "Predictor":
        """Build the predictor of a model by its name.

        Args:
            model: Name of a published model, the folder of a training run, the path of
                a config, or `hf://OWNER/NAME` on the Hugging Face Hub.
            checkpoint: Replaces the checkpoint of a name or folder. The path of a config requires
                it.
            options: Other arguments of the class, such as `device` and `dtype`.

        Raises:
            ValueError: If the name is unknown, with the most similar names, or the model has no
                checkpoint.
            FileNotFoundError: If the folder has no config.
        """
        return cls(*find_model(str(model), checkpoint), **options)

    @overload
    def __call__(self, images: ImageLike) -> Prediction: ...  # type: ignore[overload-overlap]  # str is a Sequence

    @overload
    def __call__(self, images: Sequence[ImageLike]) -> list[Prediction]: ...

    def __call__(self, images: ImageLike | Sequence[ImageLike]) -> Prediction | list[Prediction]:
        """Predict an image, or a sequence of images, `batch_size` images of one size at a time.

        Args:
            images: Paths or URLs of images; images of Pillow, also for users whose arrays are RGB,
                by `Image.fromarray`; or arrays (H, W, 3), BGR as OpenCV reads them, uint8. For a
                config with other options of `LoadImageFromFile`, arrays are as this step returns
                them. For a config with `LoadRasterFromFile`, they are (H, W, bands), unscaled, in
                the file's type or float32.

        Raises:
            OSError: If a file cannot be read, or a URL not be downloaded.
            TypeError: If an image is of another type.
            ValueError: If a file is not an image, or an image is too small or narrow or has other
                bands.
            MemoryError: If a single image exceeds the memory.
        """
        if isinstance(images, str | Path | np.ndarray) or not isinstance(images, Sequence):
            return self([images])[0]
        found: list[Prediction] = []
        for start in range(0, len(images), self.batch_size):
            pixels = [
                self.preprocess.read(image) for image in images[start : start + self.batch_size]
            ]
            if self.tile is None:
                found += self._predict_whole(pixels)
            else:
                options = self.tile, self.overlap, self.batch_size
                found += [predict_tiled(self._predict_whole, image, *options) for image in pixels]
        return found

    def _predict_whole(self, images: list[np.ndarray]) -> list[Prediction]:
        groups = groupby(map(self.preprocess, images), lambda data: data["inputs"].shape)
        samples = [sample for _, group in groups for sample in self._predict_batch(list(group))]
        return list(map(self.to_prediction, images, samples))

    def predict_sample(self, image: np.ndarray) -> BaseDataElement:
        """Predict a whole array, and return mmdet's DetDataSample or mmseg's SegDataSample, in
        pixels of the image.
        """
        return self._predict_batch([self.preprocess(image)])[0]

    def _predict_batch(self, preprocessed: list[dict[str, Any]]) -> list[BaseDataElement]:
        """Predict images of one size that `preprocess` returned, or halves of the batch if memory
        runs out.
        """
        found: list[BaseDataElement] = []
        height, width = preprocessed[0]["inputs"].shape[-2:]
        while len(found) < len(preprocessed):
            limit = self._limits.get((height, width), self.batch_size)
            batch = preprocessed[len(found) : len(found) + limit]
            samples = self._forward(batch)
            if samples is not None:
                found += samples
            elif len(batch) == 1:
                raise MemoryError(
                    f"out of memory at {height}x{width} pixels: predict in tiles, or in half precision"
                )
            else:
                self._limits[height, width] = limit = len(batch) // 2
                line = f"out of memory: from now on, {limit} images of {height}x{width} pixels are predicted together"
                print_log(line, "current", logging.WARNING)
        return found

    @torch.no_grad()
    def _forward(self, batch: list[dict[str, Any]]) -> list[BaseDataElement] | None:
        """Predict a batch, or release its memory and return None if memory ran out."""
        device = next(self.model.parameters()).device.type
        try:
            with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
                return self.model.test_step(pseudo_collate(batch))
        except (MemoryError, RuntimeError) as error:
            is_out_of_memory = isinstance(error, MemoryError | torch.cuda.OutOfMemoryError)
            if not is_out_of_memory and "can't allocate memory" not in str(error):
                raise
        if device == "cuda":
            torch.cuda.empty_cache()
        return None

    def to_prediction(self, image: np.ndarray, sample: BaseDataElement) -> Prediction:
        """Convert the library's data sample of an image to NumPy arrays."""
        names, palette = self.names, self.metainfo.get("palette")
        if not self.is_detector:
            label_type = np.uint8 if len(names) <= 256 else np.uint16
            return Prediction(
                image,
                None,
                sample.pred_sem_seg.data[0].cpu().numpy().astype(label_type),
                names,
                palette,
            )
        if "pred_instances" not in sample:
            raise ValueError(
                "the model predicts no instances: only detectors of boxes or masks are supported"
            )
        from mmdet.structures.mask import mask2bbox

        found = sample.pred_instances
        if self.min_score is not None:
            found = found[found.scores >= self.min_score]
        found = found.cpu()
        if (
            isinstance(found.get("masks"), torch.Tensor) and not found.bboxes.any()
        ):  # SOLO predicts no boxes
            found.bboxes = mask2bbox(found.masks)
        arrays = found.numpy()[
            np.argsort(-found.scores.numpy(), kind="stable")
        ]  # each head has its own order
        # Without objects, SOLO's labels and masks are floating-point numbers.
        labels, masks = arrays.labels.astype(int), arrays.get("masks")
        masks = None if masks is None else masks.astype(bool, copy=False)
        return Prediction(
            image, sv.Detections(arrays.bboxes, masks, arrays.scores, labels), None, names, palette
        )
