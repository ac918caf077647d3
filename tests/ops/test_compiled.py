"""The operators in torch have the results of a compiled mmcv, on random input.

`make test-slow` runs these in an environment with a compiled mmcv.
"""

import importlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from mmcv.ops import nms, roi_align
from operator_cases import FILE, boxes, golden_values
from torch import Tensor

from xcit_mm.ops import is_compiled, mmcv_ext

pytestmark = pytest.mark.compiled
OPERATORS = ("compiled", "torch")


def use(operators: str) -> None:
    """Let mmcv.ops call its compiled operators or the operators of xcit_mm.ops."""
    extension = mmcv_ext if operators == "torch" else importlib.import_module("mmcv._ext")
    for name in ("nms", "roi_align"):
        importlib.import_module(f"mmcv.ops.{name}").ext_module = extension


@pytest.fixture(autouse=True)
def compiled(pytestconfig: pytest.Config) -> Iterator[None]:
    if not is_compiled():
        required = pytestconfig.option.markexpr == "compiled"
        (pytest.fail if required else pytest.skip)("mmcv is not compiled; make test-slow runs these where it is")
    yield
    use("compiled")


def test_golden_values_are_those_of_this_mmcv():
    with np.load(FILE) as golden:
        found = golden_values()
        assert set(golden) == set(found)
        for name, value in found.items():
            np.testing.assert_allclose(value, golden[name], rtol=1e-6, atol=1e-6, err_msg=name)


def random_rois(seed: int) -> Tensor:
    torch.manual_seed(seed)
    a, b = torch.rand(2, 60, 2) * 300 - 50
    return torch.cat([torch.randint(3, (60, 1)), torch.minimum(a, b), torch.maximum(a, b)], dim=1)


@pytest.mark.parametrize("seed", range(20))
def test_random_rois(seed):
    rois = random_rois(seed)
    aligned, ratio = seed % 2 == 0, seed % 4
    maps = torch.randn(3, 4, 40, 50, dtype=torch.float64, requires_grad=True)
    found = []
    for operators in OPERATORS:
        use(operators)
        pooled = roi_align(maps, rois.double(), (5, 7), 0.25, ratio, "avg", aligned)
        found.append((pooled, *torch.autograd.grad(pooled.square().sum(), maps)))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_random_boxes(seed):
    corners, scores = boxes(number=50 + 97 * seed, spread=50 + 20 * seed, levels=1 + seed % 3, whole=seed % 2 == 0)
    found = []
    for operators in OPERATORS:
        use(operators)
        found.append([nms(corners, scores, limit, offset=seed % 2)[1].tolist() for limit in (0.1, 0.5, 0.9)])
    assert found[0] == found[1]
