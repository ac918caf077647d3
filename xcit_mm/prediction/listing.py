"""Listing of images: files, folders and COCO jsons."""

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..datasets.coco_json import read_images
from ..datasets.old_coco import find_image_folder
from ..utils.errors import preview, reason
from ..utils.folders import SETTINGS, check_output
from ..utils.images import PHOTO_SUFFIXES
from ..utils.texts import class_name
from ..utils.walk import iter_files
from .items import Item, make_unique

JOURNAL = "journal"
"""Folder of the journals in a folder of predictions."""
FIX = "give an image, a folder or a COCO .json; docs/recipes.md has videos and other formats"


@dataclass
class Listing:
    """What is to be predicted.

    Attributes:
        notes: Lines on files that were left out.
        failures: Path and reason of each folder that cannot be read.
        categories: Ids of the categories in a COCO json, by name.
    """

    items: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    categories: dict[str, int] | None = None


def find_items(
    sources: Sequence[str | Path], root: str | Path | None = None, out: Path | None = None
) -> Listing:
    """List images, the images of folders, and the images of COCO jsons.

    Folders are searched recursively, except for hidden files and folders of results. A file counts
    once, by whatever link to its folder it is listed. The images of a json are not opened, and may
    be missing.

    Args:
        root: Folder of relative paths in a json. Default: that of `find_image_folder`.

    Raises:
        FileNotFoundError: If a source does not exist or has no images.
        PermissionError: If no folder can be read, and there is nothing else.
        ValueError: If a file has another suffix than images, a json is invalid, or `out` is or
            holds a source.
    """
    names = [str(source) for source in sources]
    if out is not None:
        check_output(out, names)
    if "" in names:
        raise ValueError(f"an input is empty text: {FIX}")
    files = []
    listings = []
    categories: dict[str, int] | None = None
    for name in names:
        suffix = _lower_suffix(name)
        if os.path.isdir(name):
            listings.append(_search(Path(name), out))
        elif not os.path.isfile(name):
            raise FileNotFoundError(f"no file or folder at {name}: {FIX}")
        elif suffix == ".json":
            coco = _read_coco(Path(name), root)
            if categories and coco.categories and coco.categories != categories:
                problem = f"{name} has other categories than the json before"
                raise ValueError(f"{problem}: predict them into another --out")
            categories = coco.categories or categories  # a json may only list images
            listings.append(coco)
        elif suffix in PHOTO_SUFFIXES:
            files.append(name)
        else:
            raise ValueError(f"{name} is not in a format that is read: {FIX}")
    if root is not None and not any(_lower_suffix(name) == ".json" for name in names):
        raise ValueError(f"root {root} is for paths in a COCO .json: leave it out")
    return _join([_list_files(files), *listings], categories)


def _lower_suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _join(listings: Sequence[Listing], categories: dict[str, int] | None) -> Listing:
    """Join listings. A file counts once per real folder; a link to a file is a file of its own."""
    real_folder = cache(os.path.realpath)
    first: dict[str, Item] = {}
    count = 0
    for item in (item for listing in listings for item in listing.items):
        folder, name = os.path.split(item.path)
        first.setdefault(os.path.join(real_folder(folder), name), item)
        count += 1
    notes = [note for listing in listings for note in listing.notes]
    failures = [failure for listing in listings for failure in listing.failures]
    if not first:
        raise PermissionError(f"nothing can be read: {preview(failures)}")
    if len(first) < count:
        notes.append(f"left out {count - len(first)} listed twice")
    return Listing(make_unique(list(first.values())), notes, failures, categories)


def _list_files(paths: Sequence[str]) -> Listing:
    """List files. Names are relative to the folder that all share."""
    absolute = [os.path.abspath(path) for path in paths]
    folders = [os.path.dirname(path) for path in absolute]
    shared_folder = os.path.commonpath(folders) if folders else ""
    return Listing([Item(path, os.path.relpath(path, shared_folder)) for path in absolute])


def _search(root: Path, out: Path | None) -> Listing:
    """List a folder. Names are relative to it."""
    errors: list[OSError] = []
    paths = list(iter_files(root, errors.append))

    @cache
    def is_in_another_run(folder: Path) -> bool:
        is_run = (folder / SETTINGS).is_file() and (folder / JOURNAL).is_dir()
        if is_run and (out is None or folder.resolve() != out.resolve()):
            return True
        return folder != root and is_in_another_run(folder.parent)

    listing = Listing(failures=[f"{error.filename}: {reason(error)}" for error in errors])
    left_out = Counter[str]()
    for path in sorted(paths):
        name = path.relative_to(root)
        problem = _why_left_out(path, name, out)
        if is_in_another_run(path.parent):
            problem = "in results of another run"
        if problem:
            left_out[problem] += 1
        else:
            listing.items.append(Item(os.path.abspath(path), name.as_posix()))
    if left_out:
        counts = ", ".join(f"{count} {problem}" for problem, count in left_out.most_common(9))
        listing.notes.append(f"left out {left_out.total()} files: {counts}")
    if not listing.items and not listing.failures:
        reasons = f" ({'; '.join(listing.notes)})" if listing.notes else ""
        raise FileNotFoundError(f"no images at {root}{reasons}: {FIX}")
    return listing


def _why_left_out(path: Path, name: Path, out: Path | None) -> str | None:
    if any(part.startswith(".") for part in name.parts):
        return "hidden"
    if not path.is_file():
        return "no regular file"
    if out is not None and path.resolve().is_relative_to(out.resolve()):
        return f"below the results' folder {out}"
    suffix = _lower_suffix(path.name)
    if suffix not in PHOTO_SUFFIXES:
        return suffix or "without a suffix"
    return None


def _read_coco(path: Path, root: str | Path | None) -> Listing:
    """List the images of a COCO json."""
    coco = read_images(path)
    names = [image["file_name"] for image in coco["images"]]
    folder = root or find_image_folder(path, names)
    if folder is None:
        raise FileNotFoundError(
            f"{names[0]} of {path} is not found beside it: give the folder of images by --root"
        )
    items = []
    for image in coco["images"]:
        location = os.path.abspath(os.path.join(folder, image["file_name"]))
        items.append(Item(location, os.path.relpath(location, folder), image["id"]))
    try:
        return Listing(items, categories=_category_ids(coco))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _category_ids(coco: dict[str, Any]) -> dict[str, Any]:
    """Return the ids of the categories of a COCO json by their names.

    Of two categories with one name, as Roboflow writes them, the one with annotations counts.

    Raises:
        ValueError: If both or none of them have annotations.
    """
    annotations = coco.get("annotations") or []
    annotated = {getattr(annotation, "category_id", None) for annotation in annotations}
    ids: dict[str, list[Any]] = defaultdict(list)
    for category in coco.get("categories") or []:
        ids[class_name(category["name"])].append(category["id"])
    for name, ids_of_name in ids.items():
        used = [id_ for id_ in ids_of_name if id_ in annotated]
        if len(ids_of_name) > 1 and len(used) != 1:
            problem = f"the ids {preview(ids_of_name)} have one name, {name}"
            raise ValueError(f"{problem}, and {len(used)} of them annotations: keep one")
        ids[name] = used or ids_of_name
    return {name: ids_of_name[0] for name, ids_of_name in ids.items()}
