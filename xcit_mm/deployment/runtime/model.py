"""A model in an ONNX file, from the pixels of an image to results in these pixels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from .images import one_line, paste_masks, resize, to_labels
from .results import Detections, Segmentation

__all__ = ["Model"]


class Model:
    """A model in a file of tools/export.py, with or without preprocessing in the file, on the CPU.

    Args:
        path: The .onnx file.
        threads: Number of threads; default: onnxruntime's choice.

    Attributes:
        classes: Names of the classes.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not such a model, or its metadata do not specify the preprocessing.
    """

    def __init__(self, path: str | Path, threads: int | None = None) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(f"no model at {path}")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's classes share no base but Exception
            raise ValueError(f"{path} is not an ONNX file that can be run: {one_line(error)}") from None
        facts = self._session.get_modelmeta().custom_metadata_map
        task = facts.get("task", "")
        if task == "backbone" or "classes" not in facts:
            kind = "a backbone, which predicts nothing" if task == "backbone" else "not written by tools/export.py"
            raise ValueError(f"{path} is {kind}: give a whole model that tools/export.py has written")
        self.classes: list[str] = json.loads(facts["classes"])
        self._steps: dict[str, Any] = json.loads(facts.get("preprocessing", "{}"))
        self._has_preprocessing = self._session.get_inputs()[0].name == "pixels"
        if "resize" not in self._steps and not self._has_preprocessing:
            cause = self._steps.get("unknown", "missing metadata: export it again")
            raise ValueError(f"{path} does not specify the preprocessing of images because of {cause}")
        self._order = slice(None, None, -1 if facts["channel_order"] == "BGR" else 1)
        self._mean, self._std = (json.loads(facts[name]) for name in ("mean", "std"))
        self._mask_threshold: Any = (json.loads(facts["test_cfg"]).get("rcnn") or {}).get("mask_thr_binary")
        self._align_corners: bool = json.loads(facts.get("align_corners", "false"))
        self._threshold: float | None = json.loads(facts.get("threshold", "null"))

    def __call__(self, image: np.ndarray, score_thr: float = 0.0) -> Detections | Segmentation:
        """Predict an image.

        Args:
            image: (H, W, 3), RGB, uint8.
            score_thr: Minimum score of a detection.

        Returns:
            Results in pixels of the image.

        Raises:
            ValueError: If the image is of another shape or type, or too narrow for the model's resizing.
            RuntimeError: If onnxruntime fails, for example for lack of memory.
        """
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise ValueError(f"an image of {image.shape}, {image.dtype}: give it as (H, W, 3), RGB, uint8")
        height, width = image.shape[:2]
        size = self._resized_size(height, width)
        inputs = dict(pixels=image) if self._has_preprocessing else dict(image=self._preprocess(image, size))
        names = [output.name for output in self._session.get_outputs()]
        try:
            outputs = dict(zip(names, self._session.run(names, inputs), strict=True))
        except Exception as error:  # see above
            raise RuntimeError(f"the model cannot be run on {height}x{width} pixels: {one_line(error)}") from None
        if "segmentation_map" in outputs:
            return Segmentation(outputs["segmentation_map"])
        if "logits" in outputs:
            logits = outputs["logits"][0, :, : size[0], : size[1]]
            return Segmentation(to_labels(logits, (height, width), self._align_corners, self._threshold))
        kept = outputs["scores"] >= score_thr
        boxes, scores, labels = (outputs[name][kept] for name in ("boxes", "scores", "labels"))
        if not self._has_preprocessing:
            boxes = boxes / np.array([size[1] / width, size[0] / height] * 2, np.float32)
        masks = None
        if "masks" in outputs:
            masks = paste_masks(outputs["masks"][kept], boxes, height, width, self._mask_threshold)
        # After the masks, which fill whole boxes. Rounding may place a side of a box beyond the image.
        return Detections(boxes.clip(0, [width, height] * 2).astype(np.float32), scores, labels, masks)

    def _resized_size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of a resized image by mmcv's rule, with its rounding."""
        resize = self._steps.get("resize")
        if resize is None:
            return height, width
        if resize["keep_ratio"]:
            long, short = max(resize["scale"]), min(resize["scale"])
            factor = min(long / max(height, width), short / min(height, width))
            size = int(height * factor + 0.5), int(width * factor + 0.5)
        else:
            size = resize["scale"][1], resize["scale"][0]
        if not min(size):
            raise ValueError(f"an image of {height}x{width} pixels: the model's resizing leaves nothing of it; pad it")
        return size

    def _preprocess(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Resize, normalise and pad an image to the model's input (1, 3, h, w)."""
        resized = image if size == image.shape[:2] else resize(image, size)
        values: np.ndarray = resized[..., self._order].astype(np.float32)
        if self._mean is not None:
            values = (values - np.array(self._mean, np.float32)) / np.array(self._std, np.float32)
        pad = [(0, -length % self._steps["pad_divisor"]) for length in size]
        values = np.pad(values, [*pad, (0, 0)], constant_values=self._steps["pad_value"])
        return np.ascontiguousarray(values.transpose(2, 0, 1)[None])
