"""A data set for training: its classes, and for each split the images with their labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..utils.errors import counted
from .coco import CocoFile, write_coco

PAGE = "docs/your-own-data.md"
IGNORED = 255
"""The label of pixels in segmentation maps that neither train nor score."""


@dataclass
class Maps:
    """A split with segmentation maps.

    Attributes:
        arguments: The arguments with which mmseg reads it.
        images: Paths of the images below their folder, without suffixes.
    """

    arguments: dict[str, Any]
    images: list[Path]

    @property
    def paths(self) -> list[Path]:
        """The files of the images."""
        folder = Path(self.arguments["data_prefix"]["img_path"])
        return [folder / f"{name}{self.arguments['img_suffix']}" for name in self.images]


@dataclass
class Dataset:
    """A data set for training.

    In annotations, category 1 is the first class. `file_name` is an absolute path, or a path
    relative to the folder of `write_dataset`.

    Attributes:
        classes: Names of the classes.
        train: The training split.
        val: The validation split, or None.
        left_out: Number of validation objects that belong to other categories.
    """

    classes: tuple[str, ...]
    train: CocoFile | Maps
    val: CocoFile | Maps | None = None
    left_out: int = 0

    def describe(self) -> str:
        """Return one line that says what is trained on, held out and left out."""
        parts = [counted(len(self.train.images), "image")]
        if isinstance(self.train, CocoFile):
            labelled = {annotation.image_id for annotation in self.train.annotations}
            parts.append(f"{len(self.train.images) - len(labelled):,} without objects")
            parts.append(counted(len(self.train.annotations), "object"))
        parts.append(counted(len(self.classes), "class"))
        held_out = counted(len(self.val.images), "image") if self.val else "nothing"
        parts.append(f"held out {held_out}")
        if self.left_out:
            parts.append(f"left out {counted(self.left_out, 'object')} of other classes")
        return ", ".join(parts)


def write_dataset(
    dataset: Dataset, folder: Path, splits: tuple[str, ...] = ("train", "val")
) -> None:
    """Write the objects of splits of a data set to `train.json` and `val.json` in a folder.

    Segmentation maps stay where they are. The json of a split without objects is removed.
    """
    for name in splits:
        split = getattr(dataset, name)
        path = folder / f"{name}.json"
        if isinstance(split, CocoFile):
            write_coco(path, dataset.classes, split.images, split.annotations)
        else:
            path.unlink(missing_ok=True)  # from an earlier call


def arguments_of(dataset: Dataset, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the arguments with which mmdet or mmseg reads 'train' and, if there is one, 'val'.

    Args:
        folder: The folder with `train.json` and `val.json`. Their images have paths relative to it.
    """
    arguments: dict[str, dict[str, Any]] = {}
    for name, split in (("train", dataset.train), ("val", dataset.val)):
        if isinstance(split, Maps):
            arguments[name] = split.arguments
        elif split is not None:
            ann_file = str(folder / f"{name}.json")
            arguments[name] = dict(ann_file=ann_file, data_prefix=dict(img=str(folder)))
    return arguments


def read_text(path: Path) -> str:
    """Read a text file in UTF-8. The ValueError for another encoding names its path."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
