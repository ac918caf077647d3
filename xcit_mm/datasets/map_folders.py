"""Folders of images and of segmentation maps, and perhaps the names of the classes."""

from collections.abc import Mapping
from pathlib import Path

from ..utils.errors import preview
from ..utils.texts import class_name, read_class_names, read_lines
from .inventory import Inventory, LeftOut
from .old_dataset import IGNORED, Dataset, Image, Split, check_repeated
from .old_headers import ImageInfo, read_infos
from .pairs import LABEL_ENDING, LABEL_FOLDERS, PHOTO_FOLDERS, pair_labelled
from .photo_labels import image_sizes

_MIN_SOFT_LABELS = 3  # labels between 0 and 255 of a map with soft edges


def read(inventory: Inventory) -> Dataset | None:
    """Read photos and maps of a folder that has maps. They are recognised by the names of folders,
    by endings such as _mask, or by having one channel. Splits are folders, or Pascal VOC's lists.
    """
    maps = _find_maps(inventory)
    if not maps:
        return None
    photos = sorted(set(inventory.photos).difference(maps))
    left_out = LeftOut(inventory.root)
    labelled, descriptions = pair_labelled(photos, maps, inventory, left_out)
    names = _find_names(inventory)
    infos = read_infos([str(path) for rows in labelled.values() for _, path in rows], are_maps=True)
    for path, info in infos.items():
        if info.map_problem:
            raise ValueError(f"{path} {info.map_problem}")
    _check_palettes(infos)
    if names is not None:
        descriptions.append(names)
        classes = list(map(class_name, read_class_names(names)))
        if not classes:
            raise ValueError(f"{names} is empty: write the name of a label on each line")
        check_repeated(classes, names)
    else:
        _check_edges(infos)
        training = [infos[str(path)].labels for _, path in labelled["train"]]
        labels = {label for pixels in training for label, _ in pixels}
        classes = [f"class {label}" for label in range(max(labels - {IGNORED}, default=0) + 1)]
    if len(classes) < 2:
        problem = f"{inventory.root} has one class, {classes[0]!r}"
        fix = "write the labels 0, 1, ... into the maps, and their names into classes.txt"
        raise ValueError(f"{problem}, besides the ignored label {IGNORED}: {fix}")
    splits = {}
    for split, rows in labelled.items():
        sizes = image_sizes(photo for photo, _ in rows)
        images = [Image(photo, *sizes[photo]) for photo, _ in rows]
        splits[split] = Split(images, [path for _, path in rows])
    return Dataset("maps", tuple(classes), splits, left_out, inventory, maps[0], descriptions)


def _find_names(inventory: Inventory) -> Path | None:
    """Return the file that names the labels, if there is one."""
    files = [path for path in inventory.with_suffix(".txt") if path.name.lower() == "classes.txt"]
    for file in files[1:]:
        if read_lines(file) != read_lines(files[0]):
            raise ValueError(f"{files[0]} and {file} name labels otherwise: remove one")
    return files[0] if files else None


def _find_maps(inventory: Inventory) -> list[Path]:
    """List the images that are segmentation maps."""
    maps = []
    unnamed = []
    for path in inventory.photos:
        folders = [name.lower() for name in reversed(inventory.relative(path).parts[:-1])]
        named = [name for name in folders if name in LABEL_FOLDERS | PHOTO_FOLDERS]
        if (named and named[0] in LABEL_FOLDERS) or (not named and LABEL_ENDING.search(path.stem)):
            maps.append(path)
        elif not named:
            unnamed.append(path)
    with_map = {(path.parent, LABEL_ENDING.sub("", path.stem)) for path in maps}
    unnamed = [path for path in unnamed if (path.parent, path.stem) not in with_map]
    image_sizes(unnamed)  # raises if a file is not an image
    infos = read_infos([str(path) for path in unnamed])
    maps += [Path(path) for path, info in infos.items() if info.channels == 1 and not info.is_lossy]
    return maps


def _check_palettes(infos: Mapping[str, ImageInfo]) -> None:
    """Raise ValueError if a map gives a colour to another label than another map."""
    label_of_color: dict[tuple, tuple[int, str]] = {}
    for path, info in infos.items():
        labels: dict[tuple, list[int]] = {}
        for (label, _), color in zip(info.labels, info.colors, strict=False):
            labels.setdefault(tuple(color), []).append(label)
        for color, labels_of_color in labels.items():
            if len(labels_of_color) > 1:
                continue  # a map that gives a colour to several labels says nothing about it
            label = labels_of_color[0]
            other, other_path = label_of_color.setdefault(color, (label, path))
            if other != label:
                problem = f"the colour {color} has label {other} in {other_path}, {label} in {path}"
                raise ValueError(f"{problem}: write all maps with one palette")


def _check_edges(infos: Mapping[str, ImageInfo]) -> None:
    """Raise ValueError if most maps have soft edges: labels between 0 and 255, each of fewer pixels
    than 0 and than 255.
    """
    soft = []
    for path, info in infos.items():
        pixels = dict(info.labels)
        least = min(pixels.pop(0, 0), pixels.pop(IGNORED, 0))
        if len(pixels) >= _MIN_SOFT_LABELS and max(pixels.values()) < least:
            soft.append(path)
    if len(soft) > len(infos) / 2:
        problem = f"{len(soft)} of {len(infos)} maps have soft edges between 0 and 255"
        fix = "write the labels 0 and 1, or the names of the labels into classes.txt"
        raise ValueError(f"{problem}, such as {preview(soft[:1])}: {fix}")
