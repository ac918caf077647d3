"""COCO's format: a json for each split, and folders of images."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .coco_json import CocoJson, read_detections
from .inventory import Inventory, LeftOut
from .lookup import PhotoIndex, find_photos
from .old_dataset import Dataset, Image, Split
from .pairs import split_of
from .photo_labels import image_sizes, stated_size

_KINDS = ("captions", "person_keypoints", "stuff", "panoptic")
_SAMPLE = 100  # images of a json that are looked for in each folder


def read(inventory: Inventory) -> Dataset | None:
    """Read the jsons of splits, whose images are in the inventory or where the jsons say."""
    annotated = [path for path in inventory.describing(".json") if _has_annotations(path)]
    # COCO also has captions and keypoints of the same images.
    instances = {path for path in annotated if path.name.startswith("instances_")}
    others = {
        path.with_name(f"{kind}_{path.name.partition('_')[2]}")
        for path in instances
        for kind in _KINDS
    }
    jsons = list(filter(None, map(read_detections, sorted({*annotated} - others))))
    if not jsons:
        return None
    left_out = LeftOut(inventory.root)
    json_of_split = _choose_jsons(jsons, inventory, left_out)
    training = json_of_split["train"]
    classes = tuple(dict.fromkeys(training.category_names))
    if not classes or not len(training.objects):
        counts = f"{len(classes)} categories and {len(training.objects)} annotations"
        raise ValueError(f"{training.path} has {counts}: annotate it")
    splits = {}
    for name, coco in json_of_split.items():
        split = _to_split(coco, classes, inventory, left_out)
        if split.images or name == "train":
            splits[name] = split
        else:
            left_out.add_files("json", f"of {name} whose photos are all left out", [coco.path])
    listed = [path for split in splits.values() for path in split.files]
    unlisted = inventory.other_photos([*listed, *left_out.files])
    left_out.add_files("photo", "that no json lists", unlisted)
    return Dataset("COCO", classes, splits, left_out, inventory, jsons[0].path)


def _has_annotations(path: Path) -> bool:
    """Return whether a json has the key of COCO's annotations. Other jsons are not decoded."""
    encoded = path.read_bytes()
    encodings = ("utf-8", "utf-16-le", "utf-16-be")
    return any('"annotations"'.encode(encoding) in encoded for encoding in encodings)


def _choose_jsons(
    jsons: Sequence[CocoJson], inventory: Inventory, left_out: LeftOut
) -> dict[str, CocoJson]:
    """Return the json of each split. A json of no split is that of training, or left out if another
    is of training. A json that was given is that of training.
    """
    splits: dict[str, list[CocoJson]] = defaultdict(list)
    for coco in jsons:
        name = inventory.relative(coco.path).with_suffix("")
        is_given = coco.path == inventory.data
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


def _find_photos(
    coco: CocoJson, inventory: Inventory, left_out: LeftOut
) -> tuple[dict[int, Path], dict[int, str]]:
    """Return the paths of photos, and why other images are left out, both by index in the json."""
    names = [image["file_name"] for image in coco.images]
    objects = coco.objects
    unread = dict.fromkeys(
        objects.images[objects.labels < 0].tolist(), "with objects of an unknown category"
    )
    unread |= dict.fromkeys(objects.images[coco.is_rotated].tolist(), "with rotated boxes")
    photos: dict[int, Path] = {}
    problems: dict[int, str] = {}
    is_found = False
    for number, path in enumerate(_locate(coco, names, inventory)):
        name = names[number]
        is_found |= path is not None
        if path is None:
            left_out.add("image", f"of {coco.path.name} that is missing", name)
            problems[number] = "of an image that is missing"
        elif number in unread:
            left_out.add_files("photo", unread[number], [path])
            problems[number] = f"of photos {unread[number]}"
        else:
            photos[number] = path
    if not is_found:
        problem = f"{names[0]} of {coco.path} is not below {inventory.root}"
        raise FileNotFoundError(f"{problem}: put the images there")
    return photos, problems


