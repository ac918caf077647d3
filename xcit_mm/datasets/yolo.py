"""YOLO's format, as Ultralytics documents it: a data.yaml, and a text of labels for each image."""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import msgspec
import numpy as np
import yaml
from msgspec import Raw, Struct

from ..utils.errors import preview
from ..utils.images import PHOTO_SUFFIXES
from .coco import Annotation, Category, CocoFile, CocoImage, check_unique
from .dataset import read_text
from .headers import read_headers

_ROUNDING = 0.01  # by which a coordinate in parts of an image may pass its edge


class _Description(Struct):
    """A data.yaml."""

    names: list[str] | dict[int, str]
    train: str | list[str]
    val: str | list[str] = ""
    path: str = ""
    kpt_shape: Any = None


def read(path: Path) -> tuple[CocoFile, CocoFile | None]:
    """Read the objects for training and validation that a data.yaml describes. An image without a
    text of labels has none. The errors are those of `read_dataset`.
    """
    try:
        # All values are texts, so that the names `no` and `7` stay as they are written.
        content = yaml.load(read_text(path), yaml.BaseLoader)
        description = msgspec.convert(content, _Description, strict=False)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    if description.kpt_shape is not None:
        raise ValueError(f"{path}: kpt_shape: keypoints are not read, export boxes or polygons")
    names = description.names
    if isinstance(names, list):
        names = dict(enumerate(names))
    check_unique(names.values(), f"{path}: two classes are named")
    splits = []
    for sources in (description.train, description.val):
        photos: list[Path] = []
        for source in filter(None, [sources] if isinstance(sources, str) else sources):
            photos += _list_photos(_find_source(path, description.path, source))
        splits.append(_read_split(photos, names))
    return splits[0], splits[1] if description.val else None


def _find_source(path: Path, root: str, source: str) -> Path:
    """Return the path of a folder or list. Of Roboflow's `../`, one may be too much."""
    for folder in (path.parent / root, path.parent):
        for name in (source, source.removeprefix("../")):
            if (folder / name).exists():
                return Path(os.path.abspath(folder / name))
    raise FileNotFoundError(f"{path}: {source} is neither below path, {root!r}, nor beside it")


def _list_photos(source: Path) -> Iterator[Path]:
    """Yield the images of a folder and the folders in it, or of a text."""
    if source.is_dir():
        # Unlike pathlib's, it follows links to folders, and skips hidden files.
        for name in sorted(glob.glob("**", root_dir=source, recursive=True)):
            if name.lower().endswith(PHOTO_SUFFIXES):
                yield source / name
        return
    for line in read_text(source).split("\n"):
        name = line.strip()
        if not name:
            continue
        photo = source.parent / name
        if not photo.exists():  # CVAT writes data/, which its archive lacks
            photo = source.parent / name.removeprefix("data/")
        if not photo.exists():
            raise FileNotFoundError(f"{source} lists {name}, which is not beside it")
        yield Path(os.path.abspath(photo))


def _label_path(photo: Path) -> Path:
    """Return the path of the labels of an image: below `labels`, not `images`, or beside it."""
    return Path("/labels/".join(str(photo).rsplit("/images/", 1))).with_suffix(".txt")


def _read_split(photos: Sequence[Path], names: dict[int, str]) -> CocoFile:
    labels = [_label_path(photo) for photo in photos]
    check_unique(labels, "two images have the labels")
    _check_all_have_photos(photos, labels)
    images = []
    annotations: list[Annotation] = []
    for number, header in enumerate(read_headers(photos)):
        if header.problem:
            raise ValueError(f"{photos[number]} cannot be read: {header.problem}")
        images.append(CocoImage(number, str(photos[number]), header.width, header.height))
        if labels[number].exists():
            annotations += _read_labels(labels[number], images[-1], names)
    categories = [Category(number, name) for number, name in names.items()]
    return CocoFile(images, categories, annotations)


def _check_all_have_photos(photos: Sequence[Path], labels: Sequence[Path]) -> None:
    """Raise ValueError if labels have no image, used or not, as after a renaming."""
    known = set()
    for folder in {photo.parent for photo in photos}:
        known.add(_label_path(folder / "classes"))  # the names, which some tools write there
        paths = (folder / name for name in os.listdir(folder))
        known |= {_label_path(path) for path in paths if path.suffix.lower() in PHOTO_SUFFIXES}
    texts = {path for folder in {label.parent for label in labels} for path in folder.glob("*.txt")}
    alone = sorted(texts - known)
    if alone:
        raise ValueError(f"{len(alone)} files of labels have no image: {preview(alone)}")


def _read_labels(path: Path, image: CocoImage, names: dict[int, str]) -> Iterator[Annotation]:
    """Yield the object of each line: a class and a box (centre and sides) or a polygon."""
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            category, *values = map(float, line.split())
        except ValueError:
            category = -1
            values = []
        is_shape = len(values) == 4 or (len(values) >= 6 and len(values) % 2 == 0)
        are_parts = all(-_ROUNDING <= value <= 1 + _ROUNDING for value in values)
        if category not in names or not is_shape or not are_parts:
            expected = "the number of a class and a box or a polygon in parts of the image"
            raise ValueError(f"{path}, line {number}: {line[:80]!r} is not {expected}")
        xs = [x * image.width for x in values[::2]]
        ys = [y * image.height for y in values[1::2]]
        outline = Raw(b"[]")
        if len(values) == 4:
            width, height = xs[1], ys[1]
            box = (xs[0] - width / 2, ys[0] - height / 2, width, height)
            area = width * height
        else:
            box = (min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys))
            points = np.array([xs, ys], np.float32).T
            area = cv2.contourArea(points)
            outline = Raw(msgspec.json.encode([points.ravel().tolist()]))
        yield Annotation(0, image.id, int(category), box, area, segmentation=outline)
