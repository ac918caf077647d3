"""Checks of a user's own data set before anything is written for a training."""

from collections.abc import Iterable, Iterator

from ..datasets import Dataset
from ..datasets.headers import read_infos
from .findings import Finding, fail


def raise_failures(findings: Iterable[Finding]) -> None:
    """Raise ValueError for the first failure."""
    for finding in findings:
        if finding.level == "FAIL":
            raise ValueError(finding.message())


def check_dataset(dataset: Dataset) -> Iterator[Finding]:
    """Check the photos of a data set, and its labels."""
    yield from _check_bands(dataset)


def _check_bands(dataset: Dataset) -> Iterator[Finding]:
    """Check that no tif has bands or bits that OpenCV would drop in silence."""
    paths = [image.path for split in dataset.splits.values() for image in split.images]
    tifs = [str(path) for path in paths if path.suffix.lower() in (".tif", ".tiff")]
    for path, info in read_infos(tifs).items():
        if info.dropped_bands or info.bits > 8:
            surplus = f"{info.dropped_bands} bands" if info.dropped_bands else f"{info.bits} bits"
            problem = f"{path} has {surplus}, which are not those of a photo"
            yield fail("D315", problem, "write a config as in docs/bands.md")
