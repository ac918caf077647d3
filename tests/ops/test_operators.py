"""The operators in torch have the results of mmcv's compiled operators."""

import importlib
import resource
from collections.abc import Iterator
from types import ModuleType

import mmcv.ops
import numpy as np
import pytest
import torch
from mmcv.ops import multi_scale_deform_attn, nms, roi_align, soft_nms
from mmdet.models.losses.focal_loss import py_sigmoid_focal_loss
from operator_cases import BOXES, FILE, NMS, SOFT_NMS, boxes, pool, roi_align_cases, rois, soft_boxes

from xcit_mm.ops import mmcv_ext

FUNCTIONS = [importlib.import_module(f"mmcv.ops.{name}") for name in ("nms", "roi_align", "focal_loss")]
DEFORMABLE = multi_scale_deform_attn


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Let mmcv.ops call the stand-in, also where mmcv is compiled."""
    for module in (*FUNCTIONS, DEFORMABLE):
        monkeypatch.setattr(module, "ext_module", mmcv_ext)
    return mmcv_ext


@pytest.fixture(scope="module")
def golden() -> Iterator[np.lib.npyio.NpzFile]:
    with np.load(FILE) as values:
        yield values


def assert_close(found: torch.Tensor, expected: np.ndarray, tolerance: float) -> None:
    assert found.shape == expected.shape
    scale = np.maximum(np.abs(expected), 1)
    assert (np.abs(found.double().numpy() - expected) <= tolerance * scale).all()


class TestRoIAlign:
    @pytest.mark.parametrize("name, options", roi_align_cases())
    @pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-6), (torch.float64, 1e-14)])
    def test_pooled_values_and_gradients_are_those_of_compiled_mmcv(self, golden, name, options, dtype, tolerance):
        pooled, grad = pool(rois(dtype), dtype, **options)
        assert_close(pooled, golden[f"{name} {dtype}"], tolerance)
        assert_close(grad, golden[f"{name} {dtype} grad"], tolerance)

    @pytest.mark.parametrize("aligned", [True, False])
    def test_bfloat16_has_the_rounded_result_of_float32(self, golden, aligned):
        pooled, grad = pool(rois(torch.bfloat16), torch.bfloat16, sampling_ratio=0, pool_mode="avg", aligned=aligned)
        assert pooled.dtype == grad.dtype == torch.bfloat16
        name = f"avg ratio=0 aligned={aligned} torch.float32"
        assert_close(pooled, golden[name], 2**-8)
        assert_close(grad, golden[f"{name} grad"], 2**-8)

    def test_autocast_does_not_round_positions(self, golden):
        options = dict(sampling_ratio=0, pool_mode="avg", aligned=True)
        with torch.autocast("cpu", torch.bfloat16):
            pooled, _ = pool(rois(torch.float32), torch.float32, **options)
        assert_close(pooled, golden["avg ratio=0 aligned=True torch.float32"], 2e-6)

    @pytest.mark.parametrize("mode", ["avg", "max"])
    @pytest.mark.parametrize("kind", BOXES)
    def test_a_roi_does_not_depend_on_other_rois(self, golden, mode, kind):
        options = dict(sampling_ratio=0, pool_mode=mode, aligned=True)
        everything, _ = pool(rois(torch.float64), torch.float64, **options)
        alone = rois(torch.float64, kind)
        chosen = [n for n, roi in enumerate(rois(torch.float64)[:, 1:].tolist()) if roi in alone[:, 1:].tolist()]
        alone[:, 0] = rois(torch.float64)[chosen, 0]
        torch.testing.assert_close(pool(alone, torch.float64, **options)[0], everything[chosen], rtol=0, atol=1e-15)

    def test_more_rois_than_a_chunk(self):
        few = rois(torch.float64)
        options = dict(sampling_ratio=0, pool_mode="avg", aligned=True)
        pooled, _ = pool(few.repeat(40, 1), torch.float64, **options)
        assert len(pooled) > 500
        torch.testing.assert_close(pooled, pool(few, torch.float64, **options)[0].repeat(40, 1, 1, 1))

    @pytest.mark.parametrize("mode", ["avg", "max"])
    def test_gradient_is_the_derivative(self, mode):
        chosen = rois(torch.float64)[:6]
        maps = torch.randn(2, 1, 4, 5, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda m: roi_align(m, chosen, (2, 2), 0.25, 0, mode, True), maps)

    @pytest.mark.parametrize("mode", ["avg", "max"])
    def test_no_rois(self, mode):
        pooled, grad = pool(torch.zeros(0, 5), torch.float32, sampling_ratio=0, pool_mode=mode, aligned=True)
        assert pooled.shape == (0, 3, 2, 3)
        assert not grad.any()

    @pytest.mark.parametrize("mode", ["avg", "max"])
    @pytest.mark.parametrize(
        "roi, message",
        [
            ([0, 9, 1, 2, 3], "ends before it begins: give x1"),
            ([0, 1, 1, float("nan"), 3], "is not finite"),
            ([0, 1, 1, float("inf"), 3], "is not finite"),
            ([2, 1, 1, 2, 3], "is of an image that is not among the 2 of the batch"),
            ([-1, 1, 1, 2, 3], "is of an image that is not among the 2 of the batch"),
            ([0, 0, 0, 1e30, 3], "cells long: clip boxes to the image"),
        ],
    )
    def test_an_invalid_roi_is_named(self, mode, roi, message):
        given = torch.cat([rois(torch.float32, "common"), torch.tensor([roi]).float()])
        with pytest.raises(ValueError, match=message):
            roi_align(torch.ones(2, 1, 8, 8), given, (2, 2), 0.25, 0, mode, True)

    def test_maxima_in_bfloat16_are_rejected(self):
        with pytest.raises(NotImplementedError, match="bfloat16"):
            pool(rois(torch.bfloat16), torch.bfloat16, sampling_ratio=0, pool_mode="max", aligned=True)

    @pytest.mark.parametrize("number", [1, 40])  # many RoIs copy the whole map
    def test_results_are_the_same_with_a_copy_of_the_map(self, number):
        maps = torch.randn(1, 2, 64, 64, dtype=torch.float64, requires_grad=True)
        given = torch.tensor([[0.0, 3, 4, 60, 33]], dtype=torch.float64).repeat(number, 1)
        found = roi_align(maps, given, (3, 3), 1.0, 0, "avg", True)
        expected = roi_align(maps.detach().repeat(1, 40, 1, 1), given[:1], (3, 3), 1.0, 0, "avg", True)[0, :2]
        torch.testing.assert_close(found, expected.expand_as(found))
        (grad,) = torch.autograd.grad(found.sum() / number, maps)
        assert grad.sum().item() == pytest.approx(2 * 9)

    def test_a_long_roi_takes_little_memory(self):
        given = torch.tensor([[0.0, 1, 1, 15, 15]]).repeat(256, 1)
        given[7, 3] = 300_000
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        roi_align(torch.randn(1, 4, 100, 100), given, (7, 7), 1.0, 0, "avg", True)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB; 3.4 GB if all are padded


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
        assert nms(corners.to(dtype), scores.to(dtype), **options)[1].tolist() == golden["ties and duplicates"].tolist()

    def test_every_second_box_of_an_overlapping_row_is_kept(self):
        x = torch.arange(600.0) * 4
        row = torch.stack([x, torch.zeros_like(x), x + 8, torch.full_like(x, 8)], dim=1)
        scores = torch.linspace(1, 0, 600)
        assert nms(row, scores, 0.3)[1].tolist() == list(range(0, 600, 2))

    def test_a_box_without_area_suppresses_nothing(self):
        point = torch.tensor([[3.0, 3, 3, 3]]).repeat(2, 1)
        assert nms(point, torch.tensor([0.5, 0.9]), 0.5)[1].tolist() == [1, 0]

    @pytest.mark.parametrize("name", SOFT_NMS)
    def test_soft_nms_lowers_the_scores_that_compiled_mmcv_lowers(self, golden, name):
        dets, kept = soft_nms(*soft_boxes(SOFT_NMS[name]["method"]), **SOFT_NMS[name])
        assert kept.tolist() == golden[f"{name} index"].tolist()
        assert_close(dets, golden[name], 1e-6)

    def test_soft_nms_without_boxes(self):
        assert [len(tensor) for tensor in soft_nms(torch.zeros(0, 4), torch.zeros(0))] == [0, 0]


class TestGPUOperators:
    """mmdet and mmcv call these operators on a GPU, and code in torch on a CPU, with the same results."""

    @pytest.mark.parametrize("gamma, alpha", [(2.0, 0.25), (0.5, 0.9)])
    def test_sigmoid_focal_loss(self, gamma, alpha):
        torch.manual_seed(0)
        logits = (torch.randn(40, 7, dtype=torch.float64) * 8).requires_grad_()
        labels = torch.randint(8, (40,))  # 7 is the background
        loss = mmcv.ops.sigmoid_focal_loss(logits, labels, gamma, alpha, None, "sum")
        one_hot = torch.nn.functional.one_hot(labels, 8)[:, :7]
        expected = py_sigmoid_focal_loss(logits, one_hot, gamma=gamma, alpha=alpha, reduction="sum")
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(*(torch.autograd.grad(value, logits)[0] for value in (loss, expected)))

    def test_sigmoid_focal_loss_of_certain_logits_is_finite(self):
        logits = torch.tensor([[100.0, -100.0], [-100.0, 100.0]], requires_grad=True)
        mmcv.ops.sigmoid_focal_loss(logits, torch.tensor([0, 0]), 2.0, 0.25, None, "sum").backward()
        assert logits.grad.isfinite().all()

    def test_deformable_attention(self):
        torch.manual_seed(0)
        shapes = torch.tensor([[4, 5], [2, 3]])
        value, places, weights = torch.randn(2, 26, 2, 3), torch.rand(2, 6, 2, 2, 4, 2), torch.rand(2, 6, 2, 2, 4)
        inputs = [tensor.double().requires_grad_() for tensor in (value, places, weights)]
        function = DEFORMABLE.MultiScaleDeformableAttnFunction.apply
        found = function(inputs[0], shapes, torch.tensor([0, 20]), inputs[1], inputs[2], 64)
        expected = DEFORMABLE.multi_scale_deformable_attn_pytorch(inputs[0], shapes, inputs[1], inputs[2])
        assert torch.equal(found, expected)
        grads = [torch.autograd.grad(out.square().sum(), inputs) for out in (found, expected)]
        torch.testing.assert_close(*grads)


def test_a_missing_operator_is_named_when_called(stand_in):
    with pytest.raises(NotImplementedError, match=r"^deform_conv_forward is an operator of a compiled mmcv, .*install"):
        stand_in.deform_conv_forward(1)


def test_class_weights_of_the_focal_loss_are_rejected():
    with pytest.raises(NotImplementedError, match="class weights"):
        mmcv.ops.sigmoid_focal_loss(torch.zeros(2, 2), torch.zeros(2).long(), 2.0, 0.25, torch.ones(2), "sum")
