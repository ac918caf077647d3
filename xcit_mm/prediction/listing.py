"""Listing of the images to predict: files, those below folders, or those of a COCO json."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from ..datasets.coco import read_images
from ..utils.errors import preview
from ..utils.folders import SETTINGS, check_output
from ..utils.images import PHOTO_SUFFIXES

FIX = "give an image, a folder or a COCO .json; docs/recipes.md has videos and other formats"


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


class Listing(NamedTuple):
    """What is to be predicted.

    Attributes:
        left_out: Number of files that were left out in folders, by reason.
        categories: Ids of the categories in a COCO json, by name.
    """

    items: list[Item]
    left_out: Mapping[str, int] = {}
    categories: dict[str, int] | None = None


def find_items(
    sources: Sequence[str | Path], root: str | Path | None = None, out: Path | None = None
) -> Listing:
    """List images and the images below folders, or the images of a COCO json.

    Hidden files and folders, other files, and links to folders are left out. Images of a json may
    be missing, but not all.

    Args:
        root: Folder of the paths in a json. Default: that of the json.
        out: Folder of the results, which is not searched.

    Raises:
        OSError: If a source does not exist, has no images or cannot be read.
        ValueError: If a file has another format, two images have one name, a folder has results of
            another run, or `out` is or holds a source.
    """
    names = [os.fspath(source) for source in sources]
    if out is not None:
        check_output(out, names)
    jsons = [name for name in names if name.lower().endswith(".json")]
    if jsons and len(names) > 1:
        raise ValueError(f"{jsons[0]} is not the only input: predict a COCO .json alone")
    if jsons:
        return _read_coco(Path(jsons[0]), root)
    if root is not None:
        raise ValueError(f"root {root} is for paths in a COCO .json: leave it out")
    items = []
    left_out = Counter[str]()
    for name in names:
        if os.path.isdir(name):
            items += _search(name, out, left_out)
        elif not os.path.isfile(name):
            raise FileNotFoundError(f"no file or folder at {name}: {FIX}")
        elif _suffix(name) not in PHOTO_SUFFIXES:
            raise ValueError(f"{name} is not in a format that is read: {FIX}")
        else:
            items.append(Item(os.path.abspath(name), os.path.basename(name)))
    _check_names(items)
    return Listing(items, left_out)


def _search(root: str, out: Path | None, left_out: Counter[str]) -> list[Item]:
    """Return the images below a folder, and count what is left out."""
    results = None if out is None else os.path.realpath(out)
    items = []
    for folder, subfolders, files in os.walk(root, onerror=_raise):
        if SETTINGS in files:
            problem = f"{folder} has results of another run ({SETTINGS})"
            raise ValueError(f"{problem}: move it, or give the folders beside it")
        for name in list(subfolders):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                left_out["link to a folder"] += 1
            elif name.startswith("."):
                left_out["hidden"] += 1
                subfolders.remove(name)
            elif os.path.realpath(path) == results:
                subfolders.remove(name)
        for name in files:
            path = os.path.join(folder, name)
            if name.startswith("."):
                left_out["hidden"] += 1
            elif _suffix(name) in PHOTO_SUFFIXES:
                items.append(Item(os.path.abspath(path), os.path.relpath(path, root)))
            else:
                left_out[_suffix(name) or "without a suffix"] += 1
    if not items:
        only = f", only {preview(left_out)}" if left_out else ""
        raise FileNotFoundError(f"no images at {root}{only}: {FIX}")
    return sorted(items)


def _raise(error: OSError) -> NoReturn:
    raise error


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _check_names(items: Iterable[Item]) -> None:
    """Raise ValueError unless each image is listed once, by a name that no other has."""
    listed: dict[str, Item] = {}  # by path and by name
    for item in items:
        for key in (item.path, item.name):
            other = listed.setdefault(key, item)
            if other is not item:
                problem = f"{other.path} and {item.path} are one image, or have one name"
                raise ValueError(f"{problem}: give a folder of both, or predict each with an --out")


def _read_coco(path: Path, root: str | Path | None) -> Listing:
    """List the images of a COCO json."""
    coco = read_images(path)
    folder = os.path.abspath(root or path.parent)
    items = []
    for image in coco.images:
        name = os.path.normpath(image.file_name)
        if os.path.isabs(name) or os.pardir in name.split(os.sep):
            problem = f"{path}: the file_name {image.file_name} leads out of {folder}"
            raise ValueError(f"{problem}: write paths below the folder of --root")
        items.append(Item(os.path.join(folder, name), name, image.id))
    if not any(os.path.isfile(item.path) for item in items):
        problem = f"no image of {path} is found in {folder}"
        raise FileNotFoundError(f"{problem}: give the folder of its paths by --root")
    _check_names(items)
    categories = {category.name: category.id for category in coco.categories}
    return Listing(items, categories=categories or None)
