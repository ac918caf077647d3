"""The files that a user gives to `train --from`, each read by the reader of its format."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..utils.errors import counted, preview
from . import maps, yolo
from .coco import CocoFile, read_coco
from .dataset import Dataset


@dataclass(frozen=True)
class Source:
    """Files of a user.

    Attributes:
        data: A COCO json, a data.yaml, or a folder of images and maps.
        val: The COCO json of the validation, or None.
        images: The folder of the images of COCO jsons. Default: that of the json.
        val_images: The folder of the images of `val`. Default: `images`.
    """

    data: Path
    val: Path | None = None
    images: Path | None = None
    val_images: Path | None = None


def read_dataset(source: Source, is_detector: bool, order: Sequence[str] = ()) -> Dataset:
    """Read a data set. Its classes are the categories of objects in the training.

    Args:
        is_detector: Whether objects are wanted, or else segmentation maps.
        order: Names whose order the classes of objects take if they have the same names.

    Raises:
        OSError: If a file or folder is missing.
        ValueError: If a file is not what its format says. The message names it and the place.
    """
    data = source.data
    if data.suffix != ".json" and (source.val or source.images or source.val_images):
        raise ValueError(f"--val, --images and --val-images belong to a COCO json, not to {data}")
    if not is_detector:
        return maps.read(data)
    val = None
    if data.suffix in (".yaml", ".yml"):
        train, val = yolo.read(data)
    elif data.suffix == ".json":
        train = _read_with_photos(data, source.images)
        if source.val is not None:
            val = _read_with_photos(source.val, source.val_images or source.images)
    else:
        recipe = "docs/recipes.md converts Pascal VOC, labelme and CreateML"
        raise ValueError(f"{data} is neither a COCO json nor a data.yaml: {recipe}")
    used = {annotation.category_id for annotation in train.annotations}
    classes = [category.name for category in train.categories if category.id in used]
    if not classes:
        raise ValueError(f"{data}: no image for training has an object")
    if set(classes) == set(order):
        classes = list(order)
    _number_classes(train, classes)
    note = ""
    if val is not None:
        lacking = set(classes).difference(category.name for category in val.categories)
        if lacking:
            raise ValueError(f"{data}: --val has no category {preview(sorted(lacking))}")
        left_out = _number_classes(val, classes)
        if left_out:
            note = f"; left out {counted(left_out, 'object')} of no class of the training"
    return Dataset(tuple(classes), train, val, note)


def _read_with_photos(path: Path, folder: Path | None) -> CocoFile:
    """Read a json, with the paths of its images as their names."""
    coco = read_coco(path)
    for image in coco.images:
        image.file_name = os.path.join(folder or path.parent, image.file_name)
    missing = [image.file_name for image in coco.images if not os.path.isfile(image.file_name)]
    if missing:
        problem = f"{len(missing)} of {len(coco.images)} images of {path} are missing"
        raise FileNotFoundError(f"{problem}, such as {missing[0]}: name their folder by --images")
    return coco


def _number_classes(content: CocoFile, classes: Sequence[str]) -> int:
    """Give objects the numbers of classes. Remove those of other categories, and return how many
    they are.
    """
    numbers = {name: number for number, name in enumerate(classes, start=1)}
    new_ids = {part.id: numbers[part.name] for part in content.categories if part.name in numbers}
    kept = [part for part in content.annotations if part.category_id in new_ids]
    left_out = len(content.annotations) - len(kept)
    for annotation in kept:
        annotation.category_id = new_ids[annotation.category_id]
    content.annotations = kept
    return left_out


def suggest_files(folder: Path) -> list[list[str]]:
    """List the options of `train --from` for each file of a folder that could be meant, by names
    alone.
    """
    paths = list(folder.glob("*.yaml"))
    if not (folder / "classes.txt").exists():  # whose jsons are not COCO's
        jsons = [*folder.glob("*.json"), *folder.glob("*/*.json")]
        paths += sorted(jsons, key=lambda path: ("train" not in str(path), path))
    suggestions = []
    for path in paths:
        options = ["--data", str(path)]
        root = path.parent.parent
        split = path.stem.removeprefix("instances_")
        folders = (root / "images" / split, root / split, root / "images")
        photos = next(filter(Path.is_dir, folders), None)
        if path.parent.name == "annotations" and photos is not None:
            options += ["--images", str(photos)]
        suggestions.append(options)
    return suggestions
