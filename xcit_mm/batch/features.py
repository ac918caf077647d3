"""Features of images from a frozen XCiT with class attention."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.model import ImgDataPreprocessor
from PIL import Image
from torch import Tensor

from ..archs import MEAN, STD
from ..checks.preflight import check_device
from ..models.build import model_from_weights
from ..models.classifier import XCiTClassifier
from ..utils.atomic import atomic_path
from ..utils.cli import progress_bar
from ..utils.errors import reason
from ..utils.images import read_image
from .inputs import IMAGE_SUFFIXES, find_files
from .loading import Loader

DESCRIPTORS = ("cls", "mean", "gem")


class Features(NamedTuple):
    """Features of n images.

    Attributes:
        paths: Paths of the images, relative to their folder.
        descriptors: For each of `DESCRIPTORS` an array (n, C): CLS token, mean and generalised mean of the patches.
        patches: Features of the patches (n, C, h, w), if requested.
        failures: Path and reason of each file that could not be read.
        interrupted: Whether Ctrl-C ended the extraction. The remaining images have no features.
    """

    paths: list[str]
    descriptors: dict[str, np.ndarray]
    patches: np.ndarray | None
    failures: list[str]
    interrupted: bool

    def __str__(self) -> str:
        width = self.descriptors[DESCRIPTORS[0]].shape[1]
        return f"{len(self.paths)} images, {', '.join(DESCRIPTORS)} of {width} numbers each"


def load_classifier(weights: str, device: str | None = None) -> XCiTClassifier:
    """Load an XCiT with class attention in eval mode, from a path, URL or `xcit://NAME` of ImageNet or DINO.

    Raises:
        ValueError: If the weights have no class attention or are not for RGB images, or the device does not exist.
    """
    check_device(device)
    model = model_from_weights(weights, device)
    if not isinstance(model, XCiTClassifier):
        raise ValueError(f"{weights} has no class attention: use weights of ImageNet or DINO")
    if model.in_channels != 3:
        raise ValueError(f"{weights} is for images of {model.in_channels} bands: use weights for RGB")
    return model


def find_images(folder: Path) -> list[Path]:
    paths = find_files(folder, IMAGE_SUFFIXES)
    if not paths:
        raise FileNotFoundError(f"no images below {folder}")
    return paths


def extract_features(
    model: XCiTClassifier,
    folder: Path,
    size: int = 224,
    batch_size: int = 32,
    workers: int = 2,
    patches: bool = False,
    out: Path | None = None,
    scales: Sequence[float] = (1.0,),
) -> Features:
    """Extract features of all images below a folder, with a progress bar. Ctrl-C keeps the completed images.

    The shorter side of an image is resized to 8/7 of `size`, then the center is cropped, as in DINO's evaluation.

    Args:
        model: Model in eval mode, see `load_classifier`.
        folder: Folder to search recursively.
        size: Side of the crop in pixels.
        batch_size: Number of images in a batch.
        workers: Number of processes that read images.
        patches: Whether to keep the features of the patches, n C h w numbers.
        out: File in .npz for `paths`, the descriptors and `patches`.
        scales: Factors by which the crop is resized. Descriptors of several scales are normalised to length 1 and
            averaged, as in DINO's evaluation of retrieval.

    Raises:
        FileNotFoundError: If there are no images.
        ValueError: If no image can be read, `out` does not end in .npz, a scale is not positive, or there are several
            with `patches`.
        KeyboardInterrupt: If Ctrl-C is pressed before the first image is completed.
    """
    if out is not None and out.suffix != ".npz":
        raise ValueError(f"--out {out}: name it .npz")
    if min(scales) <= 0 or (patches and len(scales) > 1):
        fix = "patches have one scale" if min(scales) > 0 else "must be positive"
        raise ValueError(f"--scales {' '.join(map(str, scales))}: {fix}")
    paths = find_images(folder)
    preprocess = ImgDataPreprocessor(MEAN, STD).to(next(model.parameters()).device)
    tasks = [(paths[first : first + batch_size], size) for first in range(0, len(paths), batch_size)]
    loader = Loader(_read_crops, lambda: iter(tasks), workers)
    completed, failures, batches, interrupted = [], [], [], False
    with loader, progress_bar(len(paths), "image") as progress:
        try:
            for batch in loader:
                crops = [crop for _, crop in batch if isinstance(crop, Tensor)]
                if crops:
                    batches.append(_describe(model, preprocess(dict(inputs=crops))["inputs"], patches, scales))
                for path, crop in batch:
                    if isinstance(crop, Tensor):
                        completed.append(str(path.relative_to(folder)))
                    else:
                        failures.append(f"{path}: {crop}")
                progress.update(len(batch))
        except KeyboardInterrupt:
            if not batches:
                raise
            interrupted = True
    if not batches:
        raise ValueError(f"none of the {len(paths)} images below {folder} can be read: {failures[0]}")
    # Ctrl-C may leave a batch without its paths.
    arrays: dict[str, Any] = {
        name: np.concatenate([batch[name] for batch in batches])[: len(completed)] for name in batches[0]
    }
    if out is not None:
        with atomic_path(out) as unfinished:
            np.savez(unfinished, paths=np.array(completed), **arrays)
    return Features(completed, arrays, arrays.pop("patches", None), failures, interrupted)


def read_descriptors(path: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the paths and one kind of descriptors from a file of `extract_features`.

    Raises:
        ValueError: If the file is not such a file.
    """
    try:
        with np.load(path) as content:
            return content["paths"], content[name]
    except (KeyError, ValueError, EOFError, BadZipFile):
        raise ValueError(f"{path} is not a file of `tools/features.py extract`") from None


