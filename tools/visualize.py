"""One picture of what an XCiT makes of an image (paper, Figures 4 and D.2).

    python tools/visualize.py IMAGE CONFIG CHECKPOINT --out PICTURE
    python tools/visualize.py IMAGE WEIGHTS --out PICTURE

The first looks into the backbone of a detector or segmentor, which sees the image as the config's test pipeline
prepares it. The second takes weights of a backbone in any layout (a path, a URL or xcit://NAME), which
tell the architecture, and the image in its own size.

The picture holds the image and, of some blocks, the principal components of the map after it, the magnitudes of
queries and keys, and the cross-covariance matrix of each head. Weights with class attention, of ImageNet or DINO,
add the attention of CLS to the patches. Rings at the border are the model's, whose convolutions pad with zeros.

Where the config loads rasters (LoadRasterFromFile), IMAGE is one, and shown by its first three bands that the model
takes, or the first, each stretched from its 2nd to its 98th percentile.
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
from xcit_mm.geo.scaling import estimated_bounds, to_bytes
from xcit_mm.models.build import model_from_weights
from xcit_mm.prediction.predictor import Predictor
from xcit_mm.prediction.visualization import Activations, capture_activations, check_figure, draw, save_figure
from xcit_mm.utils.cli import cli_main
from xcit_mm.utils.configs import SUFFIXES, normalisation, raster_step, read_config, takes_rgb


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", type=Path)
    parser.add_argument("model", help="a config, or weights of a backbone")
    parser.add_argument("checkpoint", nargs="?", help="of the config's model: a path, a URL or xcit://NAME")
    parser.add_argument("--out", type=Path, required=True, help="file of the picture, .png, .jpg, .jpeg, .pdf or .svg")
    parser.add_argument("--blocks", type=int, nargs="+", help="0-based (default: those that feed the pyramid)")
    parser.add_argument("--device", help="default: a GPU if there is one")
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    errors = (ValueError, TypeError, OSError, ModuleNotFoundError, RuntimeError)
    return cli_main(lambda: visualize(args), f"{args.out} is not written", *errors)


def visualize(args: argparse.Namespace) -> None:
    check_figure(args.out)
    check_device(args.device)
    if args.model.endswith(SUFFIXES) != (args.checkpoint is not None):
        raise ValueError("give a config and its checkpoint, or weights alone")
    found, picture = (of_model if args.checkpoint else of_weights)(args)
    save_figure(draw(found, picture), args.out)
    print(f"blocks {', '.join(map(str, found.blocks))} of {args.model}: {args.out}")


def of_model(args: argparse.Namespace) -> tuple[Activations, Tensor]:
    load = raster_step(read_config(args.model, []))
    pixels = TRANSFORMS.build(load)(dict(img_path=str(args.image)))["img"] if load else read_first_frame(args.image)
    predict = Predictor(args.model, args.checkpoint, args.device)
    model = predict.inferencer.model
    found = capture_activations(model.backbone, lambda: predict(pixels), args.blocks or model.backbone.out_indices)
    if load:
        return found, stretched(found.image.cpu().numpy())
    cfg = predict.inferencer.cfg
    mean, std = normalisation(cfg)
    mean, std = (found.image.new_tensor(values).view(-1, 1, 1) for values in (mean or [0.0], std or [1.0]))
    picture = ((found.image * std + mean) / 255).clip(0, 1)
    return found, picture if takes_rgb(cfg) else picture.flip(0)


def stretched(bands: np.ndarray) -> Tensor:
    """Bands (n, h, w) of any range as a picture (3, h, w) from 0 to 1."""
    shown = bands[:3] if len(bands) >= 3 else bands[:1]
    valid = np.isfinite(shown)
    return torch.from_numpy(to_bytes(shown, valid, estimated_bounds([(shown, valid)])) / 255).expand(3, -1, -1)


def of_weights(args: argparse.Namespace) -> tuple[Activations, Tensor]:
    pixels = read_first_frame(args.image)
    backbone = model_from_weights(args.model, args.device)
    if backbone.in_channels != 3:
        raise ValueError(
            f"{args.model} is for images of {backbone.in_channels} bands: give a config and its checkpoint"
        )
    rgb = torch.from_numpy(pixels[..., ::-1].copy()).permute(2, 0, 1)
    prepare = ImgDataPreprocessor(MEAN, STD).to(next(backbone.parameters()).device)
    image = prepare(dict(inputs=[rgb]))["inputs"]
    taps = backbone.out_indices
    if len(taps) == 1:  # a classifier's, of any depth: shown where a detector would tap it
        taps = sorted({max(len(backbone.blocks) * twelfths // 12, 1) - 1 for twelfths in (4, 6, 8, 12)})
    return capture_activations(backbone, lambda: backbone(image), args.blocks or taps), rgb / 255


if __name__ == "__main__":
    sys.exit(main())
