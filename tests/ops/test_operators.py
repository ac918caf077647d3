"""The operators in torch have the results of mmcv's compiled operators."""

import importlib
from collections.abc import Iterator

import mmcv.ops
import numpy as np
import pytest
import torch
from helpers.operator_cases import FILE, NMS, boxes, golden_values, pool, roi_align_cases, rois
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
            (pytest.fail if required else pytest.skip)(
                "mmcv is not compiled; make test-slow runs this where it is"
            )
        return
    for module in (*FUNCTIONS, DEFORMABLE):
        monkeypatch.setattr(module, "ext_module", mmcv_ext)


@pytest.fixture(scope="module")
def golden() -> Iterator[np.lib.npyio.NpzFile]:
    with np.load(FILE) as values:
        yield values


def assert_close(found: torch.Tensor, expected: np.ndarray, tolerance: float) -> None:
    assert found.shape == expected.shape
    scale = np.maximum(np.abs(expected), 1)
    assert (np.abs(found.double().numpy() - expected) <= tolerance * scale).all()


@pytest.mark.compiled
def test_golden_values_are_those_of_this_mmcv(golden):
    found = golden_values()
    assert set(golden) == set(found)
    for name, value in found.items():
        np.testing.assert_allclose(value, golden[name], rtol=1e-6, atol=1e-6, err_msg=name)


class TestRoIAlign:
    @pytest.mark.parametrize("name, options", roi_align_cases())
    @pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.float64, 1e-14)])
    def test_pooled_values_and_gradients_are_those_of_compiled_mmcv(
        self, golden, name, options, dtype, tolerance
    ):
        pooled, grad = pool(rois(dtype), dtype, **options)
        assert_close(pooled, golden[f"{name} {dtype}"], tolerance)
        assert_close(grad, golden[f"{name} {dtype} grad"], tolerance)

    @pytest.mark.parametrize("aligned", [True, False])
    def test_bfloat16_has_the_rounded_result_of_float32(self, golden, aligned):
        pooled, grad = pool(
            rois(torch.bfloat16), torch.bfloat16, sampling_ratio=0, pool_mode="avg", aligned=aligned
        )
        assert pooled.dtype == grad.dtype == torch.bfloat16
        name = f"avg ratio=0 aligned={aligned} torch.float32"
        assert_close(pooled, golden[name], 2**-8)
        assert_close(grad, golden[f"{name} grad"], 2**-8)

    def test_autocast_does_not_round_positions(self, golden):
        options = dict(sampling_ratio=0, pool_mode="avg", aligned=True)
        with torch.autocast("cpu", torch.bfloat16):
            pooled, _ = pool(rois(torch.float32), torch.float32, **options)
        assert_close(pooled, golden["avg ratio=0 aligned=True torch.float32"], 2e-6)

    def test_no_rois(self):
        pooled, grad = pool(
            torch.zeros(0, 5), torch.float32, sampling_ratio=0, pool_mode="avg", aligned=True
        )
        assert pooled.shape == (0, 3, 2, 3)
        assert not grad.any()

    @pytest.mark.parametrize(
        "roi, message",
        [
            ([0, 9, 1, 2, 3], r"RoI \[0.0, 9.0, 1.0, 2.0, 3.0\] .*must be .* with x1 <= x2"),
            ([0, 1, 1, float("nan"), 3], "must be finite"),
            ([0, 1, 1, float("inf"), 3], "must be finite"),
            ([2, 1, 1, 2, 3], "of one of 2 images"),
            ([-1, 1, 1, 2, 3], "of one of 2 images"),
            ([0, 0, 0, 1e30, 3], "cells long: clip boxes to the image"),
        ],
    )
    def test_an_invalid_roi_is_named(self, roi, message):
        given = torch.cat([rois(torch.float32, "common"), torch.tensor([roi]).float()])
        with pytest.raises(ValueError, match=message):
            roi_align(torch.ones(2, 1, 8, 8), given, (2, 2), 0.25, 0, "avg", True)

    def test_maxima_are_rejected(self):
        with pytest.raises(
            NotImplementedError, match="roi_align with pool_mode='max' is missing: a compiled mmcv"
        ):
            pool(
                rois(torch.float32), torch.float32, sampling_ratio=0, pool_mode="max", aligned=True
            )


class TestNMS:
    @pytest.mark.parametrize("name", NMS)
    def test_keeps_the_boxes_that_compiled_mmcv_keeps(self, golden, name):
        given, options = NMS[name]
        dets, kept = nms(*boxes(**given), **options)
        assert kept.tolist() == golden[name].tolist()
        assert torch.equal(dets[:, 4], boxes(**given)[1][kept])

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_other_types(self, golden, dtype):
        # Whole multiples of 16 below 4096 are exact in each type.
        given, options = NMS["ties and duplicates"]
        corners, scores = boxes(**given)
        assert (
            nms(corners.to(dtype), scores.to(dtype), **options)[1].tolist()
            == golden["ties and duplicates"].tolist()
        )

    def test_a_box_without_area_suppresses_nothing(self):
        point = torch.tensor([[3.0, 3, 3, 3]]).repeat(2, 1)
        assert nms(point, torch.tensor([0.5, 0.9]), 0.5)[1].tolist() == [1, 0]


