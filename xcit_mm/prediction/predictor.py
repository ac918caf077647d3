"""Trained detectors and segmentors on images in memory."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.device import get_device
from mmengine.structures import BaseDataElement
from torch import nn

from ..checks.inputs import check_sizes
from ..models.build import load_model
from ..models.precision import DTYPES, fast_dtype, prepare_for_autocast
from ..models.prepare import copy_sharing_weights, prepare_for_inference
from ..utils.cli import print_line
from ..utils.compat import can_autocast
from ..utils.configs import ModelInput, read_config, tested_metainfo
from ..version import __version__
from ..weights.zoo import find_model
from .masks import return_crops, to_detections
from .prediction import Prediction
from .preprocessing import ImageLike, Preprocessing
from .tiles import overlap_of_tiles, predict_tiled
from .whole import check_whole, predict_whole


class Predictor:
    """A detector of mmdet or a segmentor of mmseg that predicts images.

    Args:
        model: A model of mmdet or mmseg with its weights, which stays as it is.
        cfg: The model's config, whose test pipeline preprocesses images.
        device: A device of torch. Default: that of the model; in `from_pretrained` a GPU if
            available.
        tile: Side of the tiles in which images are predicted, in pixels. Default: whole images.
        overlap: Minimum overlap of tiles, in pixels. Default: a quarter of the tile.
        batch_size: Number of images, or of tiles of an image, that the model predicts together.
        dtype: 'float32', 'float16', 'bfloat16', or 'auto' for `fast_dtype` of the device. Half
            precision is by autocast. Boxes are decoded in float32.
        min_score: Minimum score of a detector's instances. Default: that of the config.
        whole: Whether the trunk sees an image of any size whole, at the scale of one tile, and only
            neck and heads see tiles. The model's backbone must be XCiT. Default of `tile`: the side
            of the images that the config tests on.

    Attributes:
        model: The model after `prepare_for_inference`.
        metainfo: `classes` and, if defined, `palette` of the config's test set.
        names: Name of each class, by its number in labels and maps.
        arguments: Arguments of `from_pretrained` that build the same predictor on another device.
    """

    def __init__(
        self,
        model: nn.Module,
        cfg: Config,
        device: str | None = None,
        tile: int | None = None,
        overlap: int | None = None,
        batch_size: int = 1,
        dtype: str = "float32",
        min_score: float | None = None,
        whole: bool = False,
    ) -> None:
        scope = cfg.get("default_scope")
        if scope not in ("mmdet", "mmseg"):
            raise ValueError(f"default_scope={scope!r}: must be one of mmdet, mmseg")
        if min_score is not None and scope != "mmdet":
            raise ValueError(f"{min_score=}: only detectors have scores, leave it out")
        if overlap is not None and tile is None:
            raise ValueError(f"{overlap=} without a tile: give the tile's side too")
        if dtype not in (*DTYPES, "auto"):
            raise ValueError(f"{dtype=}: give {', '.join(DTYPES)} or auto")
        if batch_size < 1:
            raise ValueError(f"{batch_size=}: must be positive")
        if whole and tile is None:
            tile = ModelInput(cfg).side
            if tile is None:
                raise ValueError("the config says no size of images: give tile too")
        self.cfg = cfg
        self.tile = tile
        self.overlap = 0 if tile is None else overlap_of_tiles(tile, overlap)
        self.whole = whole
        self.batch_size = batch_size
        self.min_score = min_score
        self.is_detector = scope == "mmdet"
        self.metainfo = tested_metainfo(cfg)
        self.names: Sequence[str] = self.metainfo["classes"]
        self.arguments: dict[str, Any] | None = None
        self.preprocess = Preprocessing(cfg)
        self.device = device or next((str(part.device) for part in model.parameters()), "cpu")
        self.dtype = DTYPES[fast_dtype(self.device) if dtype == "auto" else dtype]
        if not can_autocast(torch.device(self.device).type, self.dtype):
            fix = "give bfloat16, or take torch 2.2 or newer"
            raise ValueError(f"{dtype=}: torch {torch.__version__} has none on a CPU: {fix}")
        self._checksum = _checksum(model)  # of the weights before they are folded
        own_model = copy_sharing_weights(model).eval().to(self.device)
        self.model: Any = prepare_for_inference(own_model)
        return_crops(self.model)
        if self.dtype != torch.float32:
            prepare_for_autocast(self.model)
        if whole:
            check_whole(self.model)
        else:
            for finding in check_sizes(cfg, self.model):
                print_line(str(finding))

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        checkpoint: str | Path | None = None,
        device: str | None = None,
        **options: Any,
    ) -> "Predictor":
        """Build the predictor of a model, whose checkpoint must have all of its weights.

        Args:
            model: Name of a published model, the folder of a training run or the path of a config.
            checkpoint: A path, a URL or `xcit://NAME`, in place of that of the name or folder. A
                config requires it.
            options: Other arguments of the class, such as `tile` and `dtype`.
        """
        config, weights = find_model(str(model), None if checkpoint is None else str(checkpoint))
        # Tasks of Ray have another current folder.
        config = os.path.abspath(config)
        if "://" not in weights:
            weights = os.path.abspath(weights)
        cfg = read_config(config)
        predictor = cls(load_model(cfg, weights), cfg, device or get_device(), **options)
        predictor.arguments = dict(model=config, checkpoint=weights) | options
        return predictor

    @property
    def settings(self) -> dict[str, Any]:
        """What determines the predictions, except for rounding, as plain values."""
        model_input = ModelInput(self.cfg)
        # Folders, batch sizes and the schedule of a training change no prediction.
        parts = [self.cfg.model, model_input.preprocessor, model_input.pipeline, self.metainfo]
        config = crc32(repr(parts).encode())
        return dict(
            config=f"{Path(self.cfg.filename or '').name} ({config:08x})".strip(),
            weights=f"{self._checksum:08x}",
            tile=self.tile,
            overlap=self.overlap,
            whole=self.whole,
            dtype=str(self.dtype).removeprefix("torch."),
            min_score=self.min_score,
            xcit_mm=__version__,
        )

    def __call__(self, images: ImageLike | Sequence[ImageLike], valid: Any = None) -> Any:
        """Predict an image, or a sequence of images, `batch_size` neighbours of one size at a time.
        Return a `Prediction`, or a list of them.

        Args:
            images: Paths of images, or arrays (H, W, 3), uint8, BGR as OpenCV reads them; of an RGB
                array, give `array[..., ::-1]`. For a config that loads other images, arrays are as
                its loading step returns them: from `LoadRasterFromFile` (H, W, bands), unscaled, in
                the file's type or float32.
            valid: Which pixels of each image have data, (H, W), bool; by default all. XCiT sees the
                others as it sees what lies beyond the border of an image (`Backbone.valid`); other
                backbones, and windows of mmseg's `mode="slide"`, see their values.
        """
        if isinstance(images, str | np.ndarray) or not isinstance(images, Sequence):
            return self([images], None if valid is None else [valid])[0]
        if valid is not None and len(valid) != len(images):
            raise ValueError(f"{len(valid)} masks for {len(images)} images: give one for each")
        if valid is not None and self.tile is not None and not self.whole:
            raise ValueError(f"valid with tile={self.tile}: give whole=True, or no tile")
        masks = () if valid is None else valid
        arrays = map(self.preprocess.read, images)
        if self.tile is None:
            return list(self._predict(arrays, masks))
        if self.whole:
            return [predict_whole(self, *pair) for pair in zip_longest(arrays, masks)]
        return [predict_tiled(self._predict, array, self.tile, self.overlap) for array in arrays]

    def _predict(
        self, images: Iterable[np.ndarray], masks: Iterable[np.ndarray] = ()
    ) -> Iterator[Prediction]:
        """Predict whole arrays in batches."""
        is_slide = (self.cfg.model.get("test_cfg") or {}).get("mode") == "slide"
        backbone = getattr(self.model, "backbone", None)
        sees_gaps = is_slide or not getattr(backbone, "can_leave_out_pixels", False)
        pairs = zip_longest(images, masks)
        while batch := list(islice(pairs, self.batch_size)):
            inputs = []
            for image, mask in batch:
                is_full = sees_gaps or mask is None or mask.all()
                inputs.append(self.preprocess(image, None if is_full else mask))
            samples: list[BaseDataElement] = []
            for _, of_one_size in groupby(inputs, lambda data: data["inputs"].shape):
                samples += self._forward(list(of_one_size))
            for (image, _), sample in zip(batch, samples, strict=True):
                yield self.to_prediction(image, sample)

    @torch.no_grad()
    def _forward(self, batch: list[dict[str, Any]]) -> list[BaseDataElement]:
        leave_out: AbstractContextManager = nullcontext()
        if any("valid" in data for data in batch):
            full = torch.ones(batch[0]["inputs"].shape[1:], dtype=torch.bool)
            leave_out = self.model.backbone.valid([data.pop("valid", full) for data in batch])
        with leave_out, self.autocast():
            samples = self.model.test_step(pseudo_collate(batch))
        for sample in samples:
            if "seg_logits" in sample:  # 2.5 GB for 150 classes at 2048 x 2048
                del sample.seg_logits
        return samples

    def autocast(self) -> AbstractContextManager:
        """Return the context in which the model predicts in `dtype`."""
        device = torch.device(self.device).type
        is_half = self.dtype != torch.float32
        return torch.autocast(device, self.dtype if is_half else None, enabled=is_half)

    def to_prediction(self, image: np.ndarray, sample: BaseDataElement) -> Prediction:
        """Convert the library's data sample of an image to NumPy arrays."""
        palette = self.metainfo.get("palette")
        if not self.is_detector:
            labels = sample.pred_sem_seg.data[0].cpu().numpy()
            labels = labels.astype(np.uint8 if len(self.names) <= 256 else np.uint16)
            return Prediction(image, None, labels, self.names, palette)
        instances = sample.pred_instances
        if self.min_score is not None:
            instances = instances[instances.scores >= self.min_score]
        detections = to_detections(instances, image.shape[:2])
        return Prediction(image, detections, None, self.names, palette)


def _checksum(model: nn.Module) -> int:
    checksum = 0
    for name, tensor in model.state_dict().items():
        stored = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        checksum = crc32(stored, crc32(name.encode(), checksum))
    return checksum
