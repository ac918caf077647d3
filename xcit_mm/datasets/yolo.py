"""YOLO's format, as Ultralytics documents it: a data.yaml, and a text of labels for each image."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

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


class _Description(Struct):
    """A data.yaml."""

    names: list[str] | dict[int, str]
    train: str | list[str]
    val: str | list[str] = ""
    path: str = ""
    kpt_shape: None = None  # keypoints are not read


def read(path: Path) -> tuple[CocoFile, CocoFile | None]:
    """Read the objects for training and validation that a data.yaml describes. An image without a
    text of labels has none. The errors are those of `read_dataset`.
    """
    with path.open("rb") as file:
        # All values are texts, so that the names `no` and `7` stay as they are written.
        content = yaml.load(file, yaml.BaseLoader)
    try:
        description = msgspec.convert(content, _Description, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path}: {error}") from None
    names = description.names
    if isinstance(names, list):
        names = dict(enumerate(names))
    check_unique(names.values(), f"{path}: two classes are named")
    splits = []
    for sources in (description.train, description.val):
        photos: list[Path] = []
        for source in filter(None, [sources] if isinstance(sources, str) else sources):
            photos += _list_photos(path, description.path, source)
        splits.append(_read_split(photos, names))
    return splits[0], splits[1] if description.val else None


def _list_photos(path: Path, root: str, source: str) -> list[Path]:
    """List the images of a folder or text, which is below `root` or beside a data.yaml."""
    folders = (path.parent / root, path.parent)
    names = (source, source.removeprefix("../"))  # Roboflow writes one too much
    found = _find_first(path, [folder / name for folder in folders for name in names])
    if found.is_dir():
        # Unlike pathlib's, it follows links to folders, and skips hidden files.
        below = sorted(glob.glob("**", root_dir=found, recursive=True))
        return [found / name for name in below if name.lower().endswith(PHOTO_SUFFIXES)]
    photos = []
    for line in filter(None, map(str.strip, read_text(found).split("\n"))):
        names = (line, line.removeprefix("data/"))  # which CVAT's archive lacks
        photos.append(_find_first(found, [found.parent / name for name in names]))
    return photos


def _find_first(named_in: Path, paths: Sequence[Path]) -> Path:
    for path in paths:
        if path.exists():
            return Path(os.path.abspath(path))
    raise FileNotFoundError(f"{named_in}: no {paths[0]}")


def _label_path(photo: Path) -> Path:
    """Return the path of the labels of an image: below `labels`, not `images`, or beside it."""
    return Path("/labels/".join(str(photo).rsplit("/images/", 1))).with_suffix(".txt")


def _read_split(photos: Sequence[Path], names: dict[int, str]) -> CocoFile:
    labels = [_label_path(photo) for photo in photos]
    check_unique(labels, "two images have the labels")
    if labels and not any(label.exists() for label in labels):
        raise FileNotFoundError(f"none of {len(labels)} photos has labels, such as {labels[0]}")
    for folder in {photo.parent for photo in photos}:
        texts = {path.stem for path in _label_path(folder / "any").parent.glob("*.txt")}
        stems = {path.stem for path in folder.iterdir() if path.suffix.lower() in PHOTO_SUFFIXES}
        alone = sorted(texts - stems - {"classes"})  # names, which some tools write there
        if alone:
            raise ValueError(f"{folder} has no photos of the labels {preview(alone)}")
    images = []
    annotations: list[Annotation] = []
    for number, (photo, header) in enumerate(zip(photos, read_headers(photos), strict=True)):
        if header.problem:
            raise ValueError(f"{photo} cannot be read: {header.problem}")
        images.append(CocoImage(number, str(photo), header.width, header.height))
        if labels[number].exists():
            annotations += _read_labels(labels[number], images[-1], names)
    return CocoFile(images, [Category(*item) for item in names.items()], annotations)


def _read_labels(path: Path, image: CocoImage, names: dict[int, str]) -> list[Annotation]:
    """Read the objects of an image, a line each."""
    objects = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            if line.strip():
                objects.append(_read_object(line, image, names))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {line[:80]!r}: {error}") from None
    return objects


def _read_object(line: str, image: CocoImage, names: dict[int, str]) -> Annotation:
    """Read a class and a box (centre and sides) or a polygon. Raise ValueError for other lines."""
    category, *values = map(float, line.split())
    are_parts = all(-0.01 <= value <= 1.01 for value in values)  # but for rounding
    if category not in names:
        raise ValueError(f"class {category:g} is not among the names {preview(names)}")
    if len(values) < 4 or len(values) % 2 or not are_parts:
        raise ValueError("give a class and a box or a polygon in parts of the image")
    xs = [x * image.width for x in values[::2]]
    ys = [y * image.height for y in values[1::2]]
    if len(values) == 4:
        x, width = xs
        y, height = ys
        box = (x - width / 2, y - height / 2, width, height)
        return Annotation(0, image.id, int(category), box, width * height)
    box = (min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys))
    points = np.array([xs, ys], np.float32).T
    outline = Raw(msgspec.json.encode([points.ravel().tolist()]))
    area = cv2.contourArea(points)
    return Annotation(0, image.id, int(category), box, area, segmentation=outline)
