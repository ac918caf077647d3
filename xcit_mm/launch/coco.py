"""COCO's format: a json for each split, and folders of images.

Each tool writes ids of its own. What is read has none: an object belongs to its photo, and its
category is a name.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..utils.coco import Coco, find_image_folder, read_coco
from ..utils.images import image_size
from .dataset import Dataset, Objects, Photo, Shape, new_dataset
from .files import PhotoIndex, list_files, split_of

_REQUIRED = {
    "images": ("id", "file_name"),
    "categories": ("id", "name"),
    "annotations": ("image_id", "category_id", "bbox"),
}
_NUMBERS = ("area", "iscrowd", "ignore")
_KEPT = ("id", "segmentation", *_NUMBERS)


def find_jsons(data: Path, left_out: Counter[str]) -> dict[str, Path]:
    """Return the json of each split in a folder, none if it has no COCO jsons.

    A json of no split is that of training, or counted in `left_out` if another is of training.
    """
    paths = [path for path in list_files(data, ".json") if _has_annotations(path)]
    # COCO also has captions and keypoints.
    paths = [path for path in paths if path.name.startswith("instances")] or paths
    if not paths:
        return {}
    splits: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        splits[split_of(path.relative_to(data).with_suffix("")) or ""].append(path)
    unnamed = splits.pop("", [])
    if "train" in splits:
        left_out["jsons of no split"] = len(unnamed)
    else:
        splits["train"] = unnamed
    for split, jsons in splits.items():
        if len(jsons) != 1:
            listed = ", ".join(str(path.relative_to(data)) for path in jsons) or "none"
            problem = f"{data} must have one json with {split!r} in its path, but has {listed}"
            raise ValueError(f"{problem}: give the json itself")
    return {split: path for split, (path,) in splits.items()}


def _has_annotations(path: Path) -> bool:
    encoded = path.read_bytes()
    key = '"annotations"'
    return any(key.encode(name) in encoded for name in ("utf-8", "utf-16-le", "utf-16-be"))


def read_json(path: Path) -> Dataset[Objects]:
    """Describe one json, whose images are below its folder or beside its folder annotations."""
    folder = path.parent
    root = folder.parent if "ann" in folder.name else folder
    return read_jsons({"train": path}, root, Counter())


def read_jsons(paths: Mapping[str, Path], root: Path, left_out: Counter[str]) -> Dataset[Objects]:
    """Describe the jsons of splits, whose images are below `root` or where the jsons say."""
    jsons = {
        split: read_coco(path, _REQUIRED, correct=_read_values) for split, path in paths.items()
    }
    training = jsons["train"]
    classes = list(dict.fromkeys(category["name"] for category in training["categories"]))
    if not classes or not training["annotations"]:
        counts = f"{len(classes)} categories and {len(training['annotations'])} annotations"
        raise ValueError(f"{paths['train']} has {counts}: annotate it")
    splits = {}
    for split, coco in jsons.items():
        shapes = _read_shapes(coco, classes, left_out)
        places = _find_photos(paths[split], coco["images"], root)
        missing = [image["file_name"] for image in coco["images"] if not places[image["id"]]]
        if missing:
            left_out[f"{split} images that are missing, such as {missing[0]}"] = len(missing)
        splits[split] = Objects([])
        for image in coco["images"]:
            place = places[image["id"]]
            if place:
                stated = (image["width"], image["height"])
                size = stated if all(stated) else image_size(place)
                splits[split].photos.append(Photo(place, size, shapes[image["id"]]))
    return new_dataset(classes, splits, left_out)


def _read_values(coco: Coco) -> None:
    """Read ids as texts, and numbers that are texts."""
    for entry in [*coco["images"], *coco["categories"]]:
        entry["id"] = _read_id(entry["id"])
    for image in coco["images"]:
        for side in ("width", "height"):
            image[side] = int(float(image.get(side) or 0))
    for annotation in coco["annotations"]:
        annotation["image_id"] = _read_id(annotation["image_id"])
        annotation["category_id"] = _read_id(annotation["category_id"])
        annotation["bbox"] = list(map(float, annotation["bbox"]))
        for key in _NUMBERS:
            if annotation.get(key) is not None:
                annotation[key] = float(annotation[key])


def _read_id(value: Any) -> str:
    """Return the same text for the ids 1, 1.0, '1' and '1.0'."""
    try:
        return str(int(value)) if float(value).is_integer() else str(value)
    except (ValueError, TypeError, OverflowError):
        return str(value)


def _read_shapes(
    coco: Coco, classes: Collection[str], left_out: Counter[str]
) -> dict[str, list[Shape]]:
    """Return the objects of each image, by its id, and count the others in `left_out`."""
    labels = {category["id"]: category["name"] for category in coco["categories"]}
    shapes: dict[str, list[Shape]] = {image["id"]: [] for image in coco["images"]}
    for annotation in coco["annotations"]:
        label = labels.get(annotation["category_id"])
        if label is None or annotation["image_id"] not in shapes:
            left_out["annotations of an unknown image or category"] += 1
        elif label not in classes:
            left_out[f"objects of {label!r}, which is not in the training json"] += 1
        else:
            extras = {key: annotation[key] for key in _KEPT if annotation.get(key) is not None}
            shape = Shape(label, annotation["bbox"], extras=extras)
            shapes[annotation["image_id"]].append(shape)
    return shapes


def _find_photos(path: Path, images: Sequence[dict], root: Path) -> dict[str, Path | None]:
    """Return the path of each image id, None if the image is missing."""
    folder = find_image_folder(path, [image["file_name"] for image in images]) or path.parent
    places: dict[str, Path | None] = {image["id"]: folder / image["file_name"] for image in images}
    missing = [image for image in images if not (folder / image["file_name"]).is_file()]
    if missing:
        index = PhotoIndex(root)
        places.update((image["id"], index.find(image["file_name"])) for image in missing)
    if not any(places.values()):
        problem = f"{images[0]['file_name']} of {path} is not below {root}"
        raise FileNotFoundError(f"{problem}: put the images there")
    return places
