"""The splits of a data set's photos, and which label belongs to which photo."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePath, PureWindowsPath

from ..utils.images import PHOTO_SUFFIXES
from ..utils.texts import compose, read_lines
from .dataset import LAYOUTS
from .inventory import Inventory, LeftOut

SPLITS = {
    "train": "train",
    "training": "train",
    "trainval": "train",
    "trainset": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "validate": "val",
    "valset": "val",
    "dev": "val",
    "eval": "val",
    "evaluation": "val",
    "test": "test",
    "testing": "test",
    "testset": "test",
}
"""Names that people give to the splits of a data set."""
PHOTO_FOLDERS = {"images", "image", "imgs", "img", "photos", "jpegimages", "leftimg8bit"}
"""Names of folders in which photos lie apart from labels."""
LABEL_FOLDERS = {"labels", "label", "annotations", "masks", "mask", "segmentationclass", "gtfine"}
"""Names of folders in which labels lie apart from photos."""

LABEL_ENDING = re.compile("[_-](masks?|seg|labels?|gt|gtfine_labelids|leftimg8bit)$", re.IGNORECASE)
"""The end of the stem of a file that is a label, such as NAME_mask.png."""
_LIST_STEMS = {"classes", "readme", *SPLITS}  # stems of texts that list classes or photos

Pairs = dict[str, list[tuple[Path, Path | None]]]
"""The photos of each split, each with its label if it has one."""


def split_of(path: PurePath) -> str | None:
    """Return the split that a path names, the last name first: 'val' of Validation/images."""
    for part in reversed(path.parts):
        for word in re.findall("[a-z]+", part.lower()):
            if word in SPLITS:
                return SPLITS[word]
    return None


def divide_photos(
    photos: Sequence[Path], inventory: Inventory, left_out: LeftOut, task: str = "Main"
) -> dict[str, list[Path]]:
    """Return the photos of each split, by Pascal VOC's lists in ImageSets/TASK, or else by folder.

    Photos that no list names are in the split ''. So are those of folders without a split, if
    another folder is of training; otherwise they are of training.
    """
    lists = find_lists(inventory, task)
    listed = _read_lists(lists, photos, left_out)
    splits: dict[str, list[Path]] = defaultdict(list)
    for photo in photos:
        split = listed.get(photo) if lists else split_of(inventory.relative(photo.parent))
        splits[split or ""].append(photo)
    if "" in splits and "train" not in splits and not lists:
        splits["train"] = splits.pop("")
    return dict(splits)


def find_lists(inventory: Inventory, task: str = "Main") -> list[Path]:
    """List Pascal VOC's lists of the photos of splits, ImageSets/TASK/val.txt: those of a task, or
    else of any. CVAT's default.txt, a list of all photos, is left out.
    """
    texts = [path for path in inventory.with_suffix(".txt") if path.stem.lower() in SPLITS]
    lists = [path for path in texts if path.parts[-3:-2] == ("ImageSets",) and read_lines(path)]
    return [path for path in lists if path.parent.name == task] or lists


def _read_lists(
    lists: Sequence[Path], photos: Sequence[Path], left_out: LeftOut
) -> dict[Path, str]:
    """Return the split of each photo that Pascal VOC's lists name by an end of its path."""
    by_end: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    for folder in {path.parents[2] for path in lists}:  # VOC2012 of VOC2012/ImageSets/TASK/val.txt
        for photo in photos:
            if folder in photo.parents:
                parts = photo.relative_to(folder).with_suffix("").parts
                for start in range(len(parts)):
                    by_end[folder, compose("/".join(parts[start:]))].append(photo)
    splits: dict[Path, str] = {}
    missing: dict[Path, None] = {}
    # trainval.txt comes first: photos that val.txt names too are held out.
    for path in sorted(lists, key=lambda path: path.stem.lower() != "trainval"):
        folder = path.parents[2]
        for line in read_lines(path):
            # The list of a class adds 1, 0 or -1. CVAT quotes names with spaces.
            names = [_clean_name(line), _clean_name(re.sub(r"\s+-?[01]$", "", line))]
            named = next((by_end[folder, name] for name in names if (folder, name) in by_end), [])
            splits |= dict.fromkeys(named, SPLITS[path.stem.lower()])
            if not named:
                missing[folder / names[0]] = None
    for name in missing:
        left_out.add("photo", "of a list that is missing", name)
    return splits


