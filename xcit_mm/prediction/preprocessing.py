"""Images from files and arrays, and their preprocessing by a config's test pipeline."""

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import TRANSFORMS, init_default_scope

from ..utils.config_parts import type_name
from ..utils.images import read_image, reads_all_bands
from ..utils.model_input import ModelInput

ImageLike: TypeAlias = str | Path | np.ndarray


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
        load = inputs.loading
        if load is None or type_name(load) not in ("LoadImageFromFile", "LoadRasterFromFile"):
            raise ValueError(
                "LoadImageFromFile is not found in the test pipeline: add it as the first step"
            )
        self.channels = inputs.channels
        self._load_raster = TRANSFORMS.build(load) if inputs.raster_step else None
        options = ("color_type", "imdecode_backend")
        self._decoding = {name: load[name] for name in options if name in load}
        self._loads_bgr = (
            self._load_raster is None
            and self.channels == 3
            and not reads_all_bands(load.get("color_type", ""), load.get("imdecode_backend"))
        )
        to_float32 = load.get("to_float32", self._load_raster is not None)
        steps = [dict(type="LoadImageFromNDArray", to_float32=to_float32)]
        for step in inputs.pipeline:
            if step is not load and "Annotation" not in type_name(step):
                steps.append(step)
        self._steps = Compose(steps)
        sizing = ("Resize", "Pad")
        kept = [step for step in steps if not any(name in type_name(step) for name in sizing)]
        self._steps_without_resize = Compose(kept)
        self._steps_without_pad = Compose([step for step in steps if "Pad" not in type_name(step)])

    def read(self, image: ImageLike) -> np.ndarray:
        """Return the pixels of an image, in the type of the file or array.

        `LoadRasterFromFile` may convert them to float32.

        Raises:
            OSError: If a file cannot be opened.
            ValueError: If an array has another type, or a file is not an image that can be read.
        """
        if isinstance(image, np.ndarray):
            is_bgr = image.dtype == np.uint8 and image.shape[2:] == (3,)
            if self._loads_bgr and not is_bgr:
                expected = "(H, W, 3), BGR, uint8 from 0 to 255"
                raise ValueError(f"image of {image.dtype}, {image.shape}: give {expected}")
            return image
        if self._load_raster is not None:
            return self._load_raster(dict(img_path=str(image)))["img"]
        try:
            return read_image(image, **self._decoding)
        except ValueError as error:
            raise ValueError(f"{image}: {error}") from None

    def resized_shape(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width to which the pipeline resizes an image, without padding."""
        blank = np.zeros((height, width, self.channels), np.uint8)
        return tuple(self._steps_without_pad(dict(img=blank))["inputs"].shape[1:])

    def blank_sample(self) -> Any:
        """Return the data sample of an image without content."""
        return self(np.zeros((32, 32, self.channels), np.uint8), resizes=False)["data_samples"]

    def __call__(
        self, image: np.ndarray, valid: np.ndarray | None = None, resizes: bool = True
    ) -> dict[str, Any]:
        """Preprocess an image, and return `inputs` (C, h, w) and `data_samples`.

        Args:
            image: What `read` returns, or an array in its form.
            valid: Which pixels of the image have data, (H, W), bool, as `check_mask` takes it. The
                result then has the mask of the inputs too, `valid` (h, w).
            resizes: Whether the steps that resize and pad run.

        Raises:
            ValueError: If a value is NaN or infinite, which attention would spread over the image,
                if the image has another number of channels than the model takes, or if a step of
                the pipeline moves the image without its mask.
        """
        if image.dtype.kind == "f" and not np.isfinite(image).all():
            problem = f"image of {image.shape} with NaN or infinity"
            raise ValueError(f"{problem}: replace them, or use `xcit-mm raster`")
        results: dict[str, Any] = dict(img=image)
        if not resizes:  # detectors ask for it
            results["scale_factor"] = (1.0, 1.0)
        if valid is not None:  # it moves as a map of classes does
            results |= dict(gt_seg_map=valid.astype(np.uint8), seg_fields=["gt_seg_map"])
        sample = (self._steps if resizes else self._steps_without_resize)(results)
        channels = len(sample["inputs"])
        if channels != self.channels:  # the mean of the preprocessing would give as many
            problem = f"the image has {channels} channels, but the model takes {self.channels}"
            raise ValueError(f"{problem}: give another image, see docs/bands.md")
        if valid is not None:
            (labels,) = sample["data_samples"].gt_sem_seg.values()
            del sample["data_samples"].gt_sem_seg
            sample["valid"] = labels[0] == 1  # the padding of maps is 255 or 0
            if sample["valid"].shape != sample["inputs"].shape[1:]:
                problem = "a step of the test pipeline moves pixels, but not gt_seg_map"
                raise ValueError(f"{problem}: remove the step, or give no masks")
        return sample