def _locate(coco: CocoJson, names: Sequence[str], inventory: Inventory) -> list[Path | None]:
    """Return the path of each image, or None: in the folder of the json's images, or else of a
    photo in a folder below it. A photo in a folder of another split is none of the json's.
    """
    folder = find_image_folder(coco.path, names)
    paths = [(folder or coco.path.parent) / name for name in names]
    located = [path if path.is_file() else None for path in paths]
    missing = [number for number, path in enumerate(located) if path is None]
    if not missing:
        return located
    split = split_of(inventory.relative(coco.path).with_suffix(""))
    root = folder or inventory.root
    below = [photo for photo in inventory.photos if root in photo.parents]
    rows = [(photo, photo.relative_to(root)) for photo in below]
    if split is not None:
        rows = [(photo, path) for photo, path in rows if split_of(path.parent) in (None, split)]
    missing_names = [names[number] for number in missing]
    photos = find_photos(missing_names, PhotoIndex(rows), is_whole=folder is not None)
    for number, photo in zip(missing, photos, strict=True):
        located[number] = photo
    return located


def _to_split(
    coco: CocoJson, classes: Sequence[str], inventory: Inventory, left_out: LeftOut
) -> Split:
    """Return the images of a json that are used, each once, with their objects."""
    photos, problems = _find_photos(coco, inventory, left_out)
    index_of: dict[str, int] = {}  # by real path
    indices = np.full(len(coco.images) + 1, -1)  # the last for unknown images, whose index is -1
    used: list[tuple[Path, tuple[int, int] | None]] = []
    for number, path in photos.items():
        real_path = inventory.real_path(path)
        if real_path in index_of:
            left_out.add("image", "of a photo that is listed twice: both have its objects", path)
        else:
            index_of[real_path] = len(used)
            entry = coco.images[number]
            used.append((path, stated_size(entry.get("width"), entry.get("height"))))
        indices[number] = index_of[real_path]
    sizes = image_sizes(path for path, size in used if not size)

    names = coco.category_names
    numbers = {name: label for label, name in enumerate(classes)}
    labels_of_categories = np.array([numbers.get(name, -1) for name in names] + [-1])
    objects = coco.objects
    images = indices[objects.images]
    labels = labels_of_categories[objects.labels]
    is_used = (images >= 0) & (labels >= 0)
    for row in np.flatnonzero(~is_used).tolist():
        image = int(objects.images[row])
        if image in problems:
            reason = problems[image]
        elif image < 0:
            reason = "of an unknown image"
        else:
            name = names[objects.labels[row]]
            reason = f"of the class {name!r}, which is not in the training json"
        left_out.add("object", reason, f"id {objects.ids[row]} of {coco.path.name}")
    if coco.keypoints:
        left_out.add("set", "of keypoints", coco.path, coco.keypoints)
    return Split(
        [Image(path, *(size or sizes[path])) for path, size in used],
        coco.path,
        objects.select(is_used, images[is_used], labels[is_used]),
    )


def find_image_folder(path: Path, file_names: Sequence[str]) -> Path | None:
    """Find the folder to which the file names of a COCO json are relative.

    Of the json's folder, `images` in it, a folder named as the json without `instances_`, and that
    folder in `images`, and of the same in the folder above, it is the one with most of the images;
    of several, the last, beside the json before above. None if no folder has an image.
    """
    name = path.stem.removeprefix("instances_")
    sample = file_names[:: max(1, len(file_names) // _SAMPLE)]
    counts = {}
    for parent in (path.parent.parent, path.parent):
        for folder in ("", "images", name, f"images/{name}"):
            counts[parent / folder] = sum((parent / folder / file).is_file() for file in sample)
    most = max(counts.values())
    return [folder for folder, count in counts.items() if count == most][-1] if most else None