def _clean_name(name: str) -> str:
    """Return the name of a photo in a list as an end of its path: without quotes and suffix, with
    slashes.
    """
    path = PureWindowsPath(compose(name.strip('"')))  # also reads slashes
    is_photo = path.suffix.lower() in PHOTO_SUFFIXES
    return (path.with_suffix("") if is_photo else path).as_posix()


def pair_labels(
    splits: Mapping[str, Sequence[Path]],
    labels: Sequence[Path],
    inventory: Inventory,
    left_out: LeftOut,
) -> Pairs:
    """Return the photos of each split with their labels.

    A label has the stem of its photo, or adds an ending such as _mask. It is beside the photo, or
    its path below the root differs only by a folder such as labels/ in place of images/. Labels
    without a photo and photos of the split '' are left out.

    Raises:
        ValueError: If a photo has several labels, or no photo is in the split 'train'.
    """
    labels_by_key: dict[tuple, list[Path]] = defaultdict(list)
    for label in labels:
        for key in _pairing_keys(label, inventory):
            labels_by_key[key].append(label)
    pairs: Pairs = {}
    for split, photos in splits.items():
        pairs[split] = [(photo, _find_label(photo, inventory, labels_by_key)) for photo in photos]
    photo_of_label: dict[Path, Path] = {}
    for photo, path in chain(*pairs.values()):
        other = photo_of_label.setdefault(path, photo) if path else photo
        if other != photo:
            raise ValueError(f"{other} and {photo} share the label {path}: rename one")
    unused = set(inventory.without(photo_of_label)).intersection(labels)
    for label in sorted(unused):
        is_list = label.suffix.lower() == ".txt" and label.stem.split(".")[0].lower() in _LIST_STEMS
        noun, reason = ("other file", "") if is_list else ("label", "without a photo")
        left_out.add_files(noun, reason, [label])
    in_no_split = dict(pairs.pop("", []))
    in_splits = [photo for photo, _ in chain(*pairs.values())]
    unlisted = set(inventory.without(in_splits)).intersection(in_no_split)
    left_out.add_files("photo", "in no split", sorted(unlisted))
    unlisted_labels = filter(None, (in_no_split[photo] for photo in sorted(unlisted)))
    left_out.add_files("label", "of photos in no split", unlisted_labels)
    if not pairs.get("train"):
        raise ValueError(f"{inventory.root} has no photos for training: {LAYOUTS}")
    return pairs


def _find_label(
    photo: Path, inventory: Inventory, labels_by_key: Mapping[tuple, Sequence[Path]]
) -> Path | None:
    """Return the label that shares the surest key with a photo."""
    for key in _pairing_keys(photo, inventory):
        labels = labels_by_key.get(key, ())
        if len(labels) > 1:
            raise ValueError(f"{photo} has the labels {labels[0]} and {labels[1]}: remove one")
        if labels:
            return labels[0]
    return None


def _pairing_keys(path: Path, inventory: Inventory) -> list[tuple]:
    """Return the keys that a photo shares with its label, the surest first."""
    # train/images/a.jpg and Training/masks/a_mask.png have the key ("train", "a").
    names = map(compose, inventory.relative(path).parts[:-1])
    apart = PHOTO_FOLDERS | LABEL_FOLDERS
    folders = [SPLITS.get(name.lower(), name) for name in names if name.lower() not in apart]
    stem = compose(path.stem)
    short_stem = LABEL_ENDING.sub("", stem)
    keys = [(path.parent, stem), (*folders, stem), (*folders, short_stem)]
    return list(dict.fromkeys(keys))


def pair_labelled(
    photos: Sequence[Path],
    labels: Sequence[Path],
    inventory: Inventory,
    left_out: LeftOut,
    task: str = "Main",
) -> dict[str, list[tuple[Path, Path]]]:
    """Divide photos into splits, by the lists of a task or else by folder, pair each photo with its
    label, and leave out photos without a label.

    Raises:
        ValueError: As `pair_labels`, or if no photo of training has a label.
    """
    splits_of_photos = divide_photos(photos, inventory, left_out, task)
    pairs = pair_labels(splits_of_photos, labels, inventory, left_out)
    splits: dict[str, list[tuple[Path, Path]]] = {}
    for split, rows in pairs.items():
        unlabelled = [photo for photo, label in rows if label is None]
        left_out.add_files("photo", f"of {split} without a label", unlabelled)
        labelled = [(photo, label) for photo, label in rows if label]
        if labelled:
            splits[split] = labelled
    if "train" not in splits:
        raise ValueError(f"{inventory.root} has no training images with labels: {LAYOUTS}")
    return splits
