"""COCO's format: a json for each split, and folders of images."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..utils.coco import find_image_folder, polygon_area, read_coco
from ..utils.images import image_size
from .dataset import Dataset, Objects, check_bands
from .files import PhotoIndex, common_folder, list_files, split_of

_REQUIRED = {
    "images": ("id", "file_name"),
    "categories": ("id", "name"),
    "annotations": ("image_id", "category_id", "bbox"),
}
_EXACT = 2**53  # pycocotools holds ids as floats


def find_jsons(data: Path) -> dict[str, Path]:
    """Return the jsons of the splits in a folder, none if it has no COCO jsons.

    Raises:
        ValueError: If the json of a split is unclear.
    """
    paths = [path for path in list_files(data, ".json") if _has_annotations(path)]
    # COCO also has captions and keypoints.
    paths = [path for path in paths if path.name.startswith("instances")] or paths
    splits: dict[str, list[Path]] = {}
    for path in paths:
        split = split_of(path.relative_to(data).with_suffix(""))
        splits.setdefault(split or "", []).append(path)
    others = splits.pop("", [])
    if paths:
        splits.setdefault("train", others)
    for split, jsons in splits.items():
        if len(jsons) != 1:
            listed = ", ".join(str(path.relative_to(data)) for path in jsons) or "none"
            problem = f"{data} must have one json with {split!r} in its path, but has {listed}"
            raise ValueError(f"{problem}: give the json itself")
    return {split: jsons[0] for split, jsons in splits.items()}


def _has_annotations(path: Path) -> bool:
    content = path.read_bytes()
    key = '"annotations"'
    return any(key.encode(name) in content for name in ("utf-8", "utf-16-le", "utf-16-be"))


def read_jsons(paths: dict[str, Path], root: Path) -> Dataset[Objects]:
    """Describe the jsons of splits, whose images are below `root` or where the jsons say.

    What mmdet would misread is corrected, to be written as a copy: ids, paths, numbers as text,
    and categories that differ from those of training.

    Raises:
        FileNotFoundError: If the images of a json are not found.
        ValueError: If a json is not in COCO's format, or cannot train.
    """
    splits = {split: _Reader(path, root).read() for split, path in paths.items()}
    training = splits["train"].content
    categories = [(category["id"], category["name"]) for category in training["categories"]]
    if not categories or not training["annotations"]:
        counts = f"{len(categories)} categories and {len(training['annotations'])} annotations"
        raise ValueError(f"{paths['train']} has {counts}: annotate it")
    for objects in splits.values():
        _align(objects, training["categories"])
        if objects.corrected:
            objects.json = None
    return Dataset(tuple(name for _, name in categories), splits)


def _align(objects: Objects, categories: Sequence[dict]) -> None:
    """Give a split the categories of training."""
    content = objects.content
    names = {category["id"]: category["name"] for category in content["categories"]}
    ids = {category["name"]: category["id"] for category in categories}
    if list(names.items()) == [(number, name) for name, number in ids.items()]:
        return
    objects.corrected["categories in another order or with other ids"] += len(names)
    known = []
    for annotation in content["annotations"]:
        name = names[annotation["category_id"]]
        if name in ids:
            known.append(annotation | dict(category_id=ids[name]))
        else:
            objects.left_out[f"objects of {name!r}, which is not in the training json"] += 1
    content.update(categories=list(categories), annotations=known)


class _Reader:
    """Reads a json, and corrects what mmdet and pycocotools would misread."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.root = root
        self.left_out: Counter[str] = Counter()
        self.corrected: Counter[str] = Counter()

    def read(self) -> Objects:
        content = read_coco(self.path, _REQUIRED, correct=self._correct)
        folder = self._find_images(content)
        return Objects(content, folder, self.path, self.left_out, self.corrected)

    def _correct(self, content: dict[str, Any]) -> None:
        image_ids = self._number("images", content["images"])
        category_ids = self._number("categories", content["categories"])
        self._merge_categories(content, category_ids)
        annotations = []
        for annotation in content["annotations"]:
            image_id = image_ids.get(_key(annotation["image_id"]))
            category_id = category_ids.get(_key(annotation["category_id"]))
            if image_id is None or category_id is None:
                self.left_out["annotations of an unknown image or category"] += 1
                continue
            self._set(annotation, "image_id", image_id)
            self._set(annotation, "category_id", category_id)
            if isinstance(annotation["bbox"], list):
                self._set(annotation, "bbox", [_number(value) for value in annotation["bbox"]])
            self._set(annotation, "iscrowd", _number(annotation.get("iscrowd") or 0))
            area = annotation.get("area")
            self._set(annotation, "area", _area(annotation) if area is None else _number(area))
            annotations.append(annotation)
        content["annotations"] = annotations
        self._number_annotations(annotations)
        for image in content["images"]:
            for side in ("width", "height"):
                self._set(image, side, _number(image.get(side) or 0))

    def _set(self, entry: dict, key: str, value: Any) -> None:
        """Replace a value that differs, also only by its type, and count it."""
        if entry.get(key) != value or isinstance(entry[key], bool):
            self.corrected[f"values of {key}"] += 1
        entry[key] = value

    def _number(self, name: str, entries: Sequence[dict]) -> dict[str, int]:
        """Make the ids whole numbers. Return them by the keys of the former ids."""
        keys = list(dict.fromkeys(_key(entry["id"]) for entry in entries))
        numbered = all(key.isdecimal() and int(key) < _EXACT for key in keys)
        ids = {key: int(key) if numbered else place for place, key in enumerate(keys, start=1)}
        for entry in entries:
            self._set(entry, "id", ids[_key(entry["id"])])
        return ids

    def _number_annotations(self, annotations: Sequence[dict]) -> None:
        """Number annotations 1, 2, ... unless their ids are such numbers: pycocotools takes 0 for
        missed, and confuses equal ids.
        """
        keys = [_key(annotation.get("id", "")) for annotation in annotations]
        if len(set(keys)) == len(keys) and all(
            key.isdecimal() and 0 < int(key) < _EXACT for key in keys
        ):
            numbers = [int(key) for key in keys]
        else:
            numbers = list(range(1, len(keys) + 1))
        for annotation, number in zip(annotations, numbers, strict=True):
            self._set(annotation, "id", number)

    def _merge_categories(self, content: dict[str, Any], ids: dict[str, int]) -> None:
        """Keep the first of categories with one name."""
        first: dict[str, int] = {}
        kept = []
        for category in content["categories"]:
            if category["name"] not in first:
                first[category["name"]] = category["id"]
                kept.append(category)
        names = {category["id"]: category["name"] for category in content["categories"]}
        for key, number in ids.items():
            ids[key] = first[names[number]]
        if len(kept) < len(content["categories"]):
            self.corrected["categories with the name of another"] += len(names) - len(kept)
        content["categories"] = kept

    def _find_images(self, content: dict[str, Any]) -> Path:
        """Find the images, and return their folder. Those that are missing are left out."""
        images = content["images"]
        folder = find_image_folder(self.path, [image["file_name"] for image in images])
        places = {
            image["id"]: (folder or self.path.parent) / image["file_name"] for image in images
        }
        missing = [image for image in images if not places[image["id"]].is_file()]
        index = PhotoIndex(self.root) if missing else None
        moved = False
        for image in missing:
            place = index.find(image["file_name"]) if index else None
            if place:
                moved = True
                places[image["id"]] = place
            else:
                del places[image["id"]]
        if not places:
            problem = f"{images[0]['file_name']} of {self.path} is not below {self.root}"
            raise FileNotFoundError(f"{problem}: put the images there")
        if len(places) < len(images):
            self._drop(content, places)
        if moved or folder is None:
            folder = common_folder(places.values())
            for image in content["images"]:
                file_name = places[image["id"]].relative_to(folder).as_posix()
                self._set(image, "file_name", file_name)
        for image in content["images"]:
            place = places[image["id"]]
            check_bands(place)
            if not image["width"] or not image["height"]:
                width, height = image_size(place)
                self._set(image, "width", width)
                self._set(image, "height", height)
        return folder

    def _drop(self, content: dict[str, Any], places: dict[int, Path]) -> None:
        """Leave out the images without a place, with their annotations."""
        kept = [image for image in content["images"] if image["id"] in places]
        names = [image["file_name"] for image in content["images"] if image["id"] not in places]
        reason = f"images that are missing, such as {names[0]}"
        self.left_out[reason] = len(names)
        self.corrected["images that are missing"] = len(names)
        content["images"] = kept
        content["annotations"] = [a for a in content["annotations"] if a["image_id"] in places]


def _key(value: Any) -> str:
    """Return the same text for the ids 1, 1.0, '1' and '1.0'."""
    try:
        return str(int(value)) if float(value).is_integer() else str(value)
    except (ValueError, TypeError, OverflowError):
        return str(value)


def _number(value: Any) -> Any:
    """Return the number of a text. Other values stay."""
    if not isinstance(value, str):
        return value
    number = float(value)
    return int(number) if number.is_integer() else number


def _area(annotation: dict) -> float:
    segmentation = annotation.get("segmentation")
    if isinstance(segmentation, list) and segmentation:
        return sum(map(polygon_area, segmentation))
    return annotation["bbox"][2] * annotation["bbox"][3]
