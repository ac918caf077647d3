"""The splits of a data set's photos, and which label belongs to which photo."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePath

from ..utils.errors import counted
from ..utils.images import PHOTO_SUFFIXES
from ..utils.texts import compose, read_lines
from .inventory import LABEL_SUFFIXES, Inventory, LeftOut
from .lookup import Parts, PhotoIndex, is_root, path_parts
from .old_dataset import LAYOUTS

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
PHOTO_FOLDERS = {
    *("images", "image", "imgs", "img", "img_dir", "photos", "jpegimages", "leftimg8bit"),
}
"""Names of folders in which photos lie apart from labels."""
LABEL_FOLDERS = {
    *("labels", "label", "annotations", "ann_dir", "masks", "mask", "segmentationclass", "gtfine"),
    *("gt", "groundtruth"),
}
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
    photos: Sequence[Path], inventory: Inventory, left_out: LeftOut
) -> tuple[dict[str, list[Path]], list[Path]]:
    """Return the photos of each split, and the lists that divide them.

    These are Pascal VOC's lists in ImageSets/Segmentation. Without them the names of folders divide
    the photos, or texts named as splits that list photos, if the folders are not of two splits.
    Other photos are in the split ''; or they are of training, if no photos are and Pascal VOC has
    no list.
    """
    split_of_photo = {photo: split_of(inventory.relative(photo.parent)) or "" for photo in photos}
    texts = [path for path in inventory.with_suffix(".txt") if _split_of_list(path)]
    lists = _choose_lists([path for path in texts if _image_sets(path)])
    listed = _read_lists(lists, photos, inventory)
    if not lists and len({*split_of_photo.values()} - {""}) < 2:
        listed = _read_lists(texts, photos, inventory)
        listed = {path: rows for path, rows in listed.items() if any(rows.values())}
    if listed:
        split_of_photo = dict.fromkeys(photos, "")
    # trainval.txt comes first: photos that val.txt names too are held out.
    for path in sorted(listed, key=lambda path: "trainval" not in path.stem.lower()):
        for named in listed[path].values():
            split_of_photo |= dict.fromkeys(named, _split_of_list(path))
    rows_of_lists = chain(*(rows.items() for rows in listed.values()))
    for name in dict.fromkeys(name for name, named in rows_of_lists if not named):
        left_out.add("photo", "of a list that is missing", name)
    splits: dict[str, list[Path]] = defaultdict(list)
    for photo, split in split_of_photo.items():
        splits[split].append(photo)
    if "" in splits and "train" not in splits and not lists:
        splits["train"] = splits.pop("")
    return dict(splits), list(listed)


def _split_of_list(path: Path) -> str:
    """Return the split of train.txt or train_list.txt, or ''."""
    return SPLITS.get(path.stem.lower().removesuffix("_list"), "")


def _image_sets(path: Path) -> Path | None:
    """Return the folder ImageSets in which a list is."""
    return next((folder for folder in path.parents if folder.name.lower() == "imagesets"), None)


def _choose_lists(lists: Sequence[Path]) -> list[Path]:
    """Return the lists for segmentation, or else for any task, that are not empty."""
    filled = [path for path in lists if read_lines(path)]
    return [path for path in filled if path.parent.name.lower() == "segmentation"] or filled


def _read_lists(
    lists: Sequence[Path], photos: Sequence[Path], inventory: Inventory
) -> dict[Path, dict[Path, list[Path]]]:
    """Return of each list its names, and the photos that each name means."""
    index_of: dict[Path, PhotoIndex] = {}  # by folder
    listed = {}
    for path in lists:
        image_sets = _image_sets(path)
        folder = image_sets.parent if image_sets else inventory.root  # the former is of a year
        if folder not in index_of:
            inside = [photo for photo in photos if folder in photo.parents]
            paths = [photo.relative_to(folder).with_suffix("") for photo in inside]
            index_of[folder] = PhotoIndex(zip(inside, paths, strict=True))
        lines = [_possible_names(line) for line in read_lines(path)]
        named = index_of[folder].find(lines)
        listed[path] = {
            folder.joinpath(*(part for part in names[0] if not is_root(part))): photos_of_name
            for names, photos_of_name in zip(lines, named, strict=True)
        }
    return listed


def _possible_names(line: str) -> list[Parts]:
    """Return the paths, without a suffix, that a line of a list of photos or labels may mean."""
    # Some lists add the label file. CVAT quotes names with spaces.
    candidates = [line, re.sub(r"(\.\w+)[\s,].*", r"\1", line)]
    names = []
    for candidate in dict.fromkeys(candidates):
        name = candidate.strip('"')
        if name.lower().endswith((*PHOTO_SUFFIXES, *LABEL_SUFFIXES)):
            name = name.rpartition(".")[0]
        names.append(path_parts(name))
    return names


def pair_labels(
    splits: Mapping[str, Sequence[Path]],
    labels: Sequence[Path],
    inventory: Inventory,
    left_out: LeftOut,
) -> Pairs:
    """Return the photos of each split with their labels.

    A label has the stem of its photo, or adds an ending such as _mask. It is beside the photo, or
    beside none and its path below the root differs only by a folder such as labels/ in place of
    images/. Labels without a photo and photos of the split '' are left out.

    Raises:
        ValueError: If a photo has several labels, no label is of a photo, or no photo is in the
            split 'train'.
    """
    labels_by_key: dict[tuple, list[Path]] = defaultdict(list)
    beside = {(photo.parent, compose(photo.stem)) for photo in chain(*splits.values())}
    for label in labels:
        first, *others = _pairing_keys(label, inventory)
        for key in [first] if first in beside else [first, *others]:
            labels_by_key[key].append(label)
    pairs: Pairs = {}
    for split, photos in splits.items():
        pairs[split] = [(photo, _find_label(photo, inventory, labels_by_key)) for photo in photos]
    photo_of_label: dict[Path, Path] = {}
    for photo, path in chain(*pairs.values()):
        other = photo_of_label.setdefault(path, photo) if path else photo
        if other != photo:
            raise ValueError(f"{other} and {photo} share the label {path}: rename one")
    unused = sorted(set(inventory.without(photo_of_label)).intersection(labels))
    without_photo = [label for label in unused if not _is_list(label)]
    left_out.add_files("label", "without a photo", without_photo)
    first_photo = next(chain(*splits.values()), None)
    if without_photo and first_photo and not photo_of_label:
        problem = f"none of its labels, such as {without_photo[0]}, is of a photo"
        raise ValueError(f"{_no_training(inventory)}: {problem}, such as {first_photo}; {LAYOUTS}")
    in_no_split = dict(pairs.pop("", []))
    in_splits = [photo for photo, _ in chain(*pairs.values())]
    unlisted = set(inventory.without(in_splits)).intersection(in_no_split)
    left_out.add_files("photo", "in no split", sorted(unlisted))
    unlisted_labels = filter(None, (in_no_split[photo] for photo in sorted(unlisted)))
    left_out.add_files("label", "of photos in no split", unlisted_labels)
    if not pairs.get("train"):
        counts = [f"{counted(len(rows), 'photo')} of {split}" for split, rows in pairs.items()]
        found = ", ".join(filter(None, [*counts, str(left_out)]))
        raise ValueError(f"{inventory.root} has no photos for training, but {found}: {LAYOUTS}")
    return pairs


def _no_training(inventory: Inventory) -> str:
    return f"{inventory.root} has no training images with labels"


def _is_list(path: Path) -> bool:
    """Return whether a file is named as a list of classes or photos."""
    return path.suffix.lower() == ".txt" and path.stem.split(".")[0].lower() in _LIST_STEMS


def _find_label(
    photo: Path, inventory: Inventory, labels_by_key: Mapping[tuple, Sequence[Path]]
) -> Path | None:
    """Return the label that the surest key has. Raise ValueError if a photo has several."""
    labels_of_keys = [labels_by_key.get(key, ()) for key in _pairing_keys(photo, inventory)]
    surest = next(filter(None, labels_of_keys), [])
    alike = [path for path in chain(*labels_of_keys) if compose(path.stem) == compose(photo.stem)]
    labels = list({inventory.real_path(path): path for path in [*surest, *alike]}.values())
    if len(labels) > 1:
        raise ValueError(f"{photo} has the labels {labels[0]} and {labels[1]}: remove one")
    return labels[0] if labels else None


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
) -> tuple[dict[str, list[tuple[Path, Path]]], list[Path]]:
    """Divide photos into splits, by lists or else by folder, pair each photo with its label, and
    leave out photos without a label. Return the pairs of each split, and the lists of photos.

    Raises:
        ValueError: As `pair_labels`, or if no photo of training has a label.
    """
    divided, lists = divide_photos(photos, inventory, left_out)
    pairs = pair_labels(divided, labels, inventory, left_out)
    splits: dict[str, list[tuple[Path, Path]]] = {}
    for split, rows in pairs.items():
        unlabelled = [photo for photo, label in rows if label is None]
        left_out.add_files("photo", f"of {split} without a label", unlabelled)
        labelled = [(photo, label) for photo, label in rows if label]
        if labelled:
            splits[split] = labelled
    if "train" not in splits:
        problem = f"its labels are of photos of {' and '.join(splits) or 'no split'}"
        raise ValueError(f"{_no_training(inventory)}: {problem}; {LAYOUTS}")
    return splits, lists
