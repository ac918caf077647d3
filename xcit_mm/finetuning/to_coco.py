"""Data sets of other tools, read by supervision and written as COCO jsons."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from supervision import DetectionDataset

EXPECTED = "a COCO json or a folder with one, YOLO's folder with data.yaml, or Pascal VOC's folders with xml files"
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test")}


def convert(data: Path, out: Path) -> dict[str, tuple[Path, Path]]:
    """Write the splits of a YOLO or Pascal VOC data set as COCO jsons in a folder.

    Returns:
        The json and the folder of images of the splits 'train' and, if there are held-out images,
        'val'.

    Raises:
        ValueError: If the folder is in another format. The message says what was found.
    """
    description = next(data.glob("data.y*ml"), None)
    if description is None and not any(data.rglob("*.xml")):
        raise ValueError(f"{data} is {_describe(data)}: expected {EXPECTED}")
    found = dict(_read_yolo(description) if description else _read_voc(data))
    if "train" not in found:
        raise ValueError(
            f"{data} has no training images: expected a split 'train' in {description or data}"
        )
    names = {name for dataset in found.values() for name in dataset.classes}
    classes = (
        found["train"].classes if description else sorted(names)
    )  # the xml files of a split may lack a class
    return {
        split: _write(dataset, classes, out / f"{split}.json") for split, dataset in found.items()
    }


def _read_yolo(description: Path) -> Iterator[tuple[str, "DetectionDataset"]]:
    """Read the folders of a data.yaml, which are relative to `path` or, as Roboflow exports, to the
    file.
    """
    import supervision as sv

    content = yaml.safe_load(description.read_text())
    roots = [description.parent / str(content.get("path") or ""), description.parent]
    for split, keys in SPLITS.items():
        given = next((str(content[key]) for key in keys if content.get(key)), None)
        if given is None:
            continue
        names = (given, given.removeprefix("../"))
        folder = next(
            (root / name for name in names for root in roots if (root / name).is_dir()), None
        )
        if folder is None:
            raise FileNotFoundError(
                f"{description}: {split} must be a folder of images, but is {given}"
            )
        images = folder / "images" if (folder / "images").is_dir() else folder
        labels = Path(re.sub(r"images(?!.*images)", "labels", str(images)))
        yield split, sv.DetectionDataset.from_yolo(str(images), str(labels), str(description))


def _read_voc(data: Path) -> Iterator[tuple[str, "DetectionDataset"]]:
    """Read the splits of folders of images and xml files: listed in ImageSets, or each in a folder
    of its own.
    """
    import supervision as sv

    lists = {path.stem: set(path.read_text().split()) for path in data.glob("ImageSets/Main/*.txt")}
    for split, names in SPLITS.items():
        folder = next((data / name for name in names if (data / name).is_dir()), data)
        xml = next(folder.rglob("*.xml"), None)
        if xml is None or (folder == data and split != "train" and split not in lists):
            continue
        images = next(
            (folder / name for name in ("images", "JPEGImages") if (folder / name).is_dir()), folder
        )
        dataset = sv.DetectionDataset.from_pascal_voc(str(images), str(xml.parent))
        paths = [
            path
            for path in dataset.image_paths
            if Path(path).stem in lists.get(split, {Path(path).stem})
        ]
        yield (
            split,
            sv.DetectionDataset(
                dataset.classes, paths, {path: dataset.annotations[path] for path in paths}
            ),
        )


def _write(dataset: "DetectionDataset", classes: Sequence[str], path: Path) -> tuple[Path, Path]:
    """Write a data set with these classes as a COCO json. Return it and the folder of its images."""
    dataset.image_paths.sort()  # folders are listed in another order on every machine
    dataset.as_coco(annotations_path=str(path))
    content: dict[str, Any] = json.loads(path.read_text())
    names = {category["id"]: category["name"] for category in content["categories"]}
    for annotation in content["annotations"]:
        annotation["category_id"] = 1 + list(classes).index(names[annotation["category_id"]])
        annotation["iscrowd"] = (
            0  # supervision marks masks with holes as crowds, on which mmdet does not train
        )
    content["categories"] = [dict(id=1 + number, name=name) for number, name in enumerate(classes)]
    path.write_text(json.dumps(content))
    return path, Path(dataset.image_paths[0]).parent


def _describe(data: Path) -> str:
    """Describe what a folder holds, by the most frequent kind of file besides images."""
    files = [
        path for path in data.rglob("*.*") if path.suffix.lower() not in (".jpg", ".jpeg", ".png")
    ]
    if any(
        path.suffix == ".json" and b'"shapes"' in path.read_bytes()[:100_000] for path in files[:9]
    ):
        return "a folder of labelme's json files"
    kinds = Counter(path.suffix.lower() for path in files).most_common(1)
    return (
        f"a folder of {kinds[0][1]} {kinds[0][0]} files" if kinds else "a folder of images or none"
    )
