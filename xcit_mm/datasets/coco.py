"""COCO's format: a json for each split, and folders of images."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..utils.images import PHOTO_SUFFIXES
from .coco_json import CocoJson, find_image_folder, is_coco, load_json, read_coco, read_stated_size
from .dataset import Candidate, Dataset, Image, Split
from .inventory import Inventory, LeftOut
from .pairs import split_of
from .photo_labels import image_sizes


def propose(inventory: Inventory) -> Candidate | None:
    """Return this format if a folder has its jsons."""
    annotated = [path for path, keys in inventory.keys_of_jsons.items() if "annotations" in keys]
    # COCO also has captions and keypoints.
    preferred = [path for path in annotated if path.name.startswith("instances")] or annotated
    if inventory.given in annotated:
        preferred = [inventory.given]
    contents = {path: load_json(path) for path in preferred}
    jsons = [read_coco(path, content) for path, content in contents.items() if is_coco(content)]
    if not jsons:
        return None
    return Candidate("COCO", jsons[0].path, partial(_read_jsons, jsons, inventory))


def _read_jsons(jsons: Sequence[CocoJson], inventory: Inventory) -> Dataset:
    """Read the jsons of splits, whose images are in the inventory or where the jsons say.

    The classes are the categories of the training, in their order. Each tool writes ids of its own;
    here an object belongs to its photo, and its class is a name.

    Raises:
        ValueError: If a split has several jsons, nothing is annotated, or no image is found.
    """
    left_out = LeftOut(inventory.root)
    paths = {coco.path for coco in jsons}
    others = [path for path in inventory.with_suffix(".json") if path not in paths]
    left_out.add_files("other file", "", others)
    json_of_split = _choose_jsons(jsons, inventory, left_out)
    training = json_of_split["train"]
    classes = tuple(dict.fromkeys(training.category_names))
    if not classes or not len(training.objects):
        counts = f"{len(classes)} categories and {len(training.objects)} annotations"
        raise ValueError(f"{training.path} has {counts}: annotate it")
    splits = {}
    for split, coco in json_of_split.items():
        splits[split] = _to_split(coco, classes, inventory, left_out)
    listed = [path for split in splits.values() for path in split.files]
    unlisted = inventory.without([*listed, *left_out.files])
    photos_of_no_json = [path for path in unlisted if path.suffix.lower() in PHOTO_SUFFIXES]
    left_out.add_files("photo", "that no json lists", photos_of_no_json)
    return Dataset("COCO", classes, splits, left_out, inventory)


def _choose_jsons(
    jsons: Sequence[CocoJson], inventory: Inventory, left_out: LeftOut
) -> dict[str, CocoJson]:
    """Return the json of each split. A json of no split is that of training, or left out if another
    is of training. A json that was given is that of training.

    Raises:
        ValueError: If a split has several jsons, or none is of training.
    """
    splits: dict[str, list[CocoJson]] = defaultdict(list)
    for coco in jsons:
        name = inventory.relative(coco.path).with_suffix("")
        is_given = coco.path == inventory.given
        splits["train" if is_given else split_of(name) or ""].append(coco)
    unnamed = splits.pop("", [])
    if "train" in splits:
        left_out.add_files("json", "of no split", [coco.path for coco in unnamed])
    else:
        splits["train"] = unnamed
    for split, jsons_of_split in splits.items():
        if len(jsons_of_split) != 1:
            names = [str(inventory.relative(coco.path)) for coco in jsons_of_split]
            problem = f"{inventory.root} must have one json with {split!r} in its path"
            raise ValueError(
                f"{problem}, but has {', '.join(names) or 'none'}: give the json itself"
            )
    return {split: coco for split, (coco,) in splits.items()}


class _Images(NamedTuple):
    """The images of a json that are used.

    Attributes:
        images: Images that exist, each once.
        indices: Index of each image of the json in `images`, or -1; then -1 for unknown images.
        problems: Why images of the json are not used, by index.
    """

    images: list[Image]
    indices: np.ndarray
    problems: dict[int, str]


def _find_images(coco: CocoJson, inventory: Inventory, left_out: LeftOut) -> _Images:
    """Find the files of images. Images that are missing, and those with rotated boxes, are left
    out.

    Raises:
        FileNotFoundError: If no image is found.
    """
    names = [image["file_name"] for image in coco.images]
    folder = find_image_folder(coco.path, names) or coco.path.parent
    has_rotated = set(coco.objects.images[coco.is_rotated].tolist())
    is_unknown = (coco.objects.labels < 0) & (coco.objects.images >= 0)
    has_unknown = set(coco.objects.images[is_unknown].tolist())
    index_of: dict[str, int] = {}  # by real path
    used: list[tuple[Path, tuple[int, int] | None]] = []
    found = _Images([], np.full(len(names) + 1, -1), {})
    for number, name in enumerate(names):
        file = folder / name
        path = file if file.is_file() else inventory.find_photo(name)
        if path is None:
            left_out.add("image", f"of {coco.path.name} that is missing", name)
            found.problems[number] = "of an image that is missing"
            continue
        if number in has_rotated:
            left_out.add_files("photo", "with rotated boxes", [path])
            found.problems[number] = "of photos with rotated boxes"
            continue
        if number in has_unknown:
            left_out.add_files("photo", "with objects of an unknown category", [path])
            found.problems[number] = "of photos with objects of an unknown category"
            continue
        real_path = inventory.real_path(path)
        if real_path in index_of:
            left_out.add("image", "of a photo that is listed twice: both have its objects", path)
        else:
            index_of[real_path] = len(used)
            used.append((path, read_stated_size(coco.images[number])))
        found.indices[number] = index_of[real_path]
    if "of an image that is missing" in found.problems.values() and not used:
        problem = f"{names[0]} of {coco.path} is not below {inventory.root}"
        raise FileNotFoundError(f"{problem}: put the images there")
    sizes = image_sizes(path for path, size in used if not size)
    found.images.extend(Image(path, *(size or sizes[path])) for path, size in used)
    return found


def _to_split(
    coco: CocoJson, classes: Sequence[str], inventory: Inventory, left_out: LeftOut
) -> Split:
    """Return the images of a json that are used, with their objects."""
    found = _find_images(coco, inventory, left_out)
    names = coco.category_names
    numbers = {name: label for label, name in enumerate(classes)}
    labels_of_categories = np.array([numbers.get(name, -1) for name in names] + [-1])
    objects = coco.objects
    images = found.indices[objects.images]
    labels = labels_of_categories[objects.labels]
    is_used = (images >= 0) & (labels >= 0)
    for row in np.flatnonzero(~is_used).tolist():
        image = int(objects.images[row])
        category = int(objects.labels[row])
        if image in found.problems:
            reason = found.problems[image]
        elif image < 0:
            reason = "of an unknown image"
        else:
            reason = f"of the class {names[category]!r}, which is not in the training json"
        left_out.add("object", reason, f"id {objects.names[row]} of {coco.path.name}")
    return Split(found.images, coco.path, objects.select(is_used, images[is_used], labels[is_used]))
