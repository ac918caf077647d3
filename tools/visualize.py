"""Draw an XCiT's activations for an image in one figure (paper, Figures 4 and D.2).

    python tools/visualize.py IMAGE MODEL --out FIGURE               # a model's name or a work folder
    python tools/visualize.py IMAGE CONFIG CHECKPOINT --out FIGURE
    python tools/visualize.py IMAGE WEIGHTS --out FIGURE

With a detector or segmentor, the config's test pipeline preprocesses the image. WEIGHTS of a backbone, in any layout,
are a path, a URL or a published name, and the image keeps its size.

The figure shows the image and, for some blocks, the principal components of the features after the block, the
magnitudes of queries and keys, and the cross-covariance matrix of each head. Weights with class attention (ImageNet,
DINO) add the attention of CLS to the patches. The model causes rings at the border: its convolutions pad with zeros.

The figure shows the first three bands of a raster, or the first, each stretched from its 2nd to its 98th percentile.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from mmengine.model import ImgDataPreprocessor
from mmengine.registry import TRANSFORMS
from torch import Tensor

from xcit_mm.archs import MEAN, STD
from xcit_mm.batch.reading import read_first_frame
from xcit_mm.checks.preflight import check_device
from xcit_mm.geo.scaling import estimate_bounds, to_bytes
from xcit_mm.models.build import model_from_weights
from xcit_mm.prediction.activations import Activations, capture_activations
from xcit_mm.prediction.figures import draw_activations
from xcit_mm.prediction.predictor import Predictor
from xcit_mm.utils.cli import cli_main
from xcit_mm.utils.configs import SUFFIXES, normalisation, raster_step, read_config, takes_rgb
from xcit_mm.utils.figures import check_figure, save_figure
from xcit_mm.weights.models import find_model, shipped_models


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", type=Path, help="an image, or a raster if the config loads rasters")
    parser.add_argument("model", help="a model's name, a work folder or a config; or weights of a backbone")
    parser.add_argument("checkpoint", nargs="?", help="a path, a URL or xcit://NAME (default: the model's own)")
    parser.add_argument("--out", type=Path, required=True, help="figure to write, .png, .jpg, .jpeg, .pdf or .svg")
    parser.add_argument(
        "--blocks", type=int, nargs="+", help="blocks to draw, from 0 (default: those that feed the pyramid)"
    )
    parser.add_argument("--device", help="default: a GPU if there is one")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    errors = (ValueError, TypeError, OSError, ModuleNotFoundError, RuntimeError)
    return cli_main(lambda: visualize(args), f"{args.out} is not written", *errors)


def visualize(args: argparse.Namespace) -> None:
    check_figure(args.out)
    check_device(args.device)
    if args.model.endswith(SUFFIXES) or args.model in shipped_models() or Path(args.model).is_dir():
        args.model, args.checkpoint = find_model(args.model, args.checkpoint)
    elif args.checkpoint is not None:
        raise ValueError(f"{args.model} is not a config (*.py): give a config and its checkpoint, or weights alone")
    activations, image = (capture_from_config if args.checkpoint else capture_from_weights)(args)
    save_figure(draw_activations(activations, image), args.out)
    print(f"blocks {', '.join(map(str, activations.blocks))} of {args.model}: {args.out}")


def capture_from_config(args: argparse.Namespace) -> tuple[Activations, Tensor]:
    """Return the activations of a config's backbone, and the image (3, h, w) to show, from 0 to 1."""
    load = raster_step(read_config(args.model, []))
    pixels = TRANSFORMS.build(load)(dict(img_path=str(args.image)))["img"] if load else read_first_frame(args.image)
    predictor = Predictor(args.model, args.checkpoint, args.device)
    backbone = predictor.model.backbone
    captured = capture_activations(backbone, lambda: predictor(pixels), args.blocks or backbone.out_indices)
    if load:
        return captured, stretch(captured.image.cpu().numpy())
    mean, std = normalisation(predictor.cfg)
    mean, std = (captured.image.new_tensor(values).view(-1, 1, 1) for values in (mean or [0.0], std or [1.0]))
    image = ((captured.image * std + mean) / 255).clip(0, 1)
    return captured, image if takes_rgb(predictor.cfg) else image.flip(0)


def stretch(bands: np.ndarray) -> Tensor:
    """Return bands (n, h, w) of any range as an image (3, h, w) from 0 to 1."""
    shown = bands[:3] if len(bands) >= 3 else bands[:1]
    valid = np.isfinite(shown)
    return torch.from_numpy(to_bytes(shown, valid, estimate_bounds([(shown, valid)])) / 255).expand(3, -1, -1)


def capture_from_weights(args: argparse.Namespace) -> tuple[Activations, Tensor]:
    """Return the activations of a backbone of weights alone, and the image (3, H, W), from 0 to 1."""
    pixels = read_first_frame(args.image)
    backbone = model_from_weights(args.model, args.device)
    if backbone.in_channels != 3:
        raise ValueError(
            f"{args.model} is for images of {backbone.in_channels} bands: give a config and its checkpoint"
        )
    rgb = torch.from_numpy(pixels[..., ::-1].copy()).permute(2, 0, 1)
    preprocess = ImgDataPreprocessor(MEAN, STD).to(next(backbone.parameters()).device)
    image = preprocess(dict(inputs=[rgb]))["inputs"]
    taps = backbone.out_indices
    if len(taps) == 1:  # a classifier of any depth, shown at the blocks that a detector would tap
        taps = sorted({max(len(backbone.blocks) * twelfths // 12, 1) - 1 for twelfths in (4, 6, 8, 12)})
    return capture_activations(backbone, lambda: backbone(image), args.blocks or taps), rgb / 255


if __name__ == "__main__":
    sys.exit(main())
