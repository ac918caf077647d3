"""The files of a data set: its photos, their splits, and which label belongs to which photo."""

import codecs
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PureWindowsPath

from ..utils.walk import iter_files

# Names that people give to the splits of a data set.
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
PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
LAYOUTS = "docs/your-own-data.md shows the layouts that are read"

# Names of the folders in which photos and labels lie apart.
PHOTO_FOLDERS = {"images", "image", "imgs", "img", "photos", "jpegimages", "leftimg8bit"}
LABEL_FOLDERS = {"labels", "label", "annotations", "masks", "mask", "segmentationclass", "gtfine"}

_NO_LABELS = {"classes", "readme", *SPLITS}  # texts that list classes or photos
_ENDINGS = re.compile("[_-](masks?|seg|labels?|gt|gtfine_labelids|leftimg8bit)$", re.IGNORECASE)


def check_is_new(config: Path) -> None:
    """Raise FileExistsError if a config exists that is to be written."""
    if config.exists():
        resume = f"resume by `xcit-mm train {config} --resume`"
        raise FileExistsError(f"{config} exists: {resume}, or name another by --config")


def list_files(folder: Path, *endings: str) -> list[Path]:
    """List the files below a folder, by default all, also behind links, without hidden files and
    folders.
    """
    paths = []
    for path in iter_files(folder):
        parts = path.relative_to(folder).parts
        is_hidden = any(part.startswith((".", "__MACOSX")) for part in parts)
        if not is_hidden and (not endings or path.name.lower().endswith(endings)):
            paths.append(path)
    return sorted(paths)


def find_photos(folder: Path) -> list[Path]:
    """List the photos below a folder."""
    return list_files(folder, *PHOTO_SUFFIXES)


def read_lines(path: Path) -> list[str]:
    """Read the non-empty lines of a text file in UTF-8, or in UTF-16 with a byte order mark."""
    encoded = path.read_bytes()
    is_utf16 = encoded.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        lines = encoded.decode("utf-16" if is_utf16 else "utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read ({error}): save it as UTF-8") from None
    return [line.strip() for line in lines if line.strip()]


class PhotoIndex:
    """The photos below a folder, found by the paths that they had on another machine."""

    def __init__(self, folder: Path) -> None:
        self._by_name: dict[str, list[Path]] = defaultdict(list)
        for path in find_photos(folder):
            self._by_name[path.name].append(path)

    def find(self, name: str) -> Path | None:
        """Return the photo whose path shares the longest end with `name`, or None.

        Raises:
            ValueError: If several photos share it.
        """
        parts = PureWindowsPath(name).parts  # also reads paths of other systems
        for length in range(len(parts), 0, -1):
            end = parts[-length:]
            paths = [path for path in self._by_name.get(end[-1], []) if path.parts[-length:] == end]
            if len(paths) > 1:
                raise ValueError(f"{name} may be {paths[0]} or {paths[1]}: write more of its path")
            if paths:
                return paths[0]
        return None


def split_of(folder: Path) -> str | None:
    """Return the split that a folder is named after: 'val' of Validation/images."""
    for part in reversed(folder.parts):
        for word in re.findall("[a-z]+", part.lower()):
            if word in SPLITS:
                return SPLITS[word]
    return None


def divide_photos(photos: Iterable[Path], root: Path, task: str = "Main") -> dict[str, list[Path]]:
    """Return the photos of each split, by Pascal VOC's lists in ImageSets/TASK, or else by folder.

    Photos that no list names are in the split ''.
    """
    listed = _read_lists(root, task)
    splits: dict[str, list[Path]] = defaultdict(list)
    for photo in photos:
        split = split_of(photo.parent.relative_to(root)) or "train"
        if listed:
            names = [parent / photo.stem for parent in photo.parents]
            split = next((listed[name] for name in names if name in listed), "")
        splits[split].append(photo)
    return dict(splits)


def _read_lists(root: Path, task: str) -> dict[Path, str]:
    """Return the split of each photo that Pascal VOC's lists name: its folder of the year, with
    its stem.
    """
    texts = [path for path in list_files(root, ".txt") if path.stem in SPLITS]
    lists = [path for path in texts if path.parts[-3:-1] == ("ImageSets", task)]
    splits = {}
    # trainval.txt comes first: photos that val.txt names too are held out.
    for path in sorted(lists, key=lambda path: path.stem != "trainval"):
        for stem in read_lines(path):
            splits[path.parents[2] / stem] = SPLITS[path.stem]
    return splits


Pairs = dict[str, list[tuple[Path, Path | None]]]
"""The photos of each split, each with its label if it has one."""


def pair_splits(
    splits: Mapping[str, Sequence[Path]],
    labels: Sequence[Path],
    root: Path,
    left_out: Counter[str],
) -> Pairs:
    """Return the photos of each split with their labels.

    A label has the stem of its photo, or adds an ending such as _mask. It is beside the photo, or
    its path below `root` differs only by a folder such as labels/ in place of images/.

    Args:
        left_out: Counts the photos of the split '' and the labels without a photo, in place.

    Raises:
        ValueError: If a photo has several labels, or no photo is in the split 'train'.
    """
    labels_by_key: dict[tuple, list[Path]] = defaultdict(list)
    for label in labels:
        for key in _keys(label, root):
            labels_by_key[key].append(label)
    pairs: Pairs = {}
    for split, photos in splits.items():
        pairs[split] = [(photo, _find_label(photo, root, labels_by_key)) for photo in photos]
    used = {label for pairs_of_split in pairs.values() for _, label in pairs_of_split}
    unused = [path for path in labels if path not in used]
    left_out["labels without a photo"] = sum(not _is_other_text(path) for path in unused)
    left_out["photos in no split"] = len(pairs.pop("", []))
    if not pairs.get("train"):
        raise ValueError(f"{root} has no photos for training: {LAYOUTS}")
    return pairs


def _find_label(
    photo: Path, root: Path, labels_by_key: Mapping[tuple, Sequence[Path]]
) -> Path | None:
    for key in _keys(photo, root):
        labels = labels_by_key.get(key, ())
        if len(labels) > 1:
            raise ValueError(f"{photo} has the labels {labels[0]} and {labels[1]}: remove one")
        if labels:
            return labels[0]
    return None


def _keys(path: Path, root: Path) -> list[tuple]:
    """Return the keys by which a photo finds its label, the surest first.

    They are the folder with the stem; the parts of the path below `root`, without folders such as
    images/ and labels/; and these without an ending such as _mask. For example, train/images/a.jpg
    and Training/masks/a_mask.png have the key ("train", "a").
    """
    names = path.relative_to(root).parts[:-1]
    apart = PHOTO_FOLDERS | LABEL_FOLDERS
    folders = [SPLITS.get(name.lower(), name) for name in names if name.lower() not in apart]
    short_stem = _ENDINGS.sub("", path.stem)
    keys = [(path.parent, path.stem), (*folders, path.stem), (*folders, short_stem)]
    return list(dict.fromkeys(keys))


def _is_other_text(path: Path) -> bool:
    return path.stem.split(".")[0].lower() in _NO_LABELS


def drop_unlabelled(
    pairs: Pairs, root: Path, left_out: Counter[str]
) -> dict[str, list[tuple[Path, Path]]]:
    """Return the pairs of photos with labels, and count the other photos in `left_out`."""
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
