"""The operators in torch have the results of mmcv's compiled operators."""

import importlib
from collections.abc import Iterator

import mmcv.ops
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.operator_cases import FILE, NMS, ROI_ALIGN, boxes, golden_values, pool, rois
from mmcv.ops import multi_scale_deform_attn, nms, roi_align
from mmdet.models.losses.focal_loss import py_sigmoid_focal_loss

from xcit_mm.ops import is_compiled, mmcv_ext

FUNCTIONS = [
    importlib.import_module(f"mmcv.ops.{name}") for name in ("nms", "roi_align", "focal_loss")
]
DEFORMABLE = multi_scale_deform_attn


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


def assert_close(result: torch.Tensor, expected: np.ndarray, tolerance: float) -> None:
    assert result.shape == expected.shape
    scale = np.maximum(np.abs(expected), 1)
    assert (np.abs(result.double().numpy() - expected) <= tolerance * scale).all()


@pytest.mark.compiled
def test_golden_values_are_those_of_this_mmcv(golden):
    results = golden_values()
    assert set(golden) == set(results)
    for name, result in results.items():
        np.testing.assert_allclose(result, golden[name], rtol=1e-6, atol=1e-6, err_msg=name)


class TestRoIAlign:
    @pytest.mark.parametrize("name", ROI_ALIGN)
    @pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.float64, 1e-14)])
    def test_pooled_values_and_gradients_are_those_of_compiled_mmcv(
        self, golden, name, dtype, tolerance
    ):
        pooled, grad = pool(rois(dtype), dtype, **ROI_ALIGN[name])
        assert_close(pooled, golden[f"{name} {dtype}"], tolerance)
        assert_close(grad, golden[f"{name} {dtype} grad"], tolerance)

    @pytest.mark.parametrize("aligned", [True, False])
    def test_bfloat16_has_the_rounded_result_of_float32(self, golden, aligned):
        pooled, grad = pool(rois(torch.bfloat16), torch.bfloat16, aligned=aligned)
        assert pooled.dtype == grad.dtype == torch.bfloat16
        name = f"avg ratio=0 aligned={aligned} torch.float32"
        assert_close(pooled, golden[name], 2**-8)
        assert_close(grad, golden[f"{name} grad"], 2**-8)

    def test_autocast_does_not_round_positions(self, golden):
        with torch.autocast("cpu", torch.bfloat16):
            pooled, _ = pool(rois(torch.float32), torch.float32)
        assert_close(pooled, golden["avg ratio=0 aligned=True torch.float32"], 2e-6)

    def test_no_rois(self):
        pooled, grad = pool(torch.zeros(0, 5), torch.float32)
        assert pooled.shape == (0, 3, 2, 3)
        assert not grad.any()

    @pytest.mark.parametrize(
        "roi, message",
        [
            ([0, 9, 1, 2, 3], r"RoI \[0.0, 9.0, 1.0, 2.0, 3.0\] .*x1 <= x2"),
            ([0, 1, 1, float("nan"), 3], "finite"),
            ([2, 1, 1, 2, 3], "2 images"),
            ([-1, 1, 1, 2, 3], "2 images"),
            ([0, 0, 0, 1e30, 3], "clip boxes"),
        ],
    )
    def test_an_invalid_roi_is_named(self, roi, message):
        boxes = torch.cat([rois(torch.float32, "common"), torch.tensor([roi]).float()])
        with pytest.raises(ValueError, match=message):
            roi_align(torch.ones(2, 1, 8, 8), boxes, (2, 2), 0.25, 0, "avg", True)


class TestNMS:
    @pytest.mark.parametrize("name", NMS)
    def test_keeps_the_boxes_that_compiled_mmcv_keeps(self, golden, name):
        arguments, options = NMS[name]
        corners, scores = boxes(**arguments)
        detections, kept = nms(corners, scores, **options)
        assert kept.tolist() == golden[name].tolist()
        assert torch.equal(detections[:, 4], scores[kept])

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_other_types(self, golden, dtype):
        # Whole multiples of 16 below 4096 are exact in each type.
        arguments, options = NMS["ties and duplicates"]
        corners, scores = boxes(**arguments)
        _, kept = nms(corners.to(dtype), scores.to(dtype), **options)
        assert kept.tolist() == golden["ties and duplicates"].tolist()

    def test_a_box_without_area_suppresses_nothing(self):
        point = torch.tensor([[3.0, 3, 3, 3]]).repeat(2, 1)
        assert nms(point, torch.tensor([0.5, 0.9]), 0.5)[1].tolist() == [1, 0]


