"""Nearest neighbours by image descriptors: search, classification and a contact sheet."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from ..models.classifier import XCiTClassifier
from .features import DESCRIPTORS, Features, extract_features, find_images, read_rgb


def find_nearest(queries: np.ndarray, gallery: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest descriptors of `gallery` (n, C) to each query (m, C), by cosine similarity.

    Returns:
        Indices (m, count) and similarities (m, count), in descending order.

    Raises:
        ValueError: If the gallery has fewer descriptors than `count`.
    """
    if not 1 <= count <= len(gallery):
        raise ValueError(f"{count} neighbours of {len(gallery)} images: must be 1 to {len(gallery)}")
    candidates = F.normalize(torch.from_numpy(gallery), dim=1)
    chunks = torch.from_numpy(queries).split(1024)
    nearest = [(F.normalize(chunk, dim=1) @ candidates.T).topk(count) for chunk in chunks]
    indices, similarities = (torch.cat([getattr(top, name) for top in nearest]) for name in ("indices", "values"))
    return indices.numpy(), similarities.numpy()


def knn_accuracy(
    train: np.ndarray,
    train_labels: Sequence[int],
    val: np.ndarray,
    val_labels: Sequence[int],
    k: int,
    temperature: float = 0.07,
) -> float:
    """Compute the accuracy of classification by the k nearest training images, weighted by exp(cosine / temperature).

    `train` are descriptors (n, C) of n classes, `val` descriptors (m, C) of m classes.
    Source: DINO (arXiv 2104.14294, section 4.1, after arXiv 1805.01978).
    """
    numbers, similarities = find_nearest(val, train, k)
    labels = np.asarray(train_labels)[numbers]
    votes = np.zeros((len(val), labels.max() + 1))
    # Subtracting the largest similarity avoids overflow and changes no ratio.
    weights = np.exp((similarities - similarities[:, :1]) / temperature)
    np.add.at(votes, (np.arange(len(val))[:, None], labels), weights)
    return float((votes.argmax(axis=1) == np.asarray(val_labels)).mean())


class KnnScores(NamedTuple):
    """Accuracies of classification by nearest neighbours.

    Attributes:
        classes: Names of the classes.
        train: Number of training images.
        val: Number of classified images.
        scores: Accuracy, from 0 to 1, by descriptor and number of neighbours.
        failures: Path and reason of each file that could not be read.
    """

    classes: list[str]
    train: int
    val: int
    scores: dict[str, dict[int, float]]
    failures: list[str]

    def __str__(self) -> str:
        ks = next(iter(self.scores.values()))
        lines = [f"{len(self.classes)} classes, {self.train} training images, {self.val} classified images"]
        lines.append("descriptor  " + "  ".join(f"{k}-NN".rjust(7) for k in ks))
        for name, by_k in self.scores.items():
            lines.append(f"{name:10}  " + "  ".join(f"{100 * score:6.1f}%" for score in by_k.values()))
        return "\n".join(lines)


def evaluate_knn(
    model: XCiTClassifier,
    folder: Path,
    ks: Sequence[int] = (10, 20),
    size: int = 224,
    batch_size: int = 32,
    workers: int = 2,
    scales: Sequence[float] = (1.0,),
) -> KnnScores:
    """Classify the images of folder/val/CLASS/ by their nearest neighbours in folder/train/CLASS/.

    `ks` are numbers of neighbours; see `extract_features` for the other arguments.

    Raises:
        FileNotFoundError: If a folder or its images are missing.
        ValueError: If a validation image has no class of the training images, or there are fewer training images than
            neighbours.
    """
    classes = _find_classes(folder)
    count = len(find_images(folder / "train"))
    if not 1 <= min(ks) <= max(ks) <= count:
        raise ValueError(f"-k {' '.join(map(str, ks))}: must be 1 to {count}, the number of training images")
    splits: list[Features] = []
    for split in ("train", "val"):
        features = extract_features(model, folder / split, size, batch_size, workers, scales=scales)
        if features.interrupted:
            raise KeyboardInterrupt
        splits.append(features)
    train, val = splits
    if len(train.paths) < max(ks):
        raise ValueError(f"-k {max(ks)}: only {len(train.paths)} training images can be read; {train.failures[0]}")
    train_labels, val_labels = ([classes.index(Path(path).parts[0]) for path in split.paths] for split in splits)
    scores = {
        name: {k: knn_accuracy(train.descriptors[name], train_labels, val.descriptors[name], val_labels, k) for k in ks}
        for name in DESCRIPTORS
    }
    return KnnScores(classes, len(train.paths), len(val.paths), scores, train.failures + val.failures)


def _find_classes(folder: Path) -> list[str]:
    splits = folder / "train", folder / "val"
    for split in splits:
        if not split.is_dir():
            raise FileNotFoundError(f"no folder {split}: the layout must be train/CLASS/ and val/CLASS/")
    classes = sorted(path.name for path in splits[0].iterdir() if path.is_dir())
    for split in splits:
        for path in find_images(split):
            if path.relative_to(split).parts[0] not in classes:
                raise ValueError(f"{path} is not in a class of {splits[0]}: {', '.join(classes)}")
    return classes


def contact_sheet(folder: Path, paths: Sequence[str], descriptors: np.ndarray, queries: int, count: int) -> Figure:
    """Draw evenly sampled images, one per row, and beside each its nearest neighbours with their similarities.

    Of n images, `paths` are relative to the folder and `descriptors` are (n, C). There are at most n rows, of one of
    the `queries` and `count` neighbours each.

    Raises:
        ValueError: If there are at most `count` images.
    """
    if not 1 <= count < len(paths):
        raise ValueError(f"{count} neighbours of {len(paths)} images: must be 1 to {len(paths) - 1}")
    chosen = np.unique(np.linspace(0, len(paths) - 1, min(queries, len(paths))).round().astype(int))
    numbers, similarities = find_nearest(descriptors[chosen], descriptors, count + 1)
    figure = Figure(figsize=(1.6 * (count + 1), 1.75 * len(chosen)), dpi=100, layout="constrained")
    axes = figure.subplots(len(chosen), count + 1, squeeze=False)
    for row, query in enumerate(chosen):
        is_neighbour = numbers[row] != query
        neighbours = zip(numbers[row][is_neighbour], similarities[row][is_neighbour], strict=True)
        shown = [(query, paths[query][-24:]), *((number, f"{similarity:.3f}") for number, similarity in neighbours)]
        for axis, (number, title) in zip(axes[row], shown[: count + 1], strict=True):
            image = read_rgb(folder / paths[number])
            image.thumbnail((300, 300))
            axis.imshow(np.asarray(image))
            axis.set_title(title, fontsize=7)
            axis.set_axis_off()
    return figure
