"""Trained detectors and segmentors on images and videos."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.infer import BaseInferencer
from mmengine.logging import print_log
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..checks.preflight import check_backbone, check_checkpoint, check_device
from ..models.build import model_from_config
from ..utils.configs import raster_bands, raster_step, read_config, tested_dataset, tested_metainfo, type_name
from ..utils.errors import reason
from .results import Instances, instances_of
from .tiling import Read, Window, check_tile, detect_in_tiles, detected_in, segment_in_tiles, segmented_strips

__all__ = ["DTYPES", "Prediction", "Predictor", "Preparation"]

DTYPES = dict(float32=torch.float32, float16=torch.float16, bfloat16=torch.bfloat16)


class Prediction(NamedTuple):
    """What a model finds in an image.

    Attributes:
        image: (H, W, 3), BGR, 8 bit; or (H, W, bands), as it was given, where the config loads rasters.
        instances: Of a detector.
        labels: Of a segmentor, the class of every pixel (H, W).
    """

    image: np.ndarray
    instances: Instances | None
    labels: np.ndarray | None


class Preparation:
    """The config's test pipeline for an image in memory; light, to be sent to processes that prepare images.

    Args:
        pipeline: Of an inferencer.
        bands: That an image has to have; None: 3, which is not checked.
    """

    def __init__(self, pipeline: Compose, bands: int | None = None) -> None:
        self._pipeline, self._bands = pipeline, bands

    def __call__(self, image: np.ndarray) -> dict[str, Any]:
        """`inputs` (C, h, w) and `data_samples` of an image, as `Predictor` takes it.

        Raises:
            ValueError: If the image has other bands than the config loads, or is too narrow for its resizing.
        """
        if self._bands is not None and (image.ndim != 3 or image.shape[2] != self._bands):
            raise ValueError(f"image of shape {image.shape}: the config loads {self._bands} bands, give (H, W, bands)")
        try:
            return self._pipeline(image)
        except cv2.error:
            raise ValueError(
                f"image of {image.shape[0]}x{image.shape[1]} pixels: the config's resizing leaves nothing of it; pad it"
            ) from None


class Predictor:
    """mmdet's or mmseg's inferencer for a config and a checkpoint, loaded whole or not at all.

    Images are (H, W, 3), BGR, 8 bit. For a config whose test pipeline loads rasters, by `LoadRasterFromFile`, they are
    (H, W, bands) with the bands and values that it loads: in the file's order, unscaled, of the file's type or float32.

    Args:
        config: Path of a config of mmdet or mmseg.
        checkpoint: A path, a URL or `xcit://NAME`.
        device: As in torch; default: a GPU if there is one.
        tile: Side in pixels of the tiles in which to predict images, for those too large for one pass; see
            `xcit_mm.prediction.tiling`. Each goes through the config's test pipeline, its resizing included.
        overlap: Least overlap of tiles in pixels; default: a quarter of the tile.
        batch_size: Images, or tiles of one, that pass through the model together; halved, for their size, when
            memory runs out.
        dtype: One of `DTYPES`; in half precision the convolutions and products are computed by autocast, and what
            neck and heads return is float32 again, so that boxes are decoded and suppressed in it.

    Attributes:
        metainfo: Of what the config tests on: `classes` and, where it has one, `palette`.

    Raises:
        FileNotFoundError: If config or checkpoint are not there.
        ValueError: If the config is of neither library or names what is not registered, the checkpoint does not fit
            it, tile and overlap do not fit each other, or there is no such device or dtype.
    """

    def __init__(
        self,
        config: str,
        checkpoint: str,
        device: str | None = None,
        tile: int | None = None,
        overlap: int | None = None,
        batch_size: int = 1,
        dtype: str = "float32",
    ) -> None:
        if overlap is not None and tile is None:
            raise ValueError(f"{overlap=} without a tile: give the tile's side too")
        if tile is not None:
            overlap = tile // 4 if overlap is None else overlap
            check_tile(tile, overlap)
        if dtype not in DTYPES:
            raise ValueError(f"{dtype=}: must be one of {', '.join(DTYPES)}")
        if batch_size < 1:
            raise ValueError(f"{batch_size=}: must be positive")
        self.tile, self.overlap, self.batch_size, self.dtype = tile, overlap or 0, batch_size, DTYPES[dtype]
        self._limits: dict[tuple[int, int], int] = {}  # of a batch, by the images' size, where memory ran out
        check_device(device)
        cfg = read_config(config, [])
        check_checkpoint(checkpoint)
        self.is_detector = cfg.get("default_scope") == "mmdet"
        inferencer = _inferencer_class(cfg)
        check_backbone(cfg)
        bands = raster_bands(cfg)
        if step := raster_step(cfg):
            _take_arrays(step)
        _show_pipeline(cfg)
        self.metainfo = tested_metainfo(cfg)
        model: Any = model_from_config(cfg, checkpoint)
        # The checkpoint's classes are the config's data's, by construction.
        model.dataset_meta = self.metainfo
        # The inferencers ask for one of their own; nothing is drawn by it, so it needs no place to write to.
        cfg.visualizer = dict(type="DetLocalVisualizer" if self.is_detector else "SegLocalVisualizer")
        try:
            self.inferencer = inferencer(cfg, model, device=device)
        except KeyError as error:  # of a registry
            raise ValueError(f"the test pipeline cannot be built: {reason(error)}; correct it in the config") from error
        self.prepare = Preparation(self.inferencer.pipeline, bands)
        if self.dtype != torch.float32:
            _return_float32(self.inferencer.model)

    def __call__(self, image: np.ndarray) -> BaseDataElement:
        """Predictions for an image, in its pixels: a DetDataSample or SegDataSample.

        With a tile they are as `detect_in_tiles` and `segment_in_tiles` return them.

        Raises:
            ValueError: If the image is too small, too narrow for the config's resizing, or of other bands.
            MemoryError: If one image is too much for the memory.
        """
        if self.tile is None:
            return self.predict_prepared([self.prepare(image)])[0]
        options = dict(tile=self.tile, overlap=self.overlap, batch_size=self.batch_size)
        if self.is_detector:
            return detect_in_tiles(self._predict_images, image, **options)
        return segment_in_tiles(self._predict_images, image, threshold=self._threshold, **options)

    def predict(self, image: np.ndarray) -> Prediction:
        """What the model finds in an image, in plain numbers.

        Raises:
            ValueError, MemoryError: As a call, which gives the library's data sample instead.
        """
        return self.plain(image, self(image))

    def segmented(
        self, read: Read, shape: tuple[int, int], tile: int, overlap: int, first: int
    ) -> Iterator[tuple[int, Tensor]]:
        """A segmentor's classes in rows of tiles of a scene, from the row `first` on; see `segmented_strips`."""
        return segmented_strips(
            self._predict_images, read, shape, tile, overlap, self._threshold, self.batch_size, first, by_rows=True
        )

    def detected(
        self, tiles: list[tuple[Window, Window]], read: Read, shape: tuple[int, int]
    ) -> Iterator[InstanceData]:
        """What a detector reports in tiles of a scene; see `detected_in`."""
        return detected_in(tiles, self._predict_images, read, shape, self.batch_size)

    @property
    def _threshold(self) -> float | None:
        """Of a segmentor of one channel, the probability from which a pixel is of class 1."""
        head = self.inferencer.model.decode_head
        # Mask2Former's head has none.
        return getattr(head[-1] if isinstance(head, nn.ModuleList) else head, "threshold", None)

    def _predict_images(self, images: list[np.ndarray]) -> list[BaseDataElement]:
        return self.predict_prepared([self.prepare(image) for image in images])

    def predict_prepared(self, prepared: Sequence[dict[str, Any]]) -> list[BaseDataElement]:
        """Predictions for images as `prepare` gives them, `batch_size` at a time; raises MemoryError as a call does.

        Images of several sizes are padded to one batch, which changes what is found in them.
        """
        found: list[BaseDataElement] = []
        while len(found) < len(prepared):
            height, width = prepared[len(found)]["inputs"].shape[-2:]
            limit = self._limits.get((height, width), self.batch_size)
            batch = list(prepared[len(found) : len(found) + limit])
            samples = self._forward(batch)
            if samples is not None:
                found += samples
            elif len(batch) == 1:
                raise MemoryError(f"out of memory at {height}x{width} pixels: predict in tiles, or in half precision")
            else:
                self._limits[height, width] = limit = len(batch) // 2
                line = f"out of memory: images of {height}x{width} pixels go {limit} at a time from here on"
                print_log(line, "current", logging.WARNING)
        return found

    def _forward(self, batch: list[dict[str, Any]]) -> list[BaseDataElement] | None:
        """Predictions of a batch; None if memory ran out, with all that was held given back."""
        device = next(self.inferencer.model.parameters()).device.type
        try:
            with torch.autocast(device, self.dtype, enabled=self.dtype != torch.float32):
                return self.inferencer.forward(pseudo_collate(batch))
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
        if device == "cuda":
            torch.cuda.empty_cache()
        return None

    def plain(self, image: np.ndarray, sample: BaseDataElement) -> Prediction:
        """What a call found in an image, in plain numbers.

        Raises:
            ValueError: If the model predicts no instances.
        """
        if self.is_detector:
            return Prediction(image, instances_of(sample), None)
        label_type = np.uint8 if len(self.metainfo["classes"]) <= 256 else np.uint16
        return Prediction(image, None, sample.pred_sem_seg.data[0].cpu().numpy().astype(label_type))