def focal_loss(logits: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    labels = torch.zeros(len(logits)).long()
    return mmcv.ops.sigmoid_focal_loss(logits, labels, 2.0, 0.25, weights, "sum")


class TestGPUOperators:
    """mmdet and mmcv call these operators on a GPU only, and have code in torch for a CPU."""

    @pytest.mark.parametrize("gamma, alpha", [(2.0, 0.25), (0.5, 0.9)])
    def test_sigmoid_focal_loss(self, gamma, alpha):
        torch.manual_seed(0)
        logits = (torch.randn(40, 7, dtype=torch.float64) * 8).requires_grad_()
        labels = torch.randint(8, (40,))  # 7 is the background
        loss = mmcv.ops.sigmoid_focal_loss(logits, labels, gamma, alpha, None, "sum")
        one_hot = F.one_hot(labels, 8)[:, :7]
        expected = py_sigmoid_focal_loss(logits, one_hot, gamma=gamma, alpha=alpha, reduction="sum")
        torch.testing.assert_close(loss, expected)
        grads = [torch.autograd.grad(scalar, logits) for scalar in (loss, expected)]
        torch.testing.assert_close(*grads)

    def test_sigmoid_focal_loss_of_certain_logits_is_finite(self):
        logits = torch.tensor([[100.0, -100.0], [-100.0, 100.0]], requires_grad=True)
        focal_loss(logits).backward()
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


@pytest.mark.skipif(mmcv_ext.torchvision_kernels() is None, reason="torchvision is not installed")
class TestDeformableConvolution:
    """By torchvision's kernel. With whole offsets it is a convolution of a shifted map."""

    @pytest.mark.parametrize("modulated", [False, True])
    @pytest.mark.parametrize("groups, deform_groups, stride", [(1, 1, 1), (2, 2, 2)])
    def test_results_and_gradients_are_those_of_a_shifted_convolution(
        self, modulated, groups, deform_groups, stride
    ):
        torch.manual_seed(0)
        x = torch.randn(2, 4, 9, 8).double().requires_grad_()
        weight = torch.randn(6, 4 // groups, 3, 3).double().requires_grad_()
        bias = torch.randn(6).double().requires_grad_()
        shifted = F.pad(x, (1, 1, 0, 2))
        height, width = F.conv2d(x, weight, None, stride, 1, 1, groups).shape[2:]
        expected = F.conv2d(shifted, weight, None, stride, 0, 1, groups)[:, :, :height, :width]
        offset = torch.zeros(2, deform_groups * 18, height, width).double()
        offset[:, 0::2] = 1  # one row down
        offset.requires_grad_()
        options = (stride, 1, 1, groups, deform_groups)
        if modulated:
            mask = torch.full((2, deform_groups * 9, height, width), 0.5).double()
            result = mmcv.ops.modulated_deform_conv2d(x, offset, mask, weight, bias, *options)
            expected = 0.5 * expected + bias[:, None, None]
        else:
            result = mmcv.ops.deform_conv2d(x, offset, weight, *options)
        torch.testing.assert_close(result, expected)
        *grads, grad_of_offset = torch.autograd.grad(result.square().sum(), (x, weight, offset))
        assert grad_of_offset.any()
        expected_grads = torch.autograd.grad(expected.square().sum(), (x, weight))
        torch.testing.assert_close(grads, list(expected_grads))

    def test_offsets_larger_than_the_output_are_read_in_order(self):
        x = torch.randn(1, 2, 8, 8)
        weight = torch.randn(2, 2, 3, 3)
        offset = torch.randn(1, 18, 8, 8)
        mask = torch.rand(1, 9, 8, 8)
        result = mmcv.ops.modulated_deform_conv2d(x, offset, mask, weight, None, 2, 1)
        first = [t.flatten()[: t.shape[1] * 16].view(1, -1, 4, 4) for t in (offset, mask)]
        expected = mmcv.ops.modulated_deform_conv2d(x, *first, weight, None, 2, 1)
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: mmcv_ext.deform_roi_pool_forward(1), "deform_roi_pool_forward.* a compiled mmcv"),
        (lambda: mmcv_ext.deform_conv(1), "deform_conv.* torchvision or a compiled mmcv"),
        (lambda: pool(rois(torch.float32), torch.float32, mode="max"), "'max'.* compiled mmcv"),
        (lambda: focal_loss(torch.zeros(2, 2), torch.ones(2)), "class weights"),
    ],
)
def test_a_missing_operator_is_named_when_called(call, message):
    with pytest.raises(NotImplementedError, match=message):
        call()