class TestGPUOperators:
    """mmdet and mmcv call these operators on a GPU, and code in torch on a CPU, with the same
    results.
    """

    @pytest.mark.parametrize("gamma, alpha", [(2.0, 0.25), (0.5, 0.9)])
    def test_sigmoid_focal_loss(self, gamma, alpha):
        torch.manual_seed(0)
        logits = (torch.randn(40, 7, dtype=torch.float64) * 8).requires_grad_()
        labels = torch.randint(8, (40,))  # 7 is the background
        loss = mmcv.ops.sigmoid_focal_loss(logits, labels, gamma, alpha, None, "sum")
        one_hot = torch.nn.functional.one_hot(labels, 8)[:, :7]
        expected = py_sigmoid_focal_loss(logits, one_hot, gamma=gamma, alpha=alpha, reduction="sum")
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(
            *(torch.autograd.grad(value, logits)[0] for value in (loss, expected))
        )

    def test_sigmoid_focal_loss_of_certain_logits_is_finite(self):
        logits = torch.tensor([[100.0, -100.0], [-100.0, 100.0]], requires_grad=True)
        mmcv.ops.sigmoid_focal_loss(logits, torch.tensor([0, 0]), 2.0, 0.25, None, "sum").backward()
        assert logits.grad.isfinite().all()

    def test_deformable_attention(self):
        torch.manual_seed(0)
        shapes = torch.tensor([[4, 5], [2, 3]])
        value, places, weights = (
            torch.randn(2, 26, 2, 3),
            torch.rand(2, 6, 2, 2, 4, 2),
            torch.rand(2, 6, 2, 2, 4),
        )
        inputs = [tensor.double().requires_grad_() for tensor in (value, places, weights)]
        function = DEFORMABLE.MultiScaleDeformableAttnFunction.apply
        found = function(inputs[0], shapes, torch.tensor([0, 20]), inputs[1], inputs[2], 64)
        expected = DEFORMABLE.multi_scale_deformable_attn_pytorch(
            inputs[0], shapes, inputs[1], inputs[2]
        )
        assert torch.equal(found, expected)
        grads = [torch.autograd.grad(out.square().sum(), inputs) for out in (found, expected)]
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
        x, weight = torch.randn(2, 4, 9, 8).double(), torch.randn(6, 4 // groups, 3, 3).double()
        bias = torch.randn(6).double()
        size = torch.nn.functional.conv2d(x, weight, None, stride, 1, 1, groups).shape[2:]
        offset = torch.zeros(2, deform_groups * 18, *size).double()
        offset[:, 0::2] = 1  # one row down
        mask = torch.full((2, deform_groups * 9, *size), 0.5).double()
        tensors = [
            tensor.requires_grad_()
            for tensor in (x, weight, offset, *((mask, bias) if modulated else ()))
        ]
        if modulated:
            found = mmcv.ops.modulated_deform_conv2d(
                x, offset, mask, weight, bias, stride, 1, 1, groups, deform_groups
            )
        else:
            found = mmcv.ops.deform_conv2d(x, offset, weight, stride, 1, 1, groups, deform_groups)
        shifted = torch.nn.functional.pad(x, (1, 1, 0, 2))
        expected = torch.nn.functional.conv2d(shifted, weight, None, stride, 0, 1, groups)[
            :, :, : size[0], : size[1]
        ]
        expected = 0.5 * expected + bias[:, None, None] if modulated else expected
        torch.testing.assert_close(found, expected)
        grads = torch.autograd.grad(found.square().sum(), tensors)
        assert grads[2].any()
        torch.testing.assert_close(
            grads[:2], torch.autograd.grad(expected.square().sum(), tensors[:2])
        )

    def test_offsets_larger_than_the_output_are_read_in_order(self):
        x, weight = torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3)
        offset, mask = torch.randn(1, 18, 8, 8), torch.rand(1, 9, 8, 8)
        found = mmcv.ops.modulated_deform_conv2d(x, offset, mask, weight, None, 2, 1)
        first = [t.flatten()[: t.shape[1] * 16].view(1, -1, 4, 4) for t in (offset, mask)]
        torch.testing.assert_close(
            found, mmcv.ops.modulated_deform_conv2d(x, *first, weight, None, 2, 1)
        )


@pytest.mark.parametrize(
    "name, brings",
    [
        ("deform_roi_pool_forward", "a compiled mmcv"),
        ("deform_conv", "torchvision or a compiled mmcv"),
    ],
)
def test_a_missing_operator_is_named_when_called(name, brings):
    with pytest.raises(
        NotImplementedError,
        match=rf"^mmcv's operator {name} is missing: {brings} brings it, .*install",
    ):
        getattr(mmcv_ext, name)(1)


def test_class_weights_of_the_focal_loss_are_rejected():
    with pytest.raises(NotImplementedError, match="class weights"):
        mmcv.ops.sigmoid_focal_loss(
            torch.zeros(2, 2), torch.zeros(2).long(), 2.0, 0.25, torch.ones(2), "sum"
        )
