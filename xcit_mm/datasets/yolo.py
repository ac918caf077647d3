"""YOLO's format, as Ultralytics documents it.

A data.yaml names the classes and the folders of photos. Each photo has a text file of labels.
"""

import glob
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
    """Read the objects for training and validation that a data.yaml describes.

    An image without labels has no objects. The errors are those of `read_dataset`.
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
    """List the images in a folder or a text file, relative to `root` or to the data.yaml."""
    folders = (path.parent / root, path.parent)
    names = (source, source.removeprefix("../"))  # Roboflow writes one too much
    found = _find_first(path, [folder / name for folder in folders for name in names])
    if found.is_dir():
        # Unlike pathlib's, this glob follows links to folders. Hidden images are left out.
        below = sorted(glob.glob("**", root_dir=found, recursive=True))
        return [found / name for name in below if name.lower().endswith(PHOTO_SUFFIXES)]
    photos = []
    for line in filter(None, map(str.strip, read_text(found).split("\n"))):
        names = (line, line.removeprefix("data/"))  # CVAT's archive has no such folder
        photos.append(_find_first(found, [found.parent / name for name in names]))
    return photos


def _find_first(named_in: Path, paths: list[Path]) -> Path:
    for path in paths:
        if path.exists():
            return path
    raise FileNotFoundError(f"{named_in}: {paths[0]} does not exist: correct the path")


def _label_places(photo: Path) -> tuple[Path, Path]:
    """Return where an image's labels may be: below `labels` in place of `images`, or beside it."""
    beside = photo.with_suffix(".txt")
    above, images, below = str(beside).rpartition("/images/")
    return Path(f"{above}/labels/{below}") if images else beside, beside


def _label_path(photo: Path) -> Path:
    """Return the path of an image's labels. Without labels, it does not exist."""
    below, beside = _label_places(photo)
    if below == beside or not beside.exists():
        return below
    if below.exists():
        raise ValueError(f"{below} and {beside} have the labels of one image: remove one")
    return beside


def _read_split(photos: list[Path], names: dict[int, str]) -> CocoFile:
    label_paths = [_label_path(photo) for photo in photos]
    check_unique(label_paths, "two images have the labels")
    _check_labels_have_photos({photo.parent for photo in photos})
    images = []
    annotations = []
    rows = zip(photos, label_paths, read_headers(photos), strict=True)
    for number, (photo, labels, header) in enumerate(rows):
        image = CocoImage(number, str(photo), header.width, header.height)
        images.append(image)
        if labels.exists():
            annotations += _read_labels(labels, image, names)
    return CocoFile(images, [Category(*item) for item in names.items()], annotations)


def _check_labels_have_photos(folders: set[Path]) -> None:
    """Raise ValueError if a file of labels for the photos in a folder has no photo there."""
    for folder in folders:
        places = {place.parent for place in _label_places(folder / "any")}
        labelled = {path.stem for place in places for path in place.glob("*.txt")}
        there = {path.stem for path in folder.iterdir() if path.suffix.lower() in PHOTO_SUFFIXES}
        alone = sorted(labelled - there - {"classes"})  # names, which some tools write there
        if alone:
            problem = f"{folder} has no photos for the labels {preview(alone)}"
            raise ValueError(f"{problem}: add the photos, or remove the labels")


def _read_labels(path: Path, image: CocoImage, names: dict[int, str]) -> list[Annotation]:
    """Read the objects in a file of labels, one on each line."""
    objects = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            objects.append(_read_object(line, image, names))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {line[:80]!r}: {error}") from None
    return objects


def _read_object(line: str, image: CocoImage, names: dict[int, str]) -> Annotation:
    """Read a class with a box (centre and sides) or a polygon, or raise ValueError."""
    category, *values = map(float, line.split())
    are_parts = all(-0.01 <= value <= 1.01 for value in values)  # up to rounding
    if category not in names or len(values) < 4 or len(values) % 2 or not are_parts:
        raise ValueError("give a class of `names` and a box or a polygon in fractions of the image")
    points = np.array(values).reshape(-1, 2) * (image.width, image.height)
    if len(points) == 2:
        centre, sides = points
        corner = centre - sides / 2
        area = sides.prod()
        outline = []
    else:
        corner = points.min(axis=0)
        sides = points.max(axis=0) - corner
        area = cv2.contourArea(points.astype(np.float32))
        outline = [points.ravel().tolist()]
    box = (*corner.tolist(), *sides.tolist())
    mask = Raw(msgspec.json.encode(outline))
    return Annotation(0, image.id, int(category), box, float(area), segmentation=mask)
