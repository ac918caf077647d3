"""YOLO's format: folders of images, a text file of labels for each image, and a yaml that names the
classes.
"""

from array import array
from collections.abc import Sequence
from itertools import chain
from math import isfinite, nan
from pathlib import Path, PurePath

import numpy as np

from ..utils.texts import read_lines
from .inventory import Inventory, LeftOut
from .lookup import find_photos
from .old_dataset import Dataset, Image, NewObject
from .pairs import PHOTO_FOLDERS, divide_photos, pair_labels, split_of
from .photo_labels import Size, image_sizes, to_split
from .yolo_descriptions import Description, find_sources, has_names, read_description


def read(inventory: Inventory) -> Dataset | None:
    """Read a folder that has a yaml with names. A photo without a label file has no objects.

    Raises:
        ValueError: If the yaml cannot be read, or several describe the folder.
    """
    descriptions = [path for path in inventory.describing(".yaml", ".yml") if has_names(path)]
    if not descriptions:
        return None
    first, *further = descriptions
    description = read_description(first)
    if further:
        problem = f"{inventory.data} is described by {first} and {further[0]}"
        raise ValueError(f"{problem}: keep the one that describes all photos")
    left_out = LeftOut(inventory.root)
    sources = find_sources(first, description.entries, left_out)
    inventory = _with_folders_elsewhere(inventory, list(chain(*sources.values())))
    photos = {split: _find_photos(paths, inventory) for split, paths in sources.items()}
    lists = [path for path in chain(*sources.values()) if path.is_file()]
    if not photos:  # supervision writes no splits
        photos, lists = divide_photos(inventory.photos, inventory, left_out)
    if "train" not in photos:
        raise ValueError(f"{first} has no training images: expected 'train'")
    unlisted = inventory.other_photos(chain(*photos.values()))
    photos.setdefault("", []).extend(unlisted)
    used = [first, *lists]
    texts = [path for path in inventory.with_suffix(".txt") if path not in used]
    pairs = pair_labels(photos, texts, inventory, left_out)
    may_be_poses: list[bool] = []
    classes = tuple(description.classes.values())
    sizes = image_sizes(photo for photo, _ in chain(*pairs.values()))
    splits = {}
    for split, photos_of_split in pairs.items():
        rows = []
        for photo, path in photos_of_split:
            size = sizes[photo]
            objects = _read_text(path, size, description, left_out, may_be_poses) if path else []
            rows.append((Image(photo, *size), path, objects))
        splits[split] = to_split(rows, classes)
    if may_be_poses and all(may_be_poses):
        fix = "write kpt_shape into data.yaml, and boxes alone are read"
        raise ValueError(f"{first}: lines of the labels look like boxes with keypoints: {fix}")
    return Dataset("YOLO", classes, splits, left_out, inventory, first, used)


def _with_folders_elsewhere(inventory: Inventory, sources: Sequence[Path]) -> Inventory:
    """Return an inventory that also has the folders of photos elsewhere, and of their labels."""
    roots = [inventory.root]
    for source in (source for source in sources if not inventory.covers(source)):
        folder = source.parent if source.is_file() else source
        # Above images/ and train/ may be labels/.
        while folder.name.lower() in PHOTO_FOLDERS or split_of(PurePath(folder.name)):
            folder = folder.parent
        if not any(folder.is_relative_to(root) for root in roots):
            roots = [root for root in roots if not root.is_relative_to(folder)] + [folder]
    return inventory if roots == [inventory.root] else Inventory(inventory.data, *roots)


def _find_photos(sources: Sequence[Path], inventory: Inventory) -> list[Path]:
    """List the photos of folders and lists."""
    photos: list[Path] = []
    for source in sources:
        names = read_lines(source) if source.is_file() else []
        if not names:
            photos += inventory.photos_in(source)
            continue
        listed = find_photos(names, inventory.photo_index)
        if None in listed:
            missing = names[listed.index(None)]
            raise FileNotFoundError(f"{source} lists {missing}, which is not found")
        photos += filter(None, listed)
    return list(dict.fromkeys(photos))


def _read_text(
    path: Path, size: Size, description: Description, left_out: LeftOut, may_be_poses: list[bool]
) -> list[NewObject]:
    """Read the lines of a label file: a class with a box (centre and sides) or a polygon, in parts
    of the photo's width and height. A last value without a partner is a score. Long
    lines are added to `may_be_poses`.
    """
    width, height = size
    objects = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            label, coordinates = _read_line(line, description)
        except ValueError as error:
            raise ValueError(f"{path} has {line!r} in line {number}: expected {error}") from None
        if description.keypoint_values:
            left_out.add("set", "of keypoints", path)
            del coordinates[4:]
        elif len(coordinates) > 5:
            may_be_poses.append(_are_keypoints(coordinates))
        name = f"line {number}"
        if len(coordinates) < 6:
            x, y, w, h = coordinates[:4]
            box = [(x - w / 2) * width, (y - h / 2) * height, w * width, h * height]
            objects.append(NewObject(label, box, None, name))
        else:
            points = np.reshape(coordinates[: len(coordinates) // 2 * 2], (-1, 2)) * size
            corner = points.min(axis=0)
            box = [*corner.tolist(), *(points.max(axis=0) - corner).tolist()]
            objects.append(NewObject(label, box, [array("d", points.ravel())], name))
    return objects


def _read_line(line: str, description: Description) -> tuple[str, list[float]]:
    """Return the class and the coordinates of a line. A ValueError says what was expected."""
    classes = description.classes
    try:
        class_number, *coordinates = map(float, line.split())
    except ValueError:
        class_number = nan
        coordinates = []
    is_known = class_number in classes
    if len(coordinates) < 4 or not is_known or not all(map(isfinite, coordinates)):
        raise ValueError(f"a class of {min(classes)} to {max(classes)} with a box or a polygon")
    if description.keypoint_values and len(coordinates) != 4 + description.keypoint_values:
        raise ValueError(f"a box and {description.keypoint_values} values, as kpt_shape says")
    return classes[int(class_number)], coordinates


def _are_keypoints(coordinates: Sequence[float]) -> bool:
    """Return whether values may be a box and keypoints inside it, each x, y and a visibility of 0,
    1 or 2. A keypoint that is not labelled is 0, 0.
    """
    x, y, width, height, *keypoints = coordinates
    have_visibilities = len(keypoints) % 3 == 0 and set(keypoints[2::3]) <= {0, 1, 2}
    if width <= 0 or height <= 0 or not have_visibilities:
        return False
    return all(
        (abs(px - x) <= width / 2 and abs(py - y) <= height / 2) or px == py == 0
        for px, py in zip(keypoints[::3], keypoints[1::3], strict=True)
    )
