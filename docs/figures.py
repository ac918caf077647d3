"""Make the figures of docs/how-xcit-works.md, and the image at the top of the README.

    python docs/figures.py                                      # docs/figures/*.svg, the table of the page
    python docs/figures.py --hero IMAGE CONFIG CHECKPOINT       # docs/hero.jpg

The second command draws the predictions of a trained detector or segmentor over an image, beside the principal
components of the features after its first tapped block. For the features the image is enlarged to `HERO_SIDE` pixels.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import cv2
import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from xcit_mm.archs import ARCHS

HERE = Path(__file__).parent
ORDERS = ("token attention", "plain", "gram", "covariance")
# Number of tokens by image and patch size.
IMAGES = {"224x224, p16": 196, "224x224, p8": 784, "512x512, p16": 1024, "800x1344, p16": 4200}
HERO_SIDE, PANEL = 960, 600  # widths in pixels: of the trunk's input and of each half of the output

BLUE, RED, GREEN, GREY, YELLOW = "#3b6fb5", "#c8553d", "#4b8f5c", "#8a8f98", "#e0a93b"
PALE = {BLUE: "#dbe6f5", RED: "#f6ddd7", GREEN: "#dcecdf", GREY: "#eceef0", YELLOW: "#faeed3"}


def multiplications(order: str, tokens: int, dim: int, heads: int) -> int:
    """Return the multiply-adds of an attention, (tokens, dim) -> (tokens, dim), with its linear layers.

    Raises:
        KeyError: If the order is unknown.
    """
    n, c, square, cube = tokens, dim, tokens * dim**2, dim**3
    return {
        "token attention": 4 * square + 2 * n**2 * c,
        "plain": 4 * square + 2 * square // heads,
        "gram": 3 * square + square // heads + cube + cube // heads,
        "covariance": 2 * square + 3 * cube + 2 * cube // heads,
    }[order]


def crossing(first: str, second: str, heads: int, dim: int = 768) -> float:
    """Return the tokens per channel above which the second order multiplies less than the first."""
    constant, slope = [], []
    for order in (first, second):
        start = multiplications(order, 0, dim, heads)
        constant.append(start / dim**3)
        slope.append((multiplications(order, dim, dim, heads) - start) / dim**3)
    return (constant[1] - constant[0]) / (slope[0] - slope[1])


def table() -> str:
    """Return a table of the millions of multiplications of an attention of XCiT-S for `IMAGES`, in Markdown."""
    dim, _, heads = ARCHS["s12"][:3]
    lines = [f"| image | tokens N | {' | '.join(ORDERS)} |", "|---" * (2 + len(ORDERS)) + "|"]
    for name, tokens in IMAGES.items():
        counts = [f"{multiplications(order, tokens, dim, heads) / 1e6:,.0f}" for order in ORDERS]
        lines.append(f"| {name} | {tokens} | {' | '.join(counts)} |")
    return "\n".join(lines)


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure with axes in inches, y upwards."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return figure, axes


def box(
    axes: Axes, x: float, y: float, wide: float, high: float, text: str = "", colour: str = GREY, **font: Any
) -> None:
    """Draw a rectangle with lower left corner (x, y) and a text in its centre."""
    axes.add_patch(Rectangle((x, y), wide, high, facecolor=PALE[colour], edgecolor=colour, linewidth=1.2))
    axes.text(x + wide / 2, y + high / 2, text, ha="center", va="center", **{"fontsize": 10, **font})


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **options: Any) -> None:
    style = dict(arrowstyle="-|>", mutation_scale=10, color="0.3", linewidth=1.1, shrinkA=0, shrinkB=0)
    axes.add_patch(FancyArrowPatch(start, end, **{**style, **options}))


def path_of_an_image() -> Figure:
    """Draw the path from an image to the pyramid, with shapes, for 12 blocks and patches of 16 pixels."""
    figure, axes = canvas(5, 6.3)
    box(axes, 0.2, 5.65, 1.9, 0.45, "image  3 x H x W")
    box(axes, 0.2, 4.85, 1.9, 0.5, "stem: four 3x3\nconvolutions, stride 2", YELLOW, fontsize=9)
    arrow(axes, (1.15, 5.65), (1.15, 5.35))
    box(axes, 0.2, 4.05, 1.9, 0.5, "tokens  N x C\n+ positional encoding", fontsize=9)
    arrow(axes, (1.15, 4.85), (1.15, 4.55))
    axes.text(2.25, 5.1, "N = H/16 · W/16 tokens\nof C = 384 channels (S12)", fontsize=9, va="center", color="0.3")
    high = 0.24
    levels = {4: (4, "two transposed\nconvolutions", 0.62), 6: (8, "one transposed\nconvolution", 0.48)}
    levels |= {8: (16, "as it is", 0.36), 12: (32, "max-pooling", 0.26)}
    places = {4: 3.15, 6: 2.35, 8: 1.6, 12: 0.6}
    arrow(axes, (1.15, 4.05), (1.15, 3.75))
    for number in range(1, 13):
        y = 3.75 - number * (high + 0.03)
        box(axes, 0.2, y, 1.9, high, f"block {number}: XCA, LPI, MLP", BLUE if number in levels else GREY, fontsize=8.5)
        if number in levels:
            stride, how, side = levels[number]
            middle = places[number]
            arrow(axes, (2.1, y + high / 2), (2.42, middle), arrowstyle="-")
            axes.text(2.47, middle, how, fontsize=8.5, va="center")
            arrow(axes, (3.47, middle), (3.62, middle))
            box(axes, 3.66, middle - side / 2, side * 1.25, side, "", GREEN)
            axes.text(4.48, middle, f"C x\nH/{stride} x\nW/{stride}", fontsize=9, va="center")
    axes.text(2.47, 3.72, "pyramid", fontsize=11, weight="bold", va="center")
    axes.text(0.2, 0.2, "taps in blue: after blocks 4, 6, 8 and 12", fontsize=9, color="0.3")
    return figure


def orders_of_computing() -> Figure:
    """Draw the matrices of the three attentions to scale, for one head: N tokens, d of C channels."""
    figure, axes = canvas(5, 6.1)
    n, c, d = 1.25, 0.62, 0.36

    def line(y: float, title: str, note: str) -> None:
        axes.text(0.15, y, title, fontsize=11, weight="bold", va="top")
        axes.text(0.15, y - 0.24, note, fontsize=9, color="0.3", va="top")

    def matrix(x: float, middle: float, rows: float, columns: float, name: str, colour: str = BLUE) -> float:
        box(axes, x, middle - rows / 2, columns, rows, name, colour)
        return x + columns + 0.1

    def sign(x: float, middle: float, text: str) -> float:
        axes.text(x + 0.07, middle, text, fontsize=14, ha="center", va="center")
        return x + 0.24

    line(6.0, "Token attention (ViT)", "softmax of N x N dot products: quadratic in N")
    y = 4.78
    x = sign(matrix(sign(matrix(0.15, y, n, d, "Q"), y, "·"), y, d, n, "Kᵀ"), y, "→")
    x = sign(matrix(x, y, n, n, "A\nN x N", RED), y, "·")
    matrix(x, y, n, d, "V", BLUE)

    line(3.95, "Cross-covariance attention, plain", "softmax of d x d cosines of channels: linear in N")
    y = 2.75
    x = sign(matrix(sign(matrix(0.15, y, d, n, "Qᵀ"), y, "·"), y, n, d, "K"), y, "→")
    x = sign(matrix(x, y, d, d, "A", RED), y, "·")
    matrix(x, y, d, n, "Vᵀ", BLUE)

    line(
        1.93, "The same, from the covariance of the tokens", "A from S; M does all the rest: out = X · M. No Q, K or V"
    )
    y = 0.73
    x = sign(matrix(sign(matrix(0.15, y, c, n, "Xᵀ"), y, "·"), y, n, c, "X"), y, "→")
    x = sign(matrix(x, y, c, c, "S\nC x C", GREEN), y, "→")
    x = matrix(x, y, c, c, "M\nC x C", RED)
    return figure


def work_of_the_orders() -> Figure:
    """Plot the multiplications per token of XCiT-S against the number of tokens."""
    dim, _, heads = ARCHS["s12"][:3]
    figure = Figure(figsize=(5, 4.7), layout="constrained")
    axes = figure.subplots()
    tokens = np.unique(np.geomspace(100, 20000, 300).astype(int))
    for order, colour, style in zip(ORDERS, (GREY, BLUE, YELLOW, GREEN), ("--", "-", "-", "-"), strict=True):
        work = [multiplications(order, int(n), dim, heads) / n / dim**2 for n in tokens]
        axes.plot(tokens, work, color=colour, linestyle=style, linewidth=2.2, label=order)
    for name, n in IMAGES.items():
        axes.axvline(n, color="0.8", linewidth=1, zorder=0)
        axes.text(n, 0.1, f" {name}", rotation=90, fontsize=8, color="0.35", ha="right", va="bottom")
    axes.set(xscale="log", ylim=(0, 10), xlim=(100, 20000), xlabel="tokens N")
    axes.set_ylabel("multiplications for each token / C²")
    axes.legend(fontsize=9.5, loc="upper right", framealpha=1)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


FIGURES = dict(path=path_of_an_image, orders=orders_of_computing, work=work_of_the_orders)


def principal_components(features: torch.Tensor) -> torch.Tensor:
    """Return the first three principal components of a map (C, h, w), from 0 to 1 between percentiles, (3, h, w)."""
    vectors = features.flatten(1).T
    components = torch.linalg.svd(vectors - vectors.mean(dim=0), full_matrices=False)[0][:, :3]
    low, high = torch.quantile(components, torch.tensor([0.02, 0.98]), dim=0)
    return ((components - low) / (high - low)).clamp(0, 1).T.reshape(3, *features.shape[1:])


def hero(image: Path, config: str, checkpoint: str) -> np.ndarray:
    """Return the predictions drawn over an image, beside its principal components: (H, 2 * PANEL + 12, 3), BGR."""
    from mmengine.model import ImgDataPreprocessor

    from xcit_mm.archs import MEAN, STD
    from xcit_mm.prediction import Instances, Prediction, Predictor

    predict = Predictor(config, checkpoint, "cpu")
    found = predict(image)
    pixels = found.image
    ratio = pixels.shape[0] / pixels.shape[1]
    panel = PANEL, round(PANEL * ratio)
    # Resized before drawing, so that lines and labels keep their size.
    shown = cv2.resize(pixels, panel, interpolation=cv2.INTER_AREA)
    if found.segmentation is not None:
        labels = cv2.resize(found.segmentation, panel, interpolation=cv2.INTER_NEAREST)
        drawn = Prediction(shown, None, labels, found.names, found.palette).draw(labels=False)
    else:
        found = found.above(0.5)
        masks = found.masks
        if masks is not None:
            masks = np.array([cv2.resize(mask.astype(np.uint8), panel) > 0 for mask in masks])
        boxes = found.boxes * np.tile(np.divide(panel, pixels.shape[1::-1]), 2)
        instances = Instances(boxes, found.scores, found.labels, masks)
        drawn = Prediction(shown, instances, None, found.names, found.palette).draw(alpha=0.45)
    backbone = predict.model.backbone
    size = HERO_SIDE, round(HERO_SIDE * ratio)
    rgb = torch.from_numpy(cv2.resize(pixels, size, interpolation=cv2.INTER_CUBIC)[..., ::-1].copy())
    inputs = ImgDataPreprocessor(MEAN, STD)(dict(inputs=[rgb.permute(2, 0, 1)]))["inputs"]
    maps: list[torch.Tensor] = []
    block = backbone.blocks[backbone.out_indices[0]]
    hook = block.register_forward_hook(lambda module, args, tokens: maps.append(tokens))
    with torch.no_grad():
        grid = backbone(inputs)[2].shape[2:]  # the third map has the stride of p16's tokens
    hook.remove()
    features = maps[0][0].T.unflatten(1, grid)
    colours = (255 * principal_components(features).permute(1, 2, 0).numpy()[..., ::-1]).astype(np.uint8)
    gap = np.full((panel[1], 12, 3), 255, np.uint8)
    return np.hstack([drawn, gap, cv2.resize(colours, panel, interpolation=cv2.INTER_NEAREST)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hero", nargs=3, metavar=("IMAGE", "CONFIG", "CHECKPOINT"))
    parser.add_argument("--out", type=Path, default=HERE, help="folder (default: %(default)s)")
    args = parser.parse_args()
    if args.hero:
        try:
            image = hero(Path(args.hero[0]), *args.hero[1:])
        except (ValueError, OSError) as error:
            sys.exit(f"{type(error).__name__}: {error}")
        args.out.mkdir(parents=True, exist_ok=True)
        if not cv2.imwrite(str(args.out / "hero.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 90]):
            sys.exit(f"{args.out / 'hero.jpg'} cannot be written: check its folder and the disk")
        return
    # Makes the files reproducible.
    matplotlib.rcParams["svg.hashsalt"] = "xcit_mm"
    (args.out / "figures").mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES.items():
        figure().savefig(args.out / "figures" / f"{name}.svg", metadata=dict(Date=None), facecolor="white")
    print(table())


if __name__ == "__main__":
    main()