@torch.no_grad()
def _describe(model: XCiTClassifier, images: Tensor, patches: bool, scales: Sequence[float]) -> dict[str, np.ndarray]:
    """Compute the descriptors of a batch, and the features of its patches if requested."""
    found: list[dict[str, Tensor]] = []
    for scale in scales:
        side = round(scale * images.shape[-1])
        cls, tokens = model.forward_features(F.interpolate(images, side, mode="bicubic", antialias=True))
        found.append(dict(cls=cls, mean=tokens.mean(dim=(2, 3)), gem=gem(tokens)))
    features = found[0]
    if len(scales) > 1:
        features = {name: torch.stack([F.normalize(each[name]) for each in found]).mean(dim=0) for name in DESCRIPTORS}
    if patches:
        features["patches"] = tokens
    return {name: values.float().cpu().numpy() for name, values in features.items()}


def _read_crops(task: tuple[list[Path], int]) -> list[tuple[Path, Tensor | str]]:
    paths, size = task
    return [(path, _read_crop(path, size)) for path in paths]


def _read_crop(path: Path, size: int) -> Tensor | str:
    """Return the central crop (3, size, size), RGB, 8 bits, of an image, or the reason why it cannot be read."""
    try:
        image = read_rgb(path)
    except Exception as error:  # decoders raise many types
        return reason(error)
    shorter = round(size * 8 / 7)
    scale = shorter / min(image.size)
    if max(image.size) * scale > 100 * shorter:
        return f"{image.size[0]}x{image.size[1]} pixels: too narrow to crop a square"
    image = image.resize([max(shorter, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC)
    left, top = ((side - size) // 2 for side in image.size)
    return torch.from_numpy(np.array(image.crop((left, top, left + size, top + size)))).permute(2, 0, 1)


def read_rgb(path: Path) -> Image.Image:
    return Image.fromarray(read_image(path)[..., ::-1])


def gem(features: Tensor, power: float = 3.0) -> Tensor:
    """Pool features (B, C, h, w) to their generalised mean (B, C) (arXiv 1711.02512, equation 3).

    Negative values count as 0.
    """
    return features.clamp(min=1e-6).pow(power).mean(dim=(2, 3)).pow(1 / power)
