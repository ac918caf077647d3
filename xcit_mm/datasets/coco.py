"""COCO's format: a json for each split, and folders of images."""

import json
import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..utils.images import PHOTO_SUFFIXES
from ..utils.texts import class_name
from .dataset import Candidate, Dataset, Image, Mask, Objects, Split
from .inventory import Inventory, LeftOut
from .label_files import image_sizes
from .pairs import split_of

_READ = {
    "images": ("id", "file_name"),
    "categories": ("id", "name"),
    "annotations": ("image_id", "category_id", "bbox"),
}
_READ_BY_MMDET = {
    "images": (*_READ["images"], "height", "width"),
    "categories": _READ["categories"],
    "annotations": (*_READ["annotations"], "area", "iscrowd"),
}
_SAMPLE = 100  # images of a json that are looked for in each folder


class _Annotation(NamedTuple):
    """An annotation, in a quarter of the memory of its dict. What it lacks is None."""

    id: Any
    image_id: Any
    category_id: Any
    bbox: Any
    area: Any
    iscrowd: Any
    ignore: Any
    segmentation: Any
    rotation: Any
    origin: Any  # in jsons that `write_coco` wrote


@dataclass
class CocoJson:
    """A COCO json.

    Attributes:
        images: Its images, each a dict with `id` and `file_name`.
        categories: Its categories, each a dict with `id` and `name`.
        objects: Its annotations. Images and labels are indices in the lists, or -1 if an annotation
            has another id.
        ids: The ids of the annotations, of any type.
        info: What the file says about itself.
        is_rotated: Which annotations are rotated boxes without an outline.
    """

    path: Path
    images: list[dict[str, Any]]
    categories: list[dict[str, Any]]
    objects: Objects
    ids: list[Any]
    info: Any
    is_rotated: np.ndarray

    @property
    def category_names(self) -> list[str]:
        """Names of the categories in their order."""
        return [class_name(category["name"]) for category in self.categories]


def propose(inventory: Inventory) -> Candidate | None:
    """Return this format if a folder has its jsons."""
    annotated = [path for path, keys in inventory.keys_of_jsons.items() if "annotations" in keys]
    # COCO also has captions and keypoints.
    preferred = [path for path in annotated if path.name.startswith("instances")] or annotated
    if inventory.given in annotated:
        preferred = [inventory.given]
    contents = {path: load_json(path) for path in preferred}
    jsons = [read_coco(path, content) for path, content in contents.items() if _is_coco(content)]
    if not jsons:
        return None
    return Candidate("COCO", jsons[0].path, partial(_read_jsons, jsons, inventory))


def _is_coco(content: Any) -> bool:
    """Return whether a json has lists of images and annotations, as COCO's for detection."""
    if not isinstance(content, dict) or not isinstance(content.get("annotations"), list):
        return False
    annotations = content["annotations"]
    return "images" in content and all(isinstance(entry, _Annotation) for entry in annotations[:1])


def load_json(path: Path) -> Any:
    """Read a json with or without a byte order mark. Annotations become tuples.

    Raises:
        ValueError: If the file is not JSON.
    """
    encoded = path.read_bytes()
    try:
        return json.loads(encoded, object_hook=_pack)
    except (ValueError, RecursionError) as error:
        problem = "is not in COCO's format" if b"annotations" in encoded else "cannot be read"
        raise ValueError(f"{path} {problem}: {error}") from None


def _pack(entry: dict[str, Any]) -> Any:
    """Return an annotation of a detector's json as a tuple, and other dicts as they are."""
    if "image_id" not in entry or not ("bbox" in entry or "category_id" in entry):
        return entry
    mask = entry.get("segmentation")
    if isinstance(mask, list):
        mask = [_to_array(part) for part in mask]
    attributes = entry.get("attributes")
    rotation = attributes.get("rotation") if isinstance(attributes, dict) else None
    values = {key: entry.get(key) for key in _Annotation._fields}
    return _Annotation(**values | dict(segmentation=mask, rotation=rotation))


def _to_array(part: Any) -> Any:
    try:
        return array("d", part) if isinstance(part, list) else part
    except TypeError:  # not of numbers, which a check reports
        return part


def read_coco(path: Path, content: Any = None, exact: bool = False) -> CocoJson:
    """Read a COCO json.

    Args:
        content: The content of the file, if `load_json` has read it.
        exact: Whether ids and numbers must be as mmdet reads them. Otherwise numbers may be texts,
            and areas, crowds and sizes of images may lack.

    Raises:
        ValueError: If the file is not in COCO's format.
    """
    content = load_json(path) if content is None else content
    try:
        for name, keys in (_READ_BY_MMDET if exact else _READ).items():
            _check_keys(content, name, keys)
        for name in ("images", "categories"):
            _check_unique(name, content[name], exact)
        if not content["images"]:
            raise ValueError("it lists no images")
        return _to_columns(path, content, exact)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not in COCO's format: {error}") from None


