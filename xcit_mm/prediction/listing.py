"""Listing of the images to predict: files, those below folders, or those of a COCO json."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from ..datasets.coco import read_images
from ..utils.folders import SETTINGS
from ..utils.images import PHOTO_SUFFIXES

FIX = "give images, folders or one COCO .json; docs/recipes.md has videos and other formats"


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
        left_out: Number of files and folders that were left out in folders, by reason.
        categories: Ids of the categories in a COCO json, by name.
    """

    items: list[Item]
    left_out: Mapping[str, int] = {}
    categories: dict[str, int] | None = None


def find_items(sources: Sequence[str | Path], root: str | Path | None = None) -> Listing:
    """List images and the images below folders, or the images of a COCO json, of which some may be
    missing.

    Hidden files, links to folders, folders of results and other files are left out.

    Args:
        root: Folder of the paths in a json. Default: that of the json.

    Raises:
        OSError: If a source does not exist, has no images or cannot be read.
        ValueError: If a file has another format, or two images have one name.
    """
    paths = [os.fspath(source) for source in sources]
    left_out = Counter[str]()
    if len(paths) == 1 and _suffix(paths[0]) == ".json":
        listing = _read_coco(Path(paths[0]), root)
    elif root is not None:
        raise ValueError(f"root {root} is for paths in a COCO .json: leave it out")
    else:
        items = [item for path in paths for item in _list_source(path, left_out)]
        listing = Listing(items, +left_out)
    listed: dict[str, Item] = {}  # by path and by name
    for item in listing.items:
        for key in (item.path, item.name):
            other = listed.setdefault(key, item)
            if other is not item:
                problem = f"{other.path} and {item.path} are one image, or have one name"
                raise ValueError(f"{problem}: give a folder of both, or predict each with an --out")
    return listing


def _list_source(source: str, left_out: Counter[str]) -> list[Item]:
    """List an image, or those below a folder, and count what is left out."""
    if os.path.isfile(source):
        if _suffix(source) not in PHOTO_SUFFIXES:
            raise ValueError(f"{source} is not in a format that is predicted: {FIX}")
        return [Item(os.path.abspath(source), os.path.basename(source))]
    items = []
    for folder, subfolders, files in os.walk(source, onerror=_raise):
        if SETTINGS in files:
            left_out["folder of results"] += 1
            subfolders.clear()
            continue
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        links = [name for name in subfolders if os.path.islink(os.path.join(folder, name))]
        left_out["link to a folder"] += len(links)
        for name in files:
            if name.startswith("."):
                continue
            path = os.path.join(folder, name)
            if _suffix(name) in PHOTO_SUFFIXES:
                items.append(Item(os.path.abspath(path), os.path.relpath(path, source)))
            else:
                left_out[_suffix(name) or "without a suffix"] += 1
    if not items:
        raise FileNotFoundError(f"no images at {source}: {FIX}")
    return sorted(items)


def _raise(error: OSError) -> NoReturn:
    raise error


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _read_coco(path: Path, root: str | Path | None) -> Listing:
    """List the images of a COCO json."""
    coco = read_images(path)
    folder = os.path.abspath(root or path.parent)
    items = []
    for image in coco.images:
        image_path = os.path.normpath(os.path.join(folder, image.file_name))
        name = os.path.relpath(image_path, folder)
        if name.split(os.sep)[0] == os.pardir:
            problem = f"{path}: the file_name {image.file_name} leads out of {folder}"
            raise ValueError(f"{problem}: write paths below the folder of --root")
        items.append(Item(image_path, name, image.id))
    if not any(os.path.isfile(item.path) for item in items):
        problem = f"no image of {path} is found in {folder}"
        raise FileNotFoundError(f"{problem}: give the folder of its paths by --root")
    categories = {category.name: category.id for category in coco.categories}
    return Listing(items, categories=categories or None)
