"""Small data sets exactly as tools export them, each with the options of `train --from`."""

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from PIL import Image

WIDTH, HEIGHT = 40, 30
CLASSES = ("date", "fig")
Box = tuple[int, int, int, int]
OBJECTS: dict[str, dict[str, list[tuple[str, Box]]]] = {
    "train": {
        "a": [("fig", (4, 3, 20, 12)), ("date", (8, 6, 8, 9))],
        "b": [("date", (0, 0, 40, 30))],
        "c": [],
    },
    "val": {"d": [("date", (12, 12, 8, 6))], "e": [("fig", (4, 9, 12, 9))]},
}
"""Class and box of the objects of each photo of each split."""


def write_photos(folder: Path, split: str) -> None:
    """Write the photos of a split. The camera of `a` was turned."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in OBJECTS[split]:
        photo = Image.new("RGB", (HEIGHT, WIDTH) if name == "a" else (WIDTH, HEIGHT), (90, 120, 60))
        exif = Image.Exif()
        exif[0x0112] = 6 if name == "a" else 1
        photo.save(folder / f"{name}.jpg", exif=exif)


def write_json(
    path: Path, split: str, categories: Sequence[str], first: int, prefix: str = ""
) -> None:
    """Write a COCO json, whose ids of images and annotations start at `first`. Categories may be
    unused. Boxes have outlines.
    """
    numbers = {name: number for number, name in enumerate(categories, start=first)}
    ids = count(first)
    images = []
    annotations = []
    for number, (name, objects) in enumerate(OBJECTS[split].items(), start=first):
        size = dict(width=WIDTH, height=HEIGHT)
        images.append(dict(id=number, file_name=f"{prefix}{name}.jpg", license=0, **size))
        for label, (x, y, width, height) in objects:
            outline = [x, y, x + width, y, x + width, y + height, x, y + height]
            shape = dict(bbox=[x, y, width, height], area=width * height, segmentation=[outline])
            keys = dict(id=next(ids), image_id=number, category_id=numbers[label], iscrowd=0)
            annotations.append(keys | shape | dict(attributes=dict(occluded=False)))
    listed = [dict(id=number, name=name, supercategory="none") for name, number in numbers.items()]
    content = dict(info={}, images=images, annotations=annotations, categories=listed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_labels(folder: Path, split: str, are_polygons: bool = False) -> None:
    """Write YOLO's texts. A photo without objects has none."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, objects in OBJECTS[split].items():
        lines = []
        for label, (x, y, width, height) in objects:
            values = [x + width / 2, y + height / 2, width, height]
            if are_polygons:
                values = [x, y, x + width, y, x + width, y + height, x, y + height]
            scaled = [f"{value / (WIDTH, HEIGHT)[i % 2]:.6f}" for i, value in enumerate(values)]
            lines.append(f"{CLASSES.index(label)} {' '.join(scaled)}\n")
        if lines:
            (folder / f"{name}.txt").write_text("".join(lines))


def _roboflow_coco(root: Path) -> list[str]:
    for split, folder in (("train", "train"), ("val", "valid")):
        write_photos(root / folder, split)
        write_json(root / folder / "_annotations.coco.json", split, ("nuts", *CLASSES), 0)
    return ["train/_annotations.coco.json", "--val", "valid/_annotations.coco.json"]


def _roboflow_yolo(root: Path) -> list[str]:
    for split, folder in (("train", "train"), ("val", "valid")):
        write_photos(root / folder / "images", split)
        write_labels(root / folder / "labels", split)
    lines = ["train: ../train/images", "val: ../valid/images", "test: ../test/images", ""]
    lines += ["nc: 2", f"names: {list(CLASSES)}", "", "roboflow:", "  license: MIT", ""]
    (root / "data.yaml").write_text("\n".join(lines))
    return ["data.yaml"]


def _cvat_coco(root: Path) -> list[str]:
    write_photos(root / "images", "train")
    write_json(root / "annotations" / "instances_default.json", "train", CLASSES, 1)
    return ["annotations/instances_default.json", "--images", "images"]


