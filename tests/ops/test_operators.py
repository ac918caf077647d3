"""The operators in torch have the results of mmcv's compiled operators.

In an environment with a compiled mmcv, `PYTHONPATH=tests python tests/ops/test_operators.py` writes
its results.
"""

import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import mmcv.ops
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN
from mmcv.ops import multi_scale_deform_attn, nms, roi_align
from mmdet.models.losses.focal_loss import py_sigmoid_focal_loss
from torch import Tensor

from xcit_mm.ops import is_compiled, mmcv_ext

FUNCTIONS = [
    importlib.import_module(f"mmcv.ops.{name}") for name in ("nms", "roi_align", "focal_loss")
]
DEFORMABLE = multi_scale_deform_attn
FILE = GOLDEN / "operators.npz"
# In images of 48 x 36 pixels, whose feature maps are a quarter as large.
ROIS = [
    *([3.25, 1.75, 20.5, 31], [12, 4, 44.5, 18.25], [0.5, 0.5, 3, 2]),
    *([5, 5, 5, 9], [3, 3, 3, 3], [7, 2, 30, 2]),  # without area
    *([-30, -20, 20, 25], [40, 30, 80, 60]),  # partly outside
    *([200, 200, 240, 260], [-90, -90, -50, -50], [52.5, 4, 60, 9]),  # wholly outside
    *([-60, -50, 120, 100], [0, 0, 48, 36]),
    *([-4, -4, 0, 0], [48, 36, 52, 40], [-2, 34, 2, 38]),  # at the border
]
ROI_ALIGN: dict[str, dict[str, Any]] = {
    f"avg ratio={ratio} aligned={aligned}": dict(ratio=ratio, aligned=aligned)
    for ratio in (0, 1, 2)
    for aligned in (True, False)
}
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


def rois(dtype: torch.dtype) -> Tensor:
    """Return all boxes, alternately in the first and the second image."""
    corners = torch.tensor(ROIS, dtype=dtype)
    return torch.cat([torch.arange(len(ROIS), dtype=dtype)[:, None] % 2, corners], dim=1)


def noise(seed: int, *shape: int) -> Tensor:
    """Return values that bfloat16 represents exactly, so that all types have the same values."""
    return torch.from_numpy(np.random.RandomState(seed).standard_normal(shape)).bfloat16().double()


def pool(
    rois: Tensor, dtype: torch.dtype, ratio: int = 0, aligned: bool = True, mode: str = "avg"
) -> tuple[Tensor, Tensor]:
    """Return the result of mmcv.ops.roi_align, and the gradient of the maps."""
    maps = noise(0, 2, 3, 9, 12).to(dtype).requires_grad_()
    pooled = roi_align(maps, rois, (2, 3), 0.25, ratio, mode, aligned)
    pooled.backward(noise(1, *pooled.shape).to(dtype))
    return pooled.detach(), maps.grad


def boxes(number: int, spread: int, levels: int = 1, whole: bool = False) -> tuple[Tensor, Tensor]:
    """Return random boxes of 4 to 124 pixels on `levels` distant canvases, and scores.

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


def golden_values() -> dict[str, np.ndarray]:
    """Return the results of all cases by the installed mmcv."""
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


@pytest.fixture(autouse=True)
def operators(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mmcv.ops call the operators in torch, also where mmcv is compiled."""
    if request.node.get_closest_marker("compiled"):
        if not is_compiled():
            required = request.config.option.markexpr == "compiled"
            end = pytest.fail if required else pytest.skip
            end("mmcv is not compiled; make test-slow runs this where it is")
        return
    for module in (*FUNCTIONS, DEFORMABLE):
        monkeypatch.setattr(module, "ext_module", mmcv_ext)


@pytest.fixture(scope="module")
def golden() -> Iterator[np.lib.npyio.NpzFile]:
    with np.load(FILE) as arrays:
        yield arrays


def assert_close(result: Tensor, expected: np.ndarray, tolerance: float) -> None:
    assert result.shape == expected.shape
    scale = np.maximum(np.abs(expected), 1)
    assert (np.abs(result.double().numpy() - expected) <= tolerance * scale).all()


