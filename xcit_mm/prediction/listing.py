"""Listing of the images to predict: files, those below folders, or those of a COCO json."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from ..datasets.coco import read_coco
from ..utils.errors import ArgumentError, preview
from ..utils.folders import SETTINGS
from ..utils.images import PHOTO_SUFFIXES

_FIX = "give images, folders, or a COCO .json with the root of its paths; see docs/recipes.md"


class Item(NamedTuple):
    """An image to predict.

    Attributes:
        path: Absolute path.
        name: Path below its source, after which the results are named.
        id: `id` in a COCO json. Default: given by the run.
    """

    path: str
    name: str
    id: int | None = None

    @property
    def checksum(self) -> int:
        """CRC-32 of the path, the same in every process and every run."""
        return crc32(os.fsencode(self.path))


class Listing(NamedTuple):
    """What is to be predicted.

    Attributes:
        left_out: Paths below folders that were left out.
        categories: Ids of the categories in a COCO json, by name.
    """

    items: list[Item]
    left_out: Sequence[str] = ()
    categories: Mapping[str, int] = {}


def find_items(
    inputs: str | Path | Sequence[str | Path] | Listing, root: str | Path | None = None
) -> Listing:
    """List the images to predict.

    Hidden files, links to folders, folders of results and other files are left out. Some images of
    a COCO json may be missing: their predictions fail.

        listing = find_items("photos")
        [item.path for item in listing.items], listing.left_out

    Args:
        inputs: Images, folders of images, the path of one COCO json, or a listing, which stays.
        root: Folder of the paths in a json. Default: that of the json. A listing has its own.

    Raises:
        ArgumentError: If a file has another format, or two images have one path, name or id.
        OSError: If an input does not exist, has no images or cannot be read.
    """
    if isinstance(inputs, Listing):
        _check_unique(inputs.items)
        return inputs
    inputs = [inputs] if isinstance(inputs, str | Path) else inputs
    paths = [os.fspath(path) for path in inputs]
    if len(paths) == 1 and _suffix(paths[0]) == ".json":
        listing = _read_coco(Path(paths[0]), root)
    elif root is not None:
        raise ArgumentError("root", f"{root} is for the paths in a COCO .json: leave it out")
    else:
        left_out: list[str] = []
        items = [item for path in paths for item in _list_source(path, left_out)]
        listing = Listing(items, left_out)
    if not any(os.path.isfile(item.path) for item in listing.items):
        raise FileNotFoundError(f"no images at {preview(paths)}: {_FIX}")
    _check_unique(listing.items)
    return listing


def _check_unique(items: Sequence[Item]) -> None:
    """Raise ArgumentError if several images have one path, name or id."""
    fixes = {
        "path": "give it once",
        "name": "predict them into several folders, or give the folder that holds them",
        "id": "give each its own",
    }
    for field, fix in fixes.items():
        counts = Counter(getattr(item, field) for item in items)
        del counts[None]  # ids that the run gives
        for value, count in counts.most_common(1):
            if count > 1:
                raise ArgumentError("inputs", f"{count} images have the {field} {value}: {fix}")


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _list_source(source: str, left_out: list[str]) -> list[Item]:
    """List an image, or those below a folder, and add to `left_out` what else the folder has."""
    if not os.path.isfile(source):
        paths = sorted(_images_below(source, left_out))
        return [Item(os.path.abspath(path), os.path.relpath(path, source)) for path in paths]
    if _suffix(source) not in PHOTO_SUFFIXES:
        raise ArgumentError("inputs", f"{source} is not in a format that can be predicted: {_FIX}")
    return [Item(os.path.abspath(source), os.path.basename(source))]


def _images_below(folder: str, left_out: list[str]) -> Iterator[str]:
    """Yield the paths of the images below a folder.

    Links to folders, folders of results and other files are added to `left_out`. Hidden files and
    folders are not.
    """
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    if any(entry.name == SETTINGS for entry in entries):
        left_out.append(folder)
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _images_below(entry.path, left_out)
        elif not entry.is_dir() and _suffix(entry.name) in PHOTO_SUFFIXES:
            yield entry.path
        else:
            left_out.append(entry.path)


def _read_coco(path: Path, root: str | Path | None) -> Listing:
    coco = read_coco(path)
    folder = os.path.abspath(root or path.parent)
    items = []
    for image in coco.images:
        image_path = os.path.abspath(os.path.join(folder, image.file_name))
        name = os.path.relpath(image_path, folder)
        if name.startswith(os.pardir + os.sep):
            problem = f"{path}: the file_name {image.file_name} leads out of {folder}"
            raise ArgumentError("root", f"{problem}: give a folder that holds all images")
        items.append(Item(image_path, name, image.id))
    categories = {category.name: category.id for category in coco.categories}
    return Listing(items, categories=categories)
