"""Descriptors of images from a frozen XCiT, and what their neighbourhoods tell."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from mmengine.model import ImgDataPreprocessor
from mmengine.utils import ProgressBar
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..archs import MEAN, STD
from ..models.classifier import XCiTClassifier
from .inputs import IMAGES, files_below, read_image

__all__ = ["DESCRIPTORS", "Features", "contact_sheet", "extract", "find_images", "gem", "knn_accuracy", "nearest"]

DESCRIPTORS = ("cls", "mean", "gem")


class Features(NamedTuple):
    """Features of n images.

    Attributes:
        paths: Of the images, relative to their folder.
        descriptors: For each of `DESCRIPTORS` (n, C): the CLS token, and the patches' mean and generalised mean.
        patches: The patches' features (n, C, h, w), if they were asked for.
        failed: A line for each file that could not be read.
        interrupted: Whether Ctrl-C ended it: the other images are not among these.
    """

    paths: list[str]
    descriptors: dict[str, np.ndarray]
    patches: np.ndarray | None
    failed: list[str]
    interrupted: bool


def find_images(folder: Path) -> list[Path]:
    """Images below a folder, sorted.

    Raises:
        FileNotFoundError: If there are none.
    """
    found = files_below(folder, IMAGES)
    if not found:
        raise FileNotFoundError(f"no images below {folder}")
    return found


def extract(
    model: XCiTClassifier, folder: Path, size: int = 224, batch_size: int = 32, workers: int = 2, patches: bool = False
) -> Features:
    """Features of all images below a folder, with a progress bar; Ctrl-C keeps those that are done.

    An image is resized to 8/7 of `size` at its shorter side and cropped to the middle (as in DINO's evaluation).

    Args:
        model: In eval mode, on the device to use.
        folder: Searched to its depth.
        size: Side of the square that the model sees, in pixels.
        batch_size: Images at a time.
        workers: Processes that read images.
        patches: Whether to keep the features of the patches, n C h w numbers.

    Raises:
        FileNotFoundError: If there are no images.
        ValueError: If none can be read.
    """
    paths = find_images(folder)
    device = next(model.parameters()).device
    prepare = ImgDataPreprocessor(MEAN, STD).to(device)
    loader = DataLoader(_Images(paths, size), batch_size, num_workers=workers, collate_fn=list)
    kept, failed, batches, interrupted = [], [], [], False
    progress = ProgressBar(len(paths))
    try:
        for batch in loader:
            images = [image for _, image in batch if isinstance(image, Tensor)]
            if images:
                batches.append(_describe(model, prepare(dict(inputs=images))["inputs"], patches))
            for number, image in batch:
                if isinstance(image, Tensor):
                    kept.append(str(paths[number].relative_to(folder)))
                else:
                    failed.append(f"{paths[number]}: {image}")
            progress.update(len(batch))
    except KeyboardInterrupt:
        if not batches:
            raise
        interrupted = True
    if not batches:
        raise ValueError(f"none of the {len(paths)} images below {folder} can be read: {failed[0]}")
    joined = {name: np.concatenate([one[name] for one in batches])[: len(kept)] for name in batches[0]}
    found = joined.pop("patches", None)
    return Features(kept, joined, found, failed, interrupted)


def _describe(model: XCiTClassifier, images: Tensor, patches: bool) -> dict[str, np.ndarray]:
    """Descriptors of a batch, and the patches' features if they are asked for."""
    with torch.no_grad():
        cls, tokens = model.forward_features(images)
    found = dict(cls=cls, mean=tokens.mean(dim=(2, 3)), gem=gem(tokens))
    if patches:
        found["patches"] = tokens
    return {name: values.float().cpu().numpy() for name, values in found.items()}


class _Images(Dataset):
    """Images (3, size, size), RGB, 8 bit, with their numbers, or the reason why one cannot be read."""

    def __init__(self, paths: list[Path], size: int) -> None:
        self.paths = paths
        self.size = size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[int, Tensor | str]:
        try:
            image = _read(self.paths[number])
        except Exception as error:  # decoders raise nearly anything: the other images are done
            return number, " ".join(str(error).split())
        shorter = round(self.size * 8 / 7)
        scale = shorter / min(image.size)
        if max(image.size) * scale > 100 * shorter:
            return number, f"{image.size[0]}x{image.size[1]} pixels: too narrow to crop a square from"
        image = image.resize([max(shorter, round(side * scale)) for side in image.size], Image.Resampling.BICUBIC)
        left, top = ((side - self.size) // 2 for side in image.size)
        pixels = np.array(image.crop((left, top, left + self.size, top + self.size)))
        return number, torch.from_numpy(pixels).permute(2, 0, 1)


def _read(path: Path) -> Image.Image:
    return Image.fromarray(read_image(path)[..., ::-1])


def gem(features: Tensor, power: float = 3.0) -> Tensor:
    """Generalised-mean pooling (arXiv 1711.02512, equation 3), (B, C, h, w) -> (B, C); negative values count as 0."""
    return features.clamp(min=1e-6).pow(power).mean(dim=(2, 3)).pow(1 / power)


def nearest(queries: np.ndarray, gallery: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearest of `gallery` (n, C) to each of `queries` (m, C), with their cosine similarities, each (m, count).

    Raises:
        ValueError: If the gallery holds fewer.
    """
    if not 1 <= count <= len(gallery):
        raise ValueError(f"{count} neighbours of {len(gallery)} images: must be 1 to {len(gallery)}")
    candidates = F.normalize(torch.from_numpy(gallery), dim=1)
    found = [(F.normalize(part, dim=1) @ candidates.T).topk(count) for part in torch.from_numpy(queries).split(1024)]
    return torch.cat([one.indices for one in found]).numpy(), torch.cat([one.values for one in found]).numpy()


def knn_accuracy(
    train: np.ndarray,
    train_labels: Sequence[int],
    val: np.ndarray,
    val_labels: Sequence[int],
    k: int,
    temperature: float = 0.07,
) -> float:
    """Share of right votes of the k nearest training images, each of weight exp(cosine / temperature).

    Source: DINO (arXiv 2104.14294, section 4.1, after arXiv 1805.01978).

    Args:
        train: Descriptors (n, C).
        train_labels: Class numbers, n of them.
        val: Descriptors (m, C).
        val_labels: Class numbers, m of them.
        k: Number of neighbours.
        temperature: Of the weights.
    """
    numbers, similarities = nearest(val, train, k)
    labels = np.asarray(train_labels)[numbers]
    votes = np.zeros((len(val), labels.max() + 1))
    # Less the largest, lest they overflow: only the ratios count.
    weights = np.exp((similarities - similarities[:, :1]) / temperature)
    for rank in range(k):
        votes[np.arange(len(val)), labels[:, rank]] += weights[:, rank]
    return float((votes.argmax(axis=1) == np.asarray(val_labels)).mean())


def contact_sheet(folder: Path, paths: Sequence[str], descriptors: np.ndarray, queries: int, count: int) -> Figure:
    """Images, evenly chosen, at the left of a row each, and their nearest others with the cosine similarities.

    Args:
        folder: That `paths` are relative to.
        paths: Of n images.
        descriptors: Theirs, (n, C).
        queries: Number of rows, at most n.
        count: Neighbours a row.

    Raises:
        ValueError: If there are fewer other images.
    """
    if not 1 <= count < len(paths):
        raise ValueError(f"{count} neighbours of {len(paths)} images: must be 1 to {len(paths) - 1}")
    chosen = np.unique(np.linspace(0, len(paths) - 1, min(queries, len(paths))).round().astype(int))
    numbers, similarities = nearest(descriptors[chosen], descriptors, count + 1)
    figure = Figure(figsize=(1.6 * (count + 1), 1.75 * len(chosen)), dpi=100, layout="constrained")
    axes = figure.subplots(len(chosen), count + 1, squeeze=False)
    for row, query in enumerate(chosen):
        others = numbers[row] != query
        found = zip(numbers[row][others], similarities[row][others], strict=True)
        shown = [(query, paths[query][-24:]), *((number, f"{similarity:.3f}") for number, similarity in found)]
        for axis, (number, title) in zip(axes[row], shown[: count + 1], strict=True):
            image = _read(folder / paths[number])
            image.thumbnail((300, 300))
            axis.imshow(np.asarray(image))
            axis.set_title(title, fontsize=7)
            axis.set_axis_off()
    return figure
