"""Inputs of the operators in torch, and their results by a compiled mmcv.

In tests/, in an environment with a compiled mmcv, `python -m helpers.operator_cases` writes them.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from helpers.paths import GOLDEN

FILE = GOLDEN / "operators.npz"
MAP = 2, 3, 9, 12  # images, channels, rows, columns
SCALE = 0.25
BOXES = {
    "common": [[3.25, 1.75, 20.5, 31], [12, 4, 44.5, 18.25], [0.5, 0.5, 3, 2]],
    "no area": [[5, 5, 5, 9], [3, 3, 3, 3], [7, 2, 30, 2]],
    "partly outside": [[-30, -20, 20, 25], [40, 30, 80, 60]],
    "wholly outside": [[200, 200, 240, 260], [-90, -90, -50, -50], [52.5, 4, 60, 9]],
    "larger than the image": [[-60, -50, 120, 100]],
    "the image": [[0, 0, 48, 36]],
    "at the border": [[-4, -4, 0, 0], [48, 36, 52, 40], [-2, 34, 2, 38]],
}


def rois(dtype: torch.dtype, boxes: str | None = None) -> Tensor:
    """All boxes, or those of a name, alternately in the first and the second image."""
    names = BOXES if boxes is None else [boxes]
    chosen = [box for name in names for box in BOXES[name]]
    corners = torch.tensor(chosen, dtype=dtype).reshape(-1, 4)
    return torch.cat([torch.arange(len(chosen), dtype=dtype)[:, None] % 2, corners], dim=1)


def noise(seed: int, *shape: int) -> Tensor:
    """Values that bfloat16 represents exactly, so that all types have the same values."""
    return torch.from_numpy(np.random.RandomState(seed).standard_normal(shape)).bfloat16().double()


ROI_ALIGN: dict[str, dict[str, Any]] = {
    f"avg ratio={ratio} aligned={aligned}": dict(ratio=ratio, aligned=aligned)
    for ratio in (0, 1, 2)
    for aligned in (True, False)
}


def pool(
    boxes: Tensor, dtype: torch.dtype, ratio: int = 0, aligned: bool = True, mode: str = "avg"
) -> tuple[Tensor, Tensor]:
    """The result of mmcv.ops.roi_align, and the gradient of the maps."""
    from mmcv.ops import roi_align

    maps = noise(0, *MAP).to(dtype).requires_grad_()
    pooled = roi_align(maps, boxes, (2, 3), SCALE, ratio, mode, aligned)
    pooled.backward(noise(1, *pooled.shape).to(dtype))
    return pooled.detach(), maps.grad


def boxes(number: int, spread: int, levels: int = 1, whole: bool = False) -> tuple[Tensor, Tensor]:
    """Random boxes of 4 to 124 pixels on `levels` distant canvases.

    `whole` coordinates and few scores make ties.
    """
    random = np.random.RandomState(number)
    center = random.rand(number, 2) * spread
    size = random.rand(number, 2) * 120 + 4
    corners = np.concatenate([center - size / 2, center + size / 2], axis=1)
    corners += random.randint(levels, size=(number, 1)) * 10_000
    scores = random.rand(number)
    if whole:
        corners = np.floor(corners / 16) * 16
        scores = np.floor(scores * 8) / 8
    return torch.from_numpy(corners).float(), torch.from_numpy(scores).float()


NMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no boxes": (dict(number=0, spread=1), dict(iou_threshold=0.5)),
    "one box": (dict(number=1, spread=9), dict(iou_threshold=0.5)),
    "many overlaps": (dict(number=700, spread=60), dict(iou_threshold=0.5)),
    "ties and duplicates": (dict(number=900, spread=200, whole=True), dict(iou_threshold=0.5)),
    "ties at the threshold": (dict(number=900, spread=200, whole=True), dict(iou_threshold=0.25)),
    "offset": (dict(number=600, spread=300, whole=True), dict(iou_threshold=0.5, offset=1)),
    "max_num": (dict(number=600, spread=300), dict(iou_threshold=0.5, max_num=50)),
    "score_threshold": (dict(number=600, spread=300), dict(iou_threshold=0.5, score_threshold=0.4)),
    "levels": (dict(number=4800, spread=1300, levels=5), dict(iou_threshold=0.7)),
}


def golden_values() -> dict[str, np.ndarray]:
    """Results of all cases by the installed mmcv."""
    from mmcv.ops import nms

    results = {}
    for name, options in ROI_ALIGN.items():
        for dtype in (torch.float32, torch.float64):
            pooled, grad = pool(rois(dtype), dtype, **options)
            results[f"{name} {dtype}"] = pooled
            results[f"{name} {dtype} grad"] = grad
    for name, (arguments, options) in NMS.items():
        _, kept = nms(*boxes(**arguments), **options)
        results[name] = kept.int()
    return {name: result.numpy() for name, result in results.items()}


if __name__ == "__main__":
    from xcit_mm.ops import is_compiled

    assert is_compiled(), "the golden values are a compiled mmcv's"
    np.savez_compressed(FILE, **golden_values())
