"""The files of a data set: its photos, their splits, and which label belongs to which photo."""

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PureWindowsPath

from ..utils.walk import iter_files

SPLITS = {
    "train": ("train", "training", "trainval"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
"""Splits of a data set, with the names that people give them."""

PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")

LAYOUTS = "docs/your-own-data.md shows the layouts that are read"

PHOTO_FOLDERS = {"images", "image", "imgs", "img", "photos", "jpegimages", "leftimg8bit"}
LABEL_FOLDERS = {"labels", "label", "annotations", "masks", "mask", "segmentationclass", "gtfine"}
"""Names of folders that divide photos and labels."""

_OTHER_TEXTS = {"classes", "readme", *(name for names in SPLITS.values() for name in names)}
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
    """Read the lines of a text that are not empty.

    Raises:
        ValueError: If it is neither UTF-8 nor UTF-16 with a byte order mark.
    """
    content = path.read_bytes()
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read ({error}): save it as UTF-8") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


class PhotoIndex:
    """The photos below a folder, found by the last parts of a path of another machine."""

    def __init__(self, folder: Path) -> None:
        self._paths: dict[str, list[Path]] = {}
        for path in find_photos(folder):
            self._paths.setdefault(path.name, []).append(path)

    def find(self, name: str) -> Path | None:
        """Return the photo whose path has most of the last parts of `name`.

        Raises:
            ValueError: If several have.
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
        words = re.findall("[a-z]+", part.lower())
        for split, names in SPLITS.items():
            if not set(names).isdisjoint(words):
                return split
    return None


def divide_photos(photos: Iterable[Path], root: Path, task: str) -> dict[str, list[Path]]:
    """Return the photos of each split, by Pascal VOC's lists in ImageSets/TASK, or else by folder.

    Photos that no list names are in the split ''.
    """
    lists: dict[str, set[Path]] = {}
    for folder in {path.parent for path in list_files(root, ".txt")}:
        if folder.parts[-2:] == ("ImageSets", task):
            for split, names in SPLITS.items():
                files = [folder / f"{name}.txt" for name in names]
                for file in [file for file in files if file.is_file()][:1]:  # before trainval
                    stems = read_lines(file)
                    lists.setdefault(split, set()).update(folder.parents[1] / s for s in stems)
    splits: dict[str, list[Path]] = {}
    for photo in photos:
        split = split_of(photo.parent.relative_to(root)) or "train"
        if lists:
            names_of_photo = {parent / photo.stem for parent in photo.parents}
            listed = [name for name, names in lists.items() if names & names_of_photo]
            split = next(iter(listed), "")
        splits.setdefault(split, []).append(photo)
    return splits


def pair_splits(
    splits: Mapping[str, Sequence[Path]], labels: Iterable[Path], root: Path
) -> tuple[dict[str, list[tuple[Path, Path | None]]], Counter[str]]:
    """Return the photos of each split with their labels, and the number of files left out: those of
    the split '', and labels without a photo.

    A label has the stem of its photo, or adds an ending such as _mask. It is beside the photo, or
    its path below `root` differs only by a folder such as labels/ in place of images/.

    Raises:
        ValueError: If a photo has two labels, or no photo is for training.
    """
    beside = {(label.parent, label.stem): label for label in labels}
    by_key: dict[tuple[str, ...], list[Path]] = {}
    for label in beside.values():
        for key in _keys(label, root):
            by_key.setdefault(key, []).append(label)
    unused = {
        label for label in beside.values() if label.stem.split(".")[0].lower() not in _OTHER_TEXTS
    }
    pairs: dict[str, list[tuple[Path, Path | None]]] = {}
    for split, photos in splits.items():
        pairs[split] = []
        for photo in photos:
            place = (photo.parent, photo.stem)
            matching = [beside[place]] if place in beside else []
            for key in _keys(photo, root):
                matching = matching or by_key.get(key, [])
            if len(matching) > 1:
                labels_of_photo = f"{matching[0]} and {matching[1]}"
                raise ValueError(f"{photo} has the labels {labels_of_photo}: remove one")
            unused.difference_update(matching)
            pairs[split].append((photo, matching[0] if matching else None))
    left_out = Counter({"labels without a photo": len(unused)})
    left_out["photos in no split"] = len(pairs.pop("", []))
    if not pairs.get("train"):
        raise ValueError(f"{root} has no photos for training: {LAYOUTS}")
    return pairs, left_out


def drop_unlabelled(
    pairs: Mapping[str, Sequence[tuple[Path, Path | None]]], root: Path, left_out: Counter[str]
) -> dict[str, list[tuple[Path, Path]]]:
    """Return the pairs of photos with labels, and count the other photos as left out.

    Raises:
        ValueError: If no photo for training has a label.
    """
    splits: dict[str, list[tuple[Path, Path]]] = {}
    for split, photos in pairs.items():
        labelled = [(photo, label) for photo, label in photos if label]
        left_out[f"{split} photos without a label"] = len(photos) - len(labelled)
        if labelled:
            splits[split] = labelled
    if "train" not in splits:
        raise ValueError(f"{root} has no training images with labels: {LAYOUTS}")
    return splits


def _keys(path: Path, root: Path) -> list[tuple[str, ...]]:
    """Return what a photo and its label have in common: the folders and the name, or its begin."""
    folders = []
    for name in path.relative_to(root).parts[:-1]:
        if name.lower() not in PHOTO_FOLDERS | LABEL_FOLDERS:
            is_split = any(name.lower() in names for names in SPLITS.values())
            folders.append(split_of(Path(name)) or "" if is_split else name)
    stems = dict.fromkeys((path.stem, _ENDINGS.sub("", path.stem)))
    return [(*folders, stem) for stem in stems]


def has_label_ending(path: Path) -> bool:
    """Return whether a file is named as a label: NAME_mask.png."""
    return _ENDINGS.search(path.stem) is not None