def _take_arrays(step: dict) -> None:
    """Turn LoadRasterFromFile into the step in whose place inferencers put their own, which takes arrays."""
    as_float32 = step.get("to_float32", True)
    step.clear()
    step.update(type="LoadImageFromFile", to_float32=as_float32)


def _show_pipeline(cfg: Config) -> None:
    """Put the test pipeline where inferencers look for it, in no wrapper, under the only names that they know.

    Raises:
        ValueError: If there is none.
    """
    dataset = tested_dataset(cfg)
    if not dataset.get("pipeline"):
        raise ValueError(f"the {type_name(dataset)} that the config tests on has no pipeline: give it one")
    cfg.test_dataloader.dataset = dataset
    for step in dataset["pipeline"]:
        if type_name(step) in ("LoadImageFromFile", "LoadAnnotations"):
            step["type"] = type_name(step)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or "can't allocate memory" in str(error)


def _return_float32(model: nn.Module) -> None:
    """Let neck and heads return float32 under autocast.

    RoIs take the type of the maps, where half precision would round them to whole pixels, and mmcv's operators on
    the CPU know no other.
    """

    def convert(module: nn.Module, args: tuple, output: Any) -> Any:
        return tree_map(lambda x: x.float() if isinstance(x, Tensor) and x.is_floating_point() else x, output)

    for module in model.modules():
        if module is getattr(model, "neck", None) or hasattr(module, "predict_by_feat"):
            module.register_forward_hook(convert)


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

        def _init_collate(self, cfg: Config) -> Callable:
            # What `Predictor` collates by. mmengine's would look for the library's registry of functions, which there
            # is none of, and warn of that in every run.
            return pseudo_collate

    return FilledInferencer
