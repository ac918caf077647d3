"""Small data sets exactly as tools export them, each with the options of `train --from`."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

WIDTH, HEIGHT = 40, 30
CLASSES = ("date", "fig")
OBJECTS: dict[str, dict[str, list[tuple[str, tuple[int, ...]]]]] = {
    "train": {
        "a": [("fig", (4, 3, 20, 12)), ("date", (8, 6, 8, 9))],
        "b": [("date", (0, 0, 40, 30))],
        "c": [],
    },
    "val": {"d": [("date", (12, 12, 8, 6))], "e": [("fig", (4, 9, 12, 9))]},
}
"""Class and box of the objects of each photo of each split."""


def outline(x: int, y: int, width: int, height: int) -> list[int]:
    """Return the corners of a box as a polygon of COCO."""
    return [x, y, x + width, y, x + width, y + height, x, y + height]


class Export(NamedTuple):
    """What a tool writes.

    Attributes:
        photos: Folder of the photos of each split.
        files: Texts by path.
        options: Those of `train --from`.
        jsons: Path of the COCO json of each split. Without jsons, labels are YOLO's.
        first: First id in jsons.
    """

    photos: dict[str, str]
    files: dict[str, str]
    options: str = "--data data.yaml"
    jsons: Sequence[str] = ()
    categories: Sequence[str] = CLASSES
    first: int = 0
    are_polygons: bool = False


NAMES = "names:\n  0: date\n  1: fig\n"
LIST = "".join(f"data/images/train/{name}.jpg\n" for name in OBJECTS["train"])
ROBOFLOW_YAML = f"""train: ../train/images
val: ../valid/images
test: ../test/images

nc: 2
names: {list(CLASSES)}

roboflow:
  license: MIT
"""
ULTRALYTICS_YAML = f"""path: nuts # dataset root dir
train: images/train
val: images/val
test:

{NAMES}"""
EXPORTS = {
    "Roboflow COCO": Export(
        {"train": "train", "val": "valid"},
        {},
        options="--data train/_annotations.coco.json --val valid/_annotations.coco.json",
        jsons=["train/_annotations.coco.json", "valid/_annotations.coco.json"],
        categories=("nuts", *CLASSES),
    ),
    "Roboflow YOLO": Export(
        {"train": "train/images", "val": "valid/images"}, {"data.yaml": ROBOFLOW_YAML}
    ),
    "CVAT COCO 1.0": Export(
        {"train": "images"},
        {},
        options="--data annotations/instances_default.json --images images",
        jsons=["annotations/instances_default.json"],
        first=1,
    ),
    "CVAT Ultralytics YOLO Segmentation 1.0": Export(
        {"train": "images/train"},
        {"data.yaml": f"{NAMES}path: .\ntrain: train.txt\n", "train.txt": LIST},
        are_polygons=True,
    ),
    "Ultralytics": Export(
        {"train": "images/train", "val": "images/val"}, {"data.yaml": ULTRALYTICS_YAML}
    ),
}


def write_export(name: str, root: Path) -> list[str]:
    """Write an export, and return the options of `train --from` for it."""
    export = EXPORTS[name]
    for split, folder in export.photos.items():
        write_photos(root / folder, split)
        if not export.jsons:
            write_labels(root / folder.replace("images", "labels"), split, export.are_polygons)
    for split, path in zip(export.photos, export.jsons, strict=False):
        write_json(root / path, split, export)
    for path, text in export.files.items():
        (root / path).write_text(text)
    return [word if word.startswith("--") else str(root / word) for word in export.options.split()]


def write_photos(folder: Path, split: str) -> None:
    """Write the photos of a split. The camera of `a` was turned."""
    folder.mkdir(parents=True)
    for name in OBJECTS[split]:
        photo = Image.new("RGB", (HEIGHT, WIDTH) if name == "a" else (WIDTH, HEIGHT), (90, 120, 60))
        exif = Image.Exif()
        exif[0x0112] = 6 if name == "a" else 1
        photo.save(folder / f"{name}.jpg", exif=exif)


def write_labels(folder: Path, split: str, are_polygons: bool) -> None:
    """Write YOLO's texts. A photo without objects has none."""
    folder.mkdir(parents=True)
    for name, objects in OBJECTS[split].items():
        lines = ""
        for label, (x, y, width, height) in objects:
            values = [x + width / 2, y + height / 2, width, height]
            if are_polygons:
                values = outline(x, y, width, height)
            sides = (WIDTH, HEIGHT) * (len(values) // 2)
            parts = [f"{value / side:.6f}" for value, side in zip(values, sides, strict=True)]
            lines += f"{CLASSES.index(label)} {' '.join(parts)}\n"
        if lines:
            (folder / f"{name}.txt").write_text(lines)


def write_json(path: Path, split: str, export: Export) -> None:
    """Write a COCO json. Boxes have outlines."""
    first = export.first
    images = []
    annotations: list[dict[str, Any]] = []
    for number, (name, objects) in enumerate(OBJECTS[split].items(), start=first):
        images.append(dict(id=number, file_name=f"{name}.jpg", width=WIDTH, height=HEIGHT))
        for label, box in objects:
            annotation = dict(
                id=len(annotations) + first,
                image_id=number,
                category_id=export.categories.index(label) + first,
                bbox=box,
                area=box[2] * box[3],
                segmentation=[outline(*box)],
                iscrowd=0,
                attributes=dict(occluded=False),
            )
            annotations.append(annotation)
    categories = [dict(id=id_, name=name) for id_, name in enumerate(export.categories, first)]
    content = dict(info={}, images=images, annotations=annotations, categories=categories)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def shapes_options(root: Path) -> list[str]:
    """Return the options of `train --from` for objects of the shapes of `tools/make_shapes.py`."""
    jsons = f"{root}/annotations/instances_"
    training = ["--data", f"{jsons}training.json", "--images", f"{root}/images/training"]
    validation = ["--val", f"{jsons}validation.json", "--val-images", f"{root}/images/validation"]
    return training + validation


def copy_shape_maps(shapes: Path, root: Path) -> Path:
    """Copy the photos and maps of shapes into a folder that `train --from` takes."""
    for split, source in (("train", "training"), ("val", "validation")):
        shutil.copytree(shapes / "images" / source, root / "images" / split)
        shutil.copytree(shapes / "annotations" / source, root / "masks" / split)
    (root / "classes.txt").write_text("none\nground\ncircle\nsquare\ntriangle\nstar\n")
    return root
