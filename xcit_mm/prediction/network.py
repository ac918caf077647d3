"""A model that only predicts: on a device, in a precision, without what has no data."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import RLock
from typing import Any

import torch
from mmengine.dataset import pseudo_collate
from torch import nn

from ..models.labels import has_plain_labels, predict_labels
from ..models.precision import DTYPES, fast_dtype, prepare_for_autocast
from ..models.prepare import copy_sharing_weights, prepare_for_inference
from ..utils.compat import TORCH
from ..utils.errors import ArgumentError
from .masks import return_crops


class Network:
    """A model of mmdet or mmseg, prepared for inference.

    Args:
        model: Stays as it is.
        device: A device of torch.
        dtype: As in `Predictor`.

    Attributes:
        model: The model after `prepare_for_inference`.
        leaves_out: Whether it can leave out pixels without data. mmseg's `mode="slide"` and other
            backbones see their values.
    """

    def __init__(self, model: nn.Module, device: str, dtype: str) -> None:
        if dtype not in (*DTYPES, "auto"):
            raise ArgumentError("dtype", f"{dtype!r}: give {', '.join(DTYPES)} or auto")
        self.device = device
        self.dtype = DTYPES[fast_dtype(device) if dtype == "auto" else dtype]
        if device == "cpu" and self.dtype == torch.float16 and TORCH < (2, 2):
            raise ArgumentError("dtype", "torch below 2.2 has no float16 on a CPU: give bfloat16")
        self._is_half = self.dtype != torch.float32
        self.model: Any = prepare_for_inference(copy_sharing_weights(model).eval().to(device))
        return_crops(self.model)
        if self._is_half:
            prepare_for_autocast(self.model)
        is_slide = (getattr(self.model, "test_cfg", None) or {}).get("mode") == "slide"
        backbone = getattr(self.model, "backbone", None)
        self.leaves_out = not is_slide and getattr(backbone, "can_leave_out_pixels", False)
        self._lock = RLock()  # `Backbone.valid` is state of the model

    def autocast(self) -> AbstractContextManager:
        """Return the context in which the model predicts in `dtype`."""
        dtype = self.dtype if self._is_half else None
        return torch.autocast(torch.device(self.device).type, dtype, enabled=self._is_half)

    @torch.no_grad()
    def predict(self, batch: list[dict[str, Any]]) -> Sequence[Any]:
        """Predict preprocessed images of one size.

        Args:
            batch: As `Preprocessing` returns each image. All have a `valid`, which is taken out of
                it, or none has one.

        Returns:
            For each image the class of each pixel, or the library's data sample.
        """
        size = batch[0]["inputs"].shape[1:]
        masks = [data.pop("valid") for data in batch if "valid" in data]
        leave_out = self.model.backbone.valid(masks) if masks else nullcontext()
        with self._lock, leave_out, self.autocast():
            if not has_plain_labels(self.model):
                samples = self.model.test_step(pseudo_collate(batch))
                for sample in samples:
                    if "seg_logits" in sample:  # 2.5 GB for 150 classes at 2048 x 2048
                        del sample.seg_logits
                return samples
            data = self.model.data_preprocessor(pseudo_collate(batch), False)
            images = data["inputs"]
            valid = None
            if masks:  # the images are padded
                valid = images.new_zeros((len(images), 1, *images.shape[2:]), dtype=torch.bool)
                valid[:, 0, : size[0], : size[1]] = torch.stack(masks)
            return predict_labels(self.model, images, data["data_samples"], valid)
