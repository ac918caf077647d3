"""A model in an ONNX file, from the pixels of an image to results in these pixels."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .engines import DEVICES, ENGINES
from .images import one_line, resize, to_labels
from .results import OUTPUTS, Detections, Segmentation, detections_in_image, option_inputs


class Model:
    """A model in a file of tools/export.py, with or without preprocessing in the file.

    Args:
        path: The .onnx file.
        threads: Number of threads; default: the runtime's choice.
        device: 'cpu' or 'cuda'.
        runtime: 'onnxruntime' or 'openvino', which runs on the CPU.
        providers: Execution providers of onnxruntime in place of the device's, as `onnxruntime.InferenceSession` takes
            them.

    Attributes:
        classes: Names of the classes.

    Raises:
        FileNotFoundError: If the file does not exist.
        ModuleNotFoundError: If the runtime is not installed.
        ValueError: If the file is not such a model, its metadata do not specify the preprocessing, or the runtime lacks
            the device.
    """

    def __init__(
        self,
        path: str | Path,
        threads: int | None = None,
        device: str = "cpu",
        runtime: str = "onnxruntime",
        providers: Sequence[Any] | None = None,
    ) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(f"no model at {path}")
        if device not in DEVICES or runtime not in ENGINES:
            allowed = f"one of {', '.join(DEVICES)} and one of {', '.join(ENGINES)}"
            raise ValueError(f"{device=}, {runtime=}: must be {allowed}")
        self._engine = ENGINES[runtime](Path(path), threads, device, providers)
        facts = self._engine.metadata
        task = facts.get("task", "")
        if task == "backbone" or "classes" not in facts:
            kind = "a backbone, which predicts nothing" if task == "backbone" else "not written by tools/export.py"
            raise ValueError(f"{path} is {kind}: give a whole model that tools/export.py has written")
        self.classes: list[str] = json.loads(facts["classes"])
        self._steps: dict[str, Any] = json.loads(facts.get("preprocessing", "{}"))
        self._has_preprocessing = self._engine.inputs[0] == "pixels"
        if "resize" not in self._steps and not self._has_preprocessing:
            cause = self._steps.get("unknown", "missing metadata: export it again")
            raise ValueError(f"{path} does not specify the preprocessing of images because of {cause}")
        self._order = slice(None, None, -1 if facts["channel_order"] == "BGR" else 1)
        self._mean, self._std = (json.loads(facts[name]) for name in ("mean", "std"))
        test_cfg = json.loads(facts["test_cfg"])
        self._mask_threshold: Any = (test_cfg.get("rcnn") or {}).get("mask_thr_binary")
        self._windows = test_cfg if test_cfg.get("mode") == "slide" else None
        self._min_side = int(facts.get("min_side", 1))
        self._align_corners: bool = json.loads(facts.get("align_corners", "false"))
        self._threshold: float | None = json.loads(facts.get("threshold", "null"))
        self._fixed_size: list[int] | None = json.loads(facts.get("size", "null"))

    def __call__(
        self,
        image: np.ndarray,
        score_thr: float | None = None,
        iou_threshold: float | None = None,
        max_per_img: int | None = None,
    ) -> Detections | Segmentation:
        """Predict an image.

        Args:
            image: (H, W, 3), RGB, uint8.
            score_thr: Score that a detection must exceed. Defaults of this and the following options are the config's.
            iou_threshold: Maximum IoU of two detections of a class.
            max_per_img: Maximum number of detections.

        Returns:
            Results in pixels of the image.

        Raises:
            ValueError: If the image is of another shape or type, or too narrow for the model's resizing, or the file or
                the runtime does not have an option.
            RuntimeError: If onnxruntime fails, for example for lack of memory.
        """
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise ValueError(f"an image of {image.shape}, {image.dtype}: give it as (H, W, 3), RGB, uint8")
        height, width = image.shape[:2]
        size = self._resized_size(height, width)
        inputs = dict(pixels=image) if self._has_preprocessing else dict(image=self._preprocess(image, size))
        given: dict[str, Any] = dict(score_thr=score_thr, iou_threshold=iou_threshold, max_per_img=max_per_img)
        options = {name: value for name, value in given.items() if value is not None}
        if not (0 <= options.get("score_thr", 0) <= 1 and 0 <= options.get("iou_threshold", 0) <= 1):
            raise ValueError(f"{score_thr=}, {iou_threshold=}: must be from 0 to 1")
        if options.get("max_per_img", 1) < 1:
            raise ValueError(f"{max_per_img=}: must be positive")
        for name in options.keys() - {"score_thr"} - self._engine.options:
            raise ValueError(f"{name}={options[name]}: the file has no such input, or the runtime cannot set it")
        inputs |= option_inputs({name: value for name, value in options.items() if name in self._engine.options})
        try:
            outputs = self._engine.run(inputs) if self._windows is None else self._slide(inputs["image"], self._windows)
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise RuntimeError(f"the model cannot be run on {height}x{width} pixels: {one_line(error)}") from None
        if "segmentation_map" in outputs:
            return Segmentation(outputs["segmentation_map"])
        if "logits" in outputs:
            logits = outputs["logits"][0, :, : size[0], : size[1]]
            return Segmentation(to_labels(logits, (height, width), self._align_corners, self._threshold))
        kept = outputs["labels"] >= 0  # without padding
        if score_thr is not None:  # OpenVINO returns all
            kept &= outputs["scores"] > score_thr
        found = {name: outputs[name][kept] for name in OUTPUTS if name in outputs}
        scale = (1.0, 1.0) if self._has_preprocessing else (size[1] / width, size[0] / height)
        return detections_in_image(found, (height, width), scale, self._mask_threshold)

    def _resized_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of a resized image by mmcv's rule, with its rounding."""
        resize = self._steps.get("resize")
        if resize is None:
            size = height, width
        elif resize["keep_ratio"]:
            long, short = max(resize["scale"]), min(resize["scale"])
            factor = min(long / max(height, width), short / min(height, width))
            size = int(height * factor + 0.5), int(width * factor + 0.5)
        else:
            size = resize["scale"][1], resize["scale"][0]
        divisor = self._steps.get("pad_divisor", 1)
        if min(size) + -min(size) % divisor < self._min_side:
            raise ValueError(
                f"an image of {height}x{width} pixels, resized to {size[0]}x{size[1]} for the model, which takes "
                f"{self._min_side} or more a side: pad or enlarge it"
            )
        if self._fixed_size and (size[0] > self._fixed_size[0] or size[1] > self._fixed_size[1]):
            raise ValueError(
                f"an image resized to {size[0]}x{size[1]}, but the file takes {self._fixed_size}: export a larger one"
            )
        return size

    def _slide(self, image: np.ndarray, cfg: dict[str, Any]) -> dict[str, np.ndarray]:
        """Return the mean logits of overlapping windows of an image (1, C, H, W), placed as mmseg places them."""
        sides = image.shape[2:]
        starts = [
            [
                max(min(start, side - crop), 0)
                for start in range(0, max(side - crop + step - 1, 0) // step * step + 1, step)
            ]
            for side, crop, step in zip(sides, cfg["crop_size"], cfg["stride"], strict=True)
        ]
        total: Any = 0
        count = np.zeros(sides, np.float32)
        for top in starts[0]:
            for left in starts[1]:
                place = np.s_[..., top : top + cfg["crop_size"][0], left : left + cfg["crop_size"][1]]
                logits = self._engine.run(dict(image=np.ascontiguousarray(image[place])))["logits"]
                if count.max() == 0:
                    total = np.zeros((*logits.shape[:2], *sides), np.float32)
                total[place] += logits
                count[place] += 1
        return dict(logits=total / count)

    def _preprocess(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Resize, normalise and pad an image to the model's input (1, 3, h, w)."""
        resized = image if size == image.shape[:2] else resize(image, size)
        values: np.ndarray = resized[..., self._order].astype(np.float32)
        if self._mean is not None:
            values = (values - np.array(self._mean, np.float32)) / np.array(self._std, np.float32)
        padded = self._fixed_size or [length + -length % self._steps["pad_divisor"] for length in size]
        pad = [(0, side - length) for side, length in zip(padded, size, strict=True)]
        values = np.pad(values, [*pad, (0, 0)], constant_values=self._steps["pad_value"])
        return np.ascontiguousarray(values.transpose(2, 0, 1)[None])
