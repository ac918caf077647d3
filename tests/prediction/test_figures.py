"""docs/how-xcit-works.md and the figures of docs/figures.py agree with the code."""

import importlib.util
import sys
from types import ModuleType

import complexity
import cv2
import numpy as np
import pytest
import torch
from paths import ROOT
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from xcit_mm.archs import PATCH_SIZES
from xcit_mm.models.attention import XCA, choose_implementation
from xcit_mm.models.pyramid import STRIDES, pyramid_levels
from xcit_mm.prediction import Prediction, Predictor
from xcit_mm.prediction.results import Instances

PAGE = (ROOT / "docs" / "how-xcit-works.md").read_text()


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("implementation", ["plain", "gram", "covariance"])
def test_the_implementations_multiply_as_often_as_the_page_says(implementation, figures):
    tokens, dim, heads = 300, 96, 4
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        XCA(dim, heads, implementation=implementation)(torch.rand(1, tokens, dim))
    assert counter.get_total_flops() / 2 == pytest.approx(
        figures.multiplications(implementation, tokens, dim, heads), rel=0.02
    )


def test_the_table_of_the_page_is_current(figures):
    assert figures.table() in PAGE


def test_where_the_implementations_cross(figures):
    assert figures.crossing("plain", "gram", 8) == pytest.approx(1) and "from $N = C$ on" in PAGE
    for pair in (("plain", "covariance"), ("gram", "covariance")):
        assert f"from $N = {figures.crossing(*pair, 8):.2f}\\,C$" in PAGE
    assert "below $N = 1.5\\,C$" in PAGE and "above $2.5\\,C$" in PAGE
    chosen = [choose_implementation(torch.empty(1, tokens, 100)) for tokens in (149, 150, 249, 250)]
    assert chosen == ["plain", "gram", "gram", "covariance"]


@pytest.mark.parametrize(
    "size", [224, pytest.param(448, marks=pytest.mark.slow), pytest.param(896, marks=pytest.mark.slow)]
)
def test_multiplications_of_the_whole_model(size):
    plain, auto = (complexity.count(complexity.build("s12", 16, name), size) for name in ("plain", "auto"))
    assert f"| {size}x{size} | {(size // 16) ** 2} | {plain:.2f} | {auto:.2f} |" in PAGE


@pytest.mark.parametrize("column, patch_size", enumerate(PATCH_SIZES, start=3))
def test_the_pyramid_has_the_layers_of_the_page(column, patch_size):
    rows = [line.split("|") for line in PAGE.splitlines() if line.startswith("| `fpn")]
    words = {0: "as it is", 1: "one", 2: "two"}
    levels = pyramid_levels(8, patch_size, STRIDES, dict(type="BN"))
    assert [row[1].strip(" `") for row in rows] == list(levels)
    for row, level in zip(rows, levels.values(), strict=True):
        pools = [module.kernel_size for module in level if isinstance(module, nn.MaxPool2d)]
        upsamplings = sum(isinstance(module, nn.ConvTranspose2d) for module in level)
        expected = f"max-pooling {pools[0]}x{pools[0]}" if pools else words[upsamplings]
        assert row[column].strip().startswith(expected)


def test_texts_lie_within_their_figure(figures):
    assert {f"figures/{name}.svg" for name in figures.FIGURES} == {
        part.split(")")[0] for part in PAGE.split("](") if part.startswith("figures/")
    }
    for make in figures.FIGURES.values():
        figure = make()
        figure.draw_without_rendering()
        for text in figure.axes[0].texts:
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


@pytest.mark.parametrize("kind", ["seg", "det"])
def test_the_readme_s_image(kind, figures, models, tmp_path):
    path = tmp_path / "noise.png"
    pixels = np.random.default_rng(0).integers(0, 256, (72, 96, 3)).astype(np.uint8)
    cv2.imwrite(str(path), pixels)
    image = figures.hero(path, *models[kind])
    assert image.shape == (450, 1212, 3)
    drawn, components = image[:, :600], image[:, 612:]
    resized = cv2.resize(pixels, (600, 450), interpolation=cv2.INTER_AREA)
    changed = (drawn != resized).any(axis=2).mean()
    # A detector without high scores draws nothing, and a segmentation map covers every pixel.
    assert changed > 0.9 if kind == "seg" else changed == 0
    assert components.std() > 20 and len(np.unique(components.reshape(-1, 3), axis=0)) <= 60 * 45


def test_the_readme_s_image_of_a_detector_without_masks(figures, models, tmp_path, monkeypatch):
    cv2.imwrite(str(tmp_path / "black.png"), np.zeros((72, 96, 3), np.uint8))
    boxes = np.array([[10.0, 10, 60, 50], [0, 0, 30, 30]], np.float32)
    found = Instances(boxes, np.array([0.9, 0.1]), np.array([1, 0]), None)
    monkeypatch.setattr(Predictor, "__call__", lambda predictor, image: Prediction(image, found, None, ()))
    drawn = figures.hero(tmp_path / "black.png", *models["det"])[:, :600]
    assert drawn[60:320, 60:380].any() and not drawn[:40, :40].any()  # the box of the high score


def test_an_image_that_cannot_be_written_is_named(figures, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "hero", lambda *args: np.zeros((9, 9, 3), np.uint8))
    monkeypatch.setattr(sys, "argv", ["figures.py", "--hero", "a", "b", "c", "--out", str(tmp_path)])
    (tmp_path / "hero.jpg").mkdir()
    with pytest.raises(SystemExit, match=r"hero.jpg cannot be written: check its folder"):
        figures.main()
