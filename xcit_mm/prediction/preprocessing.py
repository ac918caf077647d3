"""Images from files, Pillow and arrays, and their preprocessing by a config's test pipeline."""

import os
from pathlib import Path
from typing import Any, TypeAlias

import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import TRANSFORMS, init_default_scope
from PIL import Image, ImageOps

from ..utils.configs import ModelInput, type_name
from ..utils.errors import counted
from ..utils.images import read_image

ImageLike: TypeAlias = str | Path | Image.Image | np.ndarray


class Preprocessing:
    """The config's test pipeline for images in memory, small enough to send to other processes.

    Args:
        cfg: Config of a detector or segmentor.

    Raises:
        ValueError: If the test pipeline loads no images.
    """

    def __init__(self, cfg: Config) -> None:
        init_default_scope(cfg.default_scope)
        inputs = ModelInput(cfg)
        self._bands = inputs.bands  # None unless the config loads rasters
        self._channels = inputs.channels
        load = inputs.loading
        if load is None or type_name(load) not in ("LoadImageFromFile", "LoadRasterFromFile"):
            raise ValueError(
                "LoadImageFromFile is not found in the test pipeline: add it as the first step"
            )
        options = ("color_type", "imdecode_backend")
        self._decoding = {name: load[name] for name in options if name in load}
        self._is_grey = self._decoding.get("color_type", "").startswith("grayscale")
        to_float32 = load.get("to_float32", self._bands is not None)
        # Images come as arrays, without labels.
        from_array = dict(type="LoadImageFromNDArray", to_float32=to_float32)
        steps = [step for step in inputs.pipeline if "Annotation" not in type_name(step)]
        self._load_raster = None if self._bands is None else TRANSFORMS.build(load)
        steps = [from_array if step is load else step for step in steps]
        self._pipeline = Compose(steps)
        steps = [step for step in steps if "Pad" not in type_name(step)]
        self._unpadded = Compose(steps)
        self._unscaled = Compose([step for step in steps if "Resize" not in type_name(step)])

    def read(self, image: ImageLike) -> np.ndarray:
        """Return the pixels of an image, as the loading step of the config returns them."""
        if isinstance(image, np.ndarray):
            is_bgr = image.dtype == np.uint8 and image.shape[2:] == (3,)
            # Without bands and options, the config loads BGR of 8 bits.
            if self._bands is None and not self._decoding and not is_bgr:
                expected = "(H, W, 3), BGR, uint8 from 0 to 255"
                raise ValueError(f"image of {image.dtype}, {image.shape}: give {expected}")
            return image
        if isinstance(image, Image.Image):
            has_8_bits = image.mode not in ("I", "F") and ";" not in image.mode
            if self._bands is not None or not has_8_bits:
                problem = f"Pillow's image of mode {image.mode}"
                raise ValueError(f"{problem}: give a path or an array, as the config loads it")
            rgb = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
            return np.ascontiguousarray(rgb[..., ::-1])
        if not isinstance(image, str | Path):
            expected = "a path, Pillow's image or an array (H, W, 3)"
            raise TypeError(f"image of type {type(image).__name__}: give {expected}")
        if os.path.exists(image) and not os.path.isfile(image):  # a pipe is never read to its end
            raise ValueError(f"{image} is not a regular file")
        try:
            if self._load_raster is not None:
                return self._load_raster(dict(img_path=str(image)))["img"]
            return read_image(image, **self._decoding)
        except ValueError as error:
            raise ValueError(f"{image}: {error}") from None

    def measure(self, tile: int) -> tuple[float, Any]:
        """Return the factor by which the pipeline resizes a tile, and the data sample of one.

        Raises:
            ValueError: If it does not keep the ratio of the sides.
        """
        blank = np.zeros((tile, tile, self._channels), np.uint8)
        sample = self._unpadded(dict(img=mmcv.bgr2gray(blank) if self._is_grey else blank))
        height, width = sample["inputs"].shape[1:]
        if height != width:
            problem = f"the test pipeline resizes {tile} x {tile} pixels to {width} x {height}"
            raise ValueError(f"{problem}: set keep_ratio=True in its Resize")
        return height / tile, sample["data_samples"]

    def unscaled(self, pixels: np.ndarray) -> dict[str, Any]:
        """Preprocess rows of an image that has the model's scale, as a call does else.

        Raises:
            ValueError: If another step than a Resize and a Pad changes their size.
        """
        if self._is_grey and pixels.ndim == 3:
            pixels = mmcv.bgr2gray(pixels)
        sample = self._unscaled(dict(img=pixels))
        if sample["inputs"].shape[1:] != pixels.shape[:2]:
            problem = "a step of the test pipeline that is no Resize or Pad changes sizes"
            raise ValueError(f"{problem}: remove it, or predict in tiles")
        return sample

    def __call__(self, image: np.ndarray, valid: np.ndarray | None = None) -> dict[str, Any]:
        """Preprocess an image, and return `inputs` (C, h, w) and `data_samples`.

        Args:
            valid: Which pixels of the image have data, (H, W), bool. `valid` of what is returned
                says so of the inputs, (h, w).

        Raises:
            ValueError: If the image has other channels than the model takes, or a step moves its
                pixels but not `valid`.
        """
        if self._is_grey and image.ndim == 3:
            image = mmcv.bgr2gray(image)
        results: dict[str, Any] = dict(img=image)
        if valid is not None:  # it moves as a map of classes does
            results |= dict(gt_seg_map=valid.astype(np.uint8), seg_fields=["gt_seg_map"])
        sample = self._pipeline(results)
        channels = len(sample["inputs"])
        if channels != self._channels:  # the mean of the preprocessing would give as many
            problem = f"image of {counted(channels, 'channel')}"
            raise ValueError(f"{problem}: the model takes {self._channels}, give as many")
        if valid is not None:
            (labels,) = sample["data_samples"].gt_sem_seg.values()
            del sample["data_samples"].gt_sem_seg
            sample["valid"] = labels[0] == 1  # the padding of maps is 255 or 0
            if sample["valid"].shape != sample["inputs"].shape[1:]:
                problem = "a step of the test pipeline moves pixels, but not a gt_seg_map"
                raise ValueError(f"{problem}: remove the step, or give images without `valid`")
        return sample