def read_images(path: Path, unique: Sequence[str] = ("id",)) -> list[dict[str, Any]]:
    """Read the images of a COCO json, with or without annotations.

    Args:
        unique: Keys that differ between two images.

    Raises:
        ValueError: If the file lists no images, an image lacks `id` or `file_name`, or two images
            share a unique key.
    """
    content = load_json(path)
    try:
        _check_keys(content, "images", _READ["images"])
        for key in unique:
            _check_unique("images", content["images"], exact=True, key=key)
        if not content["images"]:
            raise ValueError("it lists no images")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not in COCO's format: {error}") from None
    return content["images"]


def _check_keys(content: Any, name: str, keys: Sequence[str]) -> None:
    """Raise ValueError unless a list exists, and each of its entries has the keys."""
    entries = content.get(name) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise ValueError(f"it has no list {name!r}")
    for number, entry in enumerate(entries):
        if isinstance(entry, _Annotation):
            missing = [key for key in keys if getattr(entry, key) is None]
        else:
            missing = sorted(set(keys).difference(entry if isinstance(entry, dict) else ()))
        if missing:
            number_or_id = getattr(entry, "id", None)
            where = f"{name}[{number}]" if number_or_id is None else f"annotation {number_or_id}"
            raise ValueError(f"{where} has no {', '.join(missing)}")


def _check_unique(name: str, entries: Sequence[dict], exact: bool, key: str = "id") -> None:
    identify = _identifier(exact)
    counts = Counter(identify(entry[key]) for entry in entries if key in entry)
    for value, count in counts.most_common(1):
        if count > 1:
            raise ValueError(f"{count} {name} with the {key} {value}: keep one of them")


def _identifier(exact: bool) -> Callable[[Any], Any]:
    return (lambda value: value) if exact else _read_id


def _read_id(value: Any) -> str:
    """Return the same text for the ids 1, 1.0, '1' and '1.0'."""
    if type(value) is int:
        return str(value)
    try:
        return str(int(value)) if float(value).is_integer() else str(value)
    except (ValueError, TypeError, OverflowError):
        return str(value)


def _to_columns(path: Path, content: dict[str, Any], exact: bool) -> CocoJson:
    annotations: list[_Annotation] = content["annotations"]
    identify = _identifier(exact)
    images = {identify(image["id"]): index for index, image in enumerate(content["images"])}
    labels = {identify(entry["id"]): index for index, entry in enumerate(content["categories"])}
    for annotation in annotations:
        _check_box(annotation, exact)
    objects = Objects(
        [images.get(identify(annotation.image_id), -1) for annotation in annotations],
        [labels.get(identify(annotation.category_id), -1) for annotation in annotations],
        [annotation.bbox for annotation in annotations],
        [_read_mask(annotation.segmentation) for annotation in annotations],
        [annotation.origin or annotation.id for annotation in annotations],
        [annotation.area for annotation in annotations],
    )
    objects.is_crowd = np.array([_is_set(entry.iscrowd) for entry in annotations], bool)
    objects.is_ignored = np.array([_is_set(entry.ignore) for entry in annotations], bool)
    is_rotated = np.array([_is_set(entry.rotation) for entry in annotations], bool)
    has_mask = np.array([bool(mask) for mask in objects.masks], bool)
    return CocoJson(
        path,
        content["images"],
        content["categories"],
        objects,
        [annotation.id for annotation in annotations],
        content.get("info"),
        is_rotated & ~has_mask,
    )


def _check_box(annotation: _Annotation, exact: bool) -> None:
    box = annotation.bbox
    numbers = box if exact or not isinstance(box, list) else list(map(_to_number, box))
    try:
        is_valid = len(numbers) == 4 and all(map(isfinite, numbers))
    except TypeError:
        is_valid = False
    if not is_valid:
        owner = f"annotation {annotation.id}"
        raise ValueError(f"the bbox of {owner} is {box}, not [x, y, width, height]")


def _to_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _is_set(value: Any) -> bool:
    """Return whether a number, which may be a text, is not 0."""
    return bool(value) and _to_number(value) != 0


def _read_mask(mask: Any) -> Mask:
    """Return a mask, or None for an empty list."""
    return mask or None


