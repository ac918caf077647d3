"""Images for calibration and comparison: of the test set, of a user, or synthetic."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import DATASETS, init_default_scope
from torch import Tensor

from ..prediction.listing import find_items
from ..utils.configs import tested_dataset, type_name
from ..utils.errors import reason

MAX_TEST_IMAGES = 8  # for a comparison
MAX_CALIBRATION_IMAGES = 100
SYNTHETIC_SIZES = ((320, 480), (203, 330), (256, 128), (96, 161))  # height, width


def synthetic_image(channels: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Return smooth noise and rectangles in normalised values, (1, channels, height, width)."""
    coarse = torch.randn(1, channels, height // 16 + 1, width // 16 + 1, generator=generator)
    image = F.interpolate(coarse, (height, width), mode="bilinear")
    for _ in range(12):
        y, x = (int(torch.randint(length - 16, (), generator=generator)) for length in (height, width))
        tall, wide = (int(torch.randint(8, 96, (), generator=generator)) for _ in range(2))
        image[..., y : y + tall, x : x + wide] = torch.randn(channels, 1, 1, generator=generator)
    return image


def tested_paths(cfg: Config, count: int | None) -> list[str]:
    """Return the paths of the first `count` images of the test set, or of all; no path if it is missing."""
    try:
        dataset = DATASETS.build(cfg.test_dataloader.dataset)
    except FileNotFoundError:
        return []
    paths = [dataset.get_data_info(number)["img_path"] for number in range(len(dataset))[:count]]
    return [path for path in paths if Path(path).is_file()]


def sample_inputs(cfg: Config, model: Any) -> tuple[str, list[Tensor]]:
    """Describe and return the inputs (1, C, H, W) of a file for the images of `sample_images`."""
    description, samples = sample_images(cfg)
    if isinstance(samples[0], str):
        samples = [torch.from_numpy(image) for image in model_inputs(cfg, model, samples)]
    return description, samples


def sample_images(cfg: Config) -> tuple[str, list[Any]]:
    """Describe and return images for a comparison: paths in the test set, or else synthetic images (1, C, H, W)."""
    if paths := tested_paths(cfg, MAX_TEST_IMAGES):
        return f"{len(paths)} images of the test set", paths
    channels, generator = cfg.model.backbone.get("in_channels", 3), torch.Generator().manual_seed(0)
    images = [synthetic_image(channels, *size, generator) for size in SYNTHETIC_SIZES]
    return f"{len(images)} synthetic images", images


def calibration_paths(cfg: Config, images: str) -> list[str]:
    """Return the paths of calibration images, each of which the config's test pipeline can read.

    Of more than 100 images, every n-th is taken.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If a file is a video or cannot be read.
    """
    inputs = find_items([images]).items
    inputs = inputs[:: -(-len(inputs) // MAX_CALIBRATION_IMAGES)]
    init_default_scope(cfg.default_scope)  # for the names of the pipeline's steps
    for input_ in inputs:
        if input_.is_video:
            raise ValueError(f"calibration image {input_.path}: it is a video, give images")
        try:
            load_batch(cfg, input_.path)
        except Exception as error:  # readers and transforms raise nearly anything
            raise ValueError(f"calibration image {input_.path} cannot be read: {reason(error)[:200]}") from None
    return [input_.path for input_ in inputs]


def load_batch(cfg: Config, path: str) -> dict[str, Any]:
    """Return a batch of one image, loaded by a config's test pipeline without its annotations."""
    pipeline = Compose([step for step in tested_dataset(cfg)["pipeline"] if type_name(step) != "LoadAnnotations"])
    return pseudo_collate([pipeline(dict(img_path=path, img_id=0))])


def model_inputs(cfg: Config, model: Any, paths: Iterable[str]) -> Iterator[np.ndarray]:
    """Preprocess images by the config's test pipeline and data preprocessor to inputs (1, C, H, W) of its file."""
    for path in paths:
        yield to_model_input(model.data_preprocessor(load_batch(cfg, path), False), cfg).numpy()


def to_model_input(data: dict, cfg: Config) -> Tensor:
    """Return the input (B, C, h, w) of a file from a preprocessed batch, without padding if the file pads."""
    image: Tensor = data["inputs"]
    if not file_pads(cfg):
        return image
    height, width = data["data_samples"][0].img_shape[:2]
    return image[..., :height, :width].contiguous()


def file_pads(cfg: Config) -> bool:
    """Return whether an exported file pads images: if it clips boxes before the padding, or ignores the padding."""
    return cfg.default_scope == "mmdet" or cfg.model.backbone.get("ignore_padding", False)


def preprocess_synthetic(cfg: Config, model: Any, images: Tensor) -> dict[str, Any]:
    """Return a batch of synthetic images (B, C, H, W), which the model's own data preprocessor normalises and pads."""
    if cfg.default_scope == "mmseg":
        from mmseg.structures import SegDataSample as DataSample
    else:
        from mmdet.structures import DetDataSample as DataSample
    pixels = images * 64 + 128 if hasattr(model.data_preprocessor, "std") else images  # bands may be normalised before
    size = tuple(images.shape[2:])
    meta = dict(img_shape=size, ori_shape=size, scale_factor=(1.0, 1.0))
    samples = [DataSample(metainfo=meta) for _ in images]
    return model.data_preprocessor(dict(inputs=list(pixels), data_samples=samples), False)