def _cvat_yolo(root: Path, are_polygons: bool = False) -> list[str]:
    write_photos(root / "images" / "train", "train")
    write_labels(root / "labels" / "train", "train", are_polygons)
    names = "names:\n  0: date\n  1: fig\n"
    (root / "data.yaml").write_text(f"{names}path: .\ntrain: train.txt\n")
    lines = [f"data/images/train/{name}.jpg\n" for name in OBJECTS["train"]]
    (root / "train.txt").write_text("".join(lines))
    return ["data.yaml"]


def _label_studio_coco(root: Path) -> list[str]:
    write_photos(root / "images", "train")
    write_json(root / "result.json", "train", CLASSES, 0, "images/")
    return ["result.json"]


def _label_studio_yolo(root: Path) -> list[str]:
    write_photos(root / "images", "train")
    write_labels(root / "labels", "train")
    (root / "classes.txt").write_text("date\nfig\n")
    (root / "notes.json").write_text(json.dumps(dict(categories=[], info={})))
    (root / "data.yaml").write_text("train: images\nnames:\n  0: date\n  1: fig\n")
    return ["data.yaml"]


def _x_anylabeling_yolo(root: Path) -> list[str]:
    write_photos(root / "images", "train")
    write_labels(root / "labels", "train")
    (root / "labels" / "classes.txt").write_text("date\nfig\n")
    (root / "data.yaml").write_text("train: images\nnames:\n  0: date\n  1: fig\n")
    return ["data.yaml"]


def _ultralytics(root: Path) -> list[str]:
    for split in OBJECTS:
        write_photos(root / "images" / split, split)
        write_labels(root / "labels" / split, split)
    lines = ["path: nuts # dataset root dir", "train: images/train", "val: images/val", "test:", ""]
    (root / "data.yaml").write_text("\n".join([*lines, "names:", "  0: date", "  1: fig", ""]))
    return ["data.yaml"]


EXPORTS: dict[str, Callable[[Path], list[str]]] = {
    "Roboflow COCO": _roboflow_coco,
    "Roboflow YOLO": _roboflow_yolo,
    "CVAT COCO 1.0": _cvat_coco,
    "CVAT Ultralytics YOLO Detection 1.0": _cvat_yolo,
    "CVAT Ultralytics YOLO Segmentation 1.0": lambda root: _cvat_yolo(root, are_polygons=True),
    "Label Studio COCO": _label_studio_coco,
    "Label Studio YOLO": _label_studio_yolo,
    "X-AnyLabeling YOLO": _x_anylabeling_yolo,
    "Ultralytics": _ultralytics,
}
"""Functions that write an export into a folder, and return the options from `--data` on."""


def write_export(name: str, root: Path) -> list[str]:
    """Write an export, and return the options of `train --from` for it."""
    options = EXPORTS[name](root)
    values = [word if word.startswith("--") else str(root / word) for word in options]
    return ["--data", *values]


def write_maps(root: Path) -> None:
    """Write a folder of images and segmentation maps."""
    for split in OBJECTS:
        write_photos(root / "images" / split, split)
        (root / "masks" / split).mkdir(parents=True)
        for name, objects in OBJECTS[split].items():
            labels = Image.new("L", (WIDTH, HEIGHT), 255 if name == "c" else 0)
            for label, (x, y, width, height) in objects:
                labels.paste(1 + CLASSES.index(label), (x, y, x + width, y + height))
            labels.save(root / "masks" / split / f"{name}.png")
    (root / "classes.txt").write_text("ground\ndate\nfig\n")


def shapes_options(root: Path) -> list[str]:
    """Return the options of `train --from` for objects of the shapes of `tools/make_shapes.py`."""
    options = []
    for option, images, split in (
        ("--data", "--images", "training"),
        ("--val", "--val-images", "validation"),
    ):
        options += [option, str(root / "annotations" / f"instances_{split}.json")]
        options += [images, str(root / "images" / split)]
    return options


def copy_shape_maps(shapes: Path, root: Path) -> Path:
    """Copy the photos and maps of shapes into a folder that `train --from` takes."""
    for split, source in (("train", "training"), ("val", "validation")):
        shutil.copytree(shapes / "images" / source, root / "images" / split)
        shutil.copytree(shapes / "annotations" / source, root / "masks" / split)
    (root / "classes.txt").write_text("none\nground\ncircle\nsquare\ntriangle\nstar\n")
    return root