def find_image_folder(path: Path, file_names: Sequence[str]) -> Path | None:
    """Find the folder to which the file names of a COCO json are relative.

    It is the first folder with some of the images: the json's folder, `images` in it, a folder
    named as the json without `instances_`, and that folder in `images`; then the same in the folder
    above.
    """
    name = path.stem.removeprefix("instances_")
    candidates = [
        parent / folder
        for parent in (path.parent, path.parent.parent)
        for folder in ("", "images", name, f"images/{name}")
    ]
    sample = file_names[:: max(1, len(file_names) // _SAMPLE)]
    for folder in candidates:
        if any((folder / file_name).is_file() for file_name in sample):
            return folder
    return None


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
        photos = _find_photos(coco, inventory)
        splits[split] = _to_split(split, coco, photos, classes, left_out)
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


def _find_photos(coco: CocoJson, inventory: Inventory) -> list[Path | None]:
    """Return the path of each image of a json, None if the file is missing."""
    names = [image["file_name"] for image in coco.images]
    folder = find_image_folder(coco.path, names) or coco.path.parent
    photos: list[Path | None] = []
    for name in names:
        path = folder / name
        photos.append(path if path.is_file() else inventory.find_photo(name))
    if not any(photos):
        problem = f"{names[0]} of {coco.path} is not below {inventory.root}"
        raise FileNotFoundError(f"{problem}: put the images there")
    return photos


def _to_split(
    split: str,
    coco: CocoJson,
    photos: Sequence[Path | None],
    classes: Sequence[str],
    left_out: LeftOut,
) -> Split:
    """Return the images of a json that exist, each once, with their objects."""
    missing = [
        image["file_name"] for image, path in zip(coco.images, photos, strict=True) if not path
    ]
    for name in missing:
        left_out.add("image", f"of {split} that is missing", name)
    objects = coco.objects
    has_rotated = set(objects.images[coco.is_rotated].tolist())
    indices: dict[str, int] = {}  # of the images of the split, by their real path
    new_indices = np.full(len(photos) + 1, -1)  # the last is that of unknown images
    images: list[tuple[Path, dict[str, Any]]] = []
    for number, path in enumerate(photos):
        if path is None:
            continue
        if number in has_rotated:
            left_out.add_files("photo", "with rotated boxes", [path])
            continue
        real_path = os.path.realpath(path)
        if real_path in indices:
            left_out.add("image", "of a photo that is listed twice: both have its objects", path)
        else:
            indices[real_path] = len(images)
            images.append((path, coco.images[number]))
        new_indices[number] = indices[real_path]
    numbers = {name: label for label, name in enumerate(classes)}
    new_labels = np.array([numbers.get(name, -1) for name in coco.category_names] + [-1])
    object_images = new_indices[objects.images]
    labels = new_labels[objects.labels]
    rows = np.flatnonzero((object_images >= 0) & (labels >= 0))
    _leave_out_objects(
        coco, photos, has_rotated, np.setdiff1d(np.arange(len(objects)), rows), left_out
    )
    kept = objects.select(rows, object_images[rows], labels[rows])
    return Split(_with_sizes(images), coco.path, kept)


def _leave_out_objects(
    coco: CocoJson,
    photos: Sequence[Path | None],
    has_rotated: set[int],
    rows: np.ndarray,
    left_out: LeftOut,
) -> None:
    """Count the objects that are in no image of the split, or of no class, by reason."""
    objects = coco.objects
    names = coco.category_names
    for row in rows.tolist():
        image = int(objects.images[row])
        label = int(objects.labels[row])
        if image < 0 or label < 0:
            reason = "of an unknown image or category"
        elif photos[image] is None:
            reason = "of an image that is missing"
        elif image in has_rotated:
            reason = "of photos with rotated boxes"
        else:
            reason = f"of the class {names[label]!r}, which is not in the training json"
        left_out.add("object", reason, f"id {objects.names[row]} of {coco.path.name}")


def _with_sizes(images: Sequence[tuple[Path, dict[str, Any]]]) -> list[Image]:
    """Return images of the size that the json states, or else the file has."""
    stated = [_stated_size(image) for _, image in images]
    unstated = [path for (path, _), size in zip(images, stated, strict=True) if not size]
    sizes = image_sizes(unstated)
    return [
        Image(path, *(size or sizes[path])) for (path, _), size in zip(images, stated, strict=True)
    ]


def _stated_size(image: dict[str, Any]) -> tuple[int, int] | None:
    width = int(_to_number(image.get("width") or 0))
    height = int(_to_number(image.get("height") or 0))
    return (width, height) if width and height else None
