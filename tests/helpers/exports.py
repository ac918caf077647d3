"""Small data sets exactly as tools export them, each with the arguments of `finetune`."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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


def write_photos(folder: Path, split: str) -> None:
    """Write the photos of a split. The camera of `a` was turned."""
    folder.mkdir(parents=True)
    for name in OBJECTS[split]:
        photo = Image.new("RGB", (HEIGHT, WIDTH) if name == "a" else (WIDTH, HEIGHT), (90, 120, 60))
        exif = Image.Exif()
        exif[0x0112] = 6 if name == "a" else 1
        photo.save(folder / f"{name}.jpg", exif=exif)


def write_json(path: Path, split: str) -> None:
    """Write a COCO json. Boxes have outlines, ids start from 0, and no object is of category 0."""
    names = ("nuts", *CLASSES)
    images = []
    annotations: list[dict[str, Any]] = []
    for number, (name, objects) in enumerate(OBJECTS[split].items()):
        images.append(dict(id=number, file_name=f"{name}.jpg", width=WIDTH, height=HEIGHT))
        for label, box in objects:
            annotation = dict(
                id=len(annotations),
                image_id=number,
                category_id=names.index(label),
                bbox=box,
                area=box[2] * box[3],
                segmentation=[outline(*box)],
                iscrowd=0,
                attributes=dict(occluded=False),
            )
            annotations.append(annotation)
    categories = [dict(id=id_, name=name) for id_, name in enumerate(names)]
    content = dict(info={}, images=images, annotations=annotations, categories=categories)
    path.write_text(json.dumps(content))


def write_roboflow_coco(root: Path) -> list[str]:
    jsons = []
    for split, folder in (("train", "train"), ("val", "valid")):
        write_photos(root / folder, split)
        jsons.append(root / folder / "_annotations.coco.json")
        write_json(jsons[-1], split)
    return [str(jsons[0]), "--val", str(jsons[1])]


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


def write_yolo(
    root: Path, photos: dict[str, str], files: dict[str, str], are_polygons: bool = False
) -> list[str]:
    """Write photos into the folder of each split, their labels, and texts by path."""
    for split, folder in photos.items():
        write_photos(root / folder, split)
        write_labels(root / folder.replace("images", "labels"), split, are_polygons)
    for path, text in files.items():
        (root / path).write_text(text)
    return [str(root / "data.yaml")]


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
EXPORTS: dict[str, Callable[[Path], list[str]]] = {
    "Roboflow COCO": write_roboflow_coco,
    "Roboflow YOLO": partial(
        write_yolo,
        photos={"train": "train/images", "val": "valid/images"},
        files={"data.yaml": ROBOFLOW_YAML},
    ),
    "CVAT Ultralytics YOLO Segmentation 1.0": partial(
        write_yolo,
        photos={"train": "images/train"},
        files={"data.yaml": f"{NAMES}path: .\ntrain: train.txt\n", "train.txt": LIST},
        are_polygons=True,
    ),
    "Ultralytics": partial(
        write_yolo,
        photos={"train": "images/train", "val": "images/val"},
        files={"data.yaml": ULTRALYTICS_YAML},
    ),
}


def write_export(name: str, root: Path) -> list[str]:
    """Write an export, and return the arguments of `finetune` for it."""
    return EXPORTS[name](root)


def shapes_options(root: Path) -> list[str]:
    """Return the arguments of `finetune` for objects of the shapes of `tools/make_shapes.py`."""
    jsons = f"{root}/annotations/instances_"
    training = [f"{jsons}training.json", "--images", f"{root}/images/training"]
    validation = ["--val", f"{jsons}validation.json", "--val-images", f"{root}/images/validation"]
    return training + validation


def copy_shape_maps(shapes: Path, root: Path) -> Path:
    """Copy the photos and maps of shapes into a folder that `finetune` takes."""
    for split, source in (("train", "training"), ("val", "validation")):
        shutil.copytree(shapes / "images" / source, root / "images" / split)
        shutil.copytree(shapes / "annotations" / source, root / "masks" / split)
    (root / "classes.txt").write_text("none\nground\ncircle\nsquare\ntriangle\nstar\n")
    return root
