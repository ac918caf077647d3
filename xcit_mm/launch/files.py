"""The files of a data set: its photos, their splits, and which label belongs to which photo."""

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PureWindowsPath

from ..utils.walk import iter_files

SPLITS = {
    "train": "train",
    "training": "train",
    "trainval": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""Names that people give to the splits of a data set, with the split."""

PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")

LAYOUTS = "docs/your-own-data.md shows the layouts that are read"

PHOTO_FOLDERS = {"images", "image", "imgs", "img", "photos", "jpegimages", "leftimg8bit"}
LABEL_FOLDERS = {"labels", "label", "annotations", "masks", "mask", "segmentationclass", "gtfine"}
"""Names of folders that divide photos and labels."""

_OTHER_TEXTS = {"classes", "readme", *SPLITS}
"""Names of texts that may be no labels: names of classes, lists of photos."""

_ENDINGS = re.compile("[_-](masks?|seg|labels?|gt|gtfine_labelids|leftimg8bit)$", re.IGNORECASE)


def list_files(folder: Path, *suffixes: str) -> list[Path]:
    """List the files below a folder, also behind links, without those that systems leave."""
    paths = []
    for path in iter_files(folder):
        parts = path.relative_to(folder).parts
        is_hidden = any(part.startswith((".", "__MACOSX")) for part in parts)
        if not is_hidden and path.name.lower().endswith(suffixes or ""):
            paths.append(path)
    return sorted(paths)


def find_photos(folder: Path) -> list[Path]:
    """List the photos below a folder."""
    return list_files(folder, *PHOTO_SUFFIXES)


def read_lines(path: Path) -> list[str]:
    """Read the lines that are not empty of a text in UTF-8, or in UTF-16 with its mark."""
    encoded = path.read_bytes()
    is_utf16 = encoded.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        lines = encoded.decode("utf-16" if is_utf16 else "utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read ({error}): save it as UTF-8") from None
    return [line.strip() for line in lines if line.strip()]


class PhotoIndex:
    """The photos below a folder, found by the last parts of a path of another machine."""

    def __init__(self, folder: Path) -> None:
        self._paths: dict[str, list[Path]] = {}
        for path in find_photos(folder):
            self._paths.setdefault(path.name, []).append(path)

    def find(self, name: str) -> Path | None:
        """Return the photo whose path has most of the last parts of `name`. Several are an
        error.
        """
        parts = PureWindowsPath(name).parts  # also reads paths of other systems
        for length in range(len(parts), 0, -1):
            tail = parts[-length:]
            paths = [path for path in self._paths.get(tail[-1], []) if path.parts[-length:] == tail]
            if len(paths) > 1:
                raise ValueError(f"{name} may be {paths[0]} or {paths[1]}: write more of its path")
            if paths:
                return paths[0]
        return None


def common_folder(paths: Iterable[Path]) -> Path:
    """Return the deepest folder that holds all files."""
    return Path(os.path.commonpath([path.parent for path in paths]))


def split_of(folder: Path) -> str | None:
    """Return the split that a folder is named after: 'val' of Validation/images."""
    for part in reversed(folder.parts):
        for word in re.findall("[a-z]+", part.lower()):
            if word in SPLITS:
                return SPLITS[word]
    return None


def divide_photos(photos: Iterable[Path], root: Path, task: str) -> dict[str, list[Path]]:
    """Return the photos of each split, by Pascal VOC's lists in ImageSets/TASK, or else by folder.

    Photos that no list names are in the split ''.
    """
    texts = [path for path in list_files(root, ".txt") if path.stem in SPLITS]
    lists = [path for path in texts if path.parts[-3:-1] == ("ImageSets", task)]
    split_by_name: dict[Path, str] = {}
    for path in sorted(lists, key=_is_part):
        for stem in read_lines(path):
            split_by_name[path.parents[2] / stem] = SPLITS[path.stem]
    splits: dict[str, list[Path]] = {}
    for photo in photos:
        split = split_of(photo.parent.relative_to(root)) or "train"
        if lists:
            names = [parent / photo.stem for parent in photo.parents]
            split = next((split_by_name[name] for name in names if name in split_by_name), "")
        splits.setdefault(split, []).append(photo)
    return splits


def _is_part(path: Path) -> bool:
    """Return whether a list is read after trainval.txt, of which it is a part."""
    return path.stem != "trainval"


def pair_splits(
    splits: Mapping[str, Sequence[Path]], labels: Sequence[Path], root: Path
) -> tuple[dict[str, list[tuple[Path, Path | None]]], Counter[str]]:
    """Return the photos of each split with their labels, and the number of files left out: those of
    the split '', and labels without a photo.

    A label has the stem of its photo, or adds an ending such as _mask. It is beside the photo, or
    its path below `root` differs only by a folder such as labels/ in place of images/. Two labels
    of a photo are an error.
    """
    labels_by_key: dict[tuple[str, ...], list[Path]] = {}
    for label in labels:
        for key in _keys(label, root):
            labels_by_key.setdefault(key, []).append(label)
    pairs: dict[str, list[tuple[Path, Path | None]]] = {split: [] for split in splits}
    for split, photos in splits.items():
        for photo in photos:
            keys = [key for key in _keys(photo, root) if key in labels_by_key]
            matching = labels_by_key[keys[0]] if keys else [None]
            if len(matching) > 1:
                listed = f"{matching[0]} and {matching[1]}"
                raise ValueError(f"{photo} has the labels {listed}: remove one")
            pairs[split].append((photo, matching[0]))
    used = {label for labelled in pairs.values() for _, label in labelled}
    unused = [path for path in labels if path not in used and not _is_other_text(path)]
    left_out = Counter({"labels without a photo": len(unused)})
    left_out["photos in no split"] = len(pairs.pop("", []))
    if not pairs.get("train"):
        raise ValueError(f"{root} has no photos for training: {LAYOUTS}")
    return pairs, left_out


def _keys(path: Path, root: Path) -> list[tuple[str, ...]]:
    """Return what a photo and its label may have in common, first the place, then the folders that
    do not divide photos and labels, with the name or its begin.
    """
    names = path.relative_to(root).parts[:-1]
    dividing = PHOTO_FOLDERS | LABEL_FOLDERS
    folders = [SPLITS.get(name.lower(), name) for name in names if name.lower() not in dividing]
    begin = _ENDINGS.sub("", path.stem)
    keys = [(str(path.parent), "", path.stem), (*folders, path.stem), (*folders, begin)]
    return list(dict.fromkeys(keys))


def _is_other_text(path: Path) -> bool:
    return path.stem.split(".")[0].lower() in _OTHER_TEXTS


def drop_unlabelled(
    pairs: Mapping[str, Sequence[tuple[Path, Path | None]]], root: Path, left_out: Counter[str]
) -> dict[str, list[tuple[Path, Path]]]:
    """Return the pairs of photos with labels, and count the other photos as left out."""
    splits: dict[str, list[tuple[Path, Path]]] = {}
    for split, photos in pairs.items():
        labelled = [(photo, label) for photo, label in photos if label]
        left_out[f"{split} photos without a label"] = len(photos) - len(labelled)
        if labelled:
            splits[split] = labelled
    if "train" not in splits:
        raise ValueError(f"{root} has no training images with labels: {LAYOUTS}")
    return splits


def has_label_ending(path: Path) -> bool:
    """Return whether a file is named as a label: NAME_mask.png."""
    return _ENDINGS.search(path.stem) is not None