@pytest.mark.compiled
def test_golden_values_are_those_of_this_mmcv(golden):
    results = golden_values()
    assert set(golden) == set(results)
    for name, result in results.items():
        np.testing.assert_allclose(result, golden[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ROI_ALIGN)
def test_roi_align_s_values_and_gradients_are_those_of_compiled_mmcv(golden, name):
    for dtype, tolerance in [(torch.float32, 2e-6), (torch.float64, 1e-14)]:
        pooled, grad = pool(rois(dtype), dtype, **ROI_ALIGN[name])
        assert_close(pooled, golden[f"{name} {dtype}"], tolerance)
        assert_close(grad, golden[f"{name} {dtype} grad"], tolerance)


def test_roi_align_in_half_precision_rounds_results_but_no_positions(golden):
    name = "avg ratio=0 aligned=True torch.float32"
    pooled, grad = pool(rois(torch.bfloat16), torch.bfloat16)
    assert pooled.dtype == grad.dtype == torch.bfloat16
    assert_close(pooled, golden[name], 2**-8)
    assert_close(grad, golden[f"{name} grad"], 2**-8)
    with torch.autocast("cpu", torch.bfloat16):
        pooled, _ = pool(rois(torch.float32), torch.float32)
    assert_close(pooled, golden[name], 2e-6)


def test_roi_align_without_rois():
    pooled, grad = pool(torch.zeros(0, 5), torch.float32)
    assert pooled.shape == (0, 3, 2, 3)
    assert not grad.any()


@pytest.mark.parametrize(
    "roi, message",
    [
        ([0, 9, 1, 2, 3], r"RoI \[0.0, 9.0, 1.0, 2.0, 3.0\] .*x1 <= x2"),
        ([2, 1, 1, 2, 3], "the image from 0 to 1"),
        ([0, 0, 0, 1e30, 3], "clip boxes"),
    ],
)
def test_an_invalid_roi_is_named(roi, message):
    boxes = torch.cat([rois(torch.float32), torch.tensor([roi]).float()])
    with pytest.raises(ValueError, match=message):
        pool(boxes, torch.float32)


@pytest.mark.parametrize("name", NMS)
def test_nms_keeps_the_boxes_that_compiled_mmcv_keeps(golden, name):
    arguments, options = NMS[name]
    corners, scores = boxes(**arguments)
    detections, kept = nms(corners, scores, **options)
    assert kept.tolist() == golden[name].tolist()
    assert torch.equal(detections[:, 4], scores[kept])


def test_a_box_without_area_suppresses_nothing():
    point = torch.tensor([[3.0, 3, 3, 3]]).repeat(2, 1)
    assert nms(point, torch.tensor([0.5, 0.9]), 0.5)[1].tolist() == [1, 0]


class TestGPUOperators:
    """mmdet and mmcv call these operators on a GPU only, and have code in torch for a CPU."""

    def test_sigmoid_focal_loss(self):
        torch.manual_seed(0)
        logits = (torch.randn(40, 7, dtype=torch.float64) * 8).requires_grad_()
        labels = torch.randint(8, (40,))  # 7 is the background
        loss = mmcv.ops.sigmoid_focal_loss(logits, labels, 0.5, 0.9, None, "sum")
        one_hot = F.one_hot(labels, 8)[:, :7]
        expected = py_sigmoid_focal_loss(logits, one_hot, gamma=0.5, alpha=0.9, reduction="sum")
        torch.testing.assert_close(loss, expected)
        grads = [torch.autograd.grad(scalar, logits) for scalar in (loss, expected)]
        torch.testing.assert_close(*grads)

    @pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
    def test_sigmoid_focal_loss_of_certain_logits_is_finite(self, gamma):
        logits = torch.tensor([[100.0, -100.0], [-100.0, 100.0]], requires_grad=True)
        labels = torch.zeros(2).long()
        mmcv.ops.sigmoid_focal_loss(logits, labels, gamma, 0.25, None, "sum").backward()
        assert logits.grad.isfinite().all()

    def test_deformable_attention(self):
        torch.manual_seed(0)
        shapes = torch.tensor([[4, 5], [2, 3]])
        value = torch.randn(2, 26, 2, 3).double().requires_grad_()
        places = torch.rand(2, 6, 2, 2, 4, 2).double().requires_grad_()
        weights = torch.rand(2, 6, 2, 2, 4).double().requires_grad_()
        function = DEFORMABLE.MultiScaleDeformableAttnFunction.apply
        result = function(value, shapes, torch.tensor([0, 20]), places, weights, 64)
        expected = DEFORMABLE.multi_scale_deformable_attn_pytorch(value, shapes, places, weights)
        assert torch.equal(result, expected)
        inputs = (value, places, weights)
        grads = [torch.autograd.grad(out.square().sum(), inputs) for out in (result, expected)]
        torch.testing.assert_close(*grads)


@pytest.mark.peers
@pytest.mark.skipif(
    find_spec("torchvision") is None, reason="torchvision is not installed: make STACK=peers test"
)
@pytest.mark.parametrize("modulated", [False, True])
def test_deformable_convolution_with_whole_offsets_shifts_the_map(modulated):
    """By torchvision's kernel."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 9, 8).double().requires_grad_()
    weight = torch.randn(6, 2, 3, 3).double().requires_grad_()
    bias = torch.randn(6).double()
    expected = F.conv2d(F.pad(x, (1, 1, 0, 2)), weight, groups=2)
    offset = torch.zeros(2, 36, 9, 8).double()
    offset[:, 0::2] = 1  # one row down
    offset.requires_grad_()
    options = (1, 1, 1, 2, 2)  # stride, padding, dilation, groups, groups of offsets
    if modulated:
        mask = torch.full((2, 18, 9, 8), 0.5).double()
        result = mmcv.ops.modulated_deform_conv2d(x, offset, mask, weight, bias, *options)
        expected = 0.5 * expected + bias[:, None, None]
    else:
        result = mmcv.ops.deform_conv2d(x, offset, weight, *options)
    torch.testing.assert_close(result, expected)
    *grads, grad_of_offset = torch.autograd.grad(result.square().sum(), (x, weight, offset))
    assert grad_of_offset.any()
    expected_grads = torch.autograd.grad(expected.square().sum(), (x, weight))
    torch.testing.assert_close(grads, list(expected_grads))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: mmcv_ext.deform_roi_pool_forward(1), "deform_roi_pool_forward.* a compiled mmcv"),
        (lambda: pool(rois(torch.float32), torch.float32, mode="max"), "'max'.* compiled mmcv"),
    ],
)
def test_a_missing_operator_is_named_when_called(call, message):
    with pytest.raises(NotImplementedError, match=message):
        call()


if __name__ == "__main__":
    assert is_compiled(), "the golden values are a compiled mmcv's"
    np.savez_compressed(FILE, **golden_values())
