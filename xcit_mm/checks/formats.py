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
_YAML = ("data.yaml", "data.yml")
_SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation", "test")}


def is_other_format(data: Path, jsons: Sequence[Path]) -> bool:
    """Return whether a folder is not of COCO's jsons: labelme writes one for each image."""
    is_coco = any(b'"annotations"' in path.read_bytes() for path in jsons[:3])
    return not is_coco or any((data / name).is_file() for name in _YAML)


def convert(data: Path, out: Path) -> dict[str, tuple[Path, Path]]:
    """Write the splits of a YOLO or Pascal VOC data set as COCO jsons in a folder.

    Returns:
        The json and the folder of images of the splits 'train' and, if there are held-out images, 'val'.

    Raises:
        ValueError: If the folder is in another format. The message says what was found.
    """
    import supervision as sv

    description = next((data / name for name in _YAML if (data / name).is_file()), None)
    found: dict[str, DetectionDataset] = {}
    if description:
        for split, images in _yolo_folders(description):
            labels = Path(re.sub(r"images(?!.*images)", "labels", str(images)))
            found[split] = sv.DetectionDataset.from_yolo(str(images), str(labels), str(description))
    elif any(data.rglob("*.xml")):
        for split, images, annotations, names in _voc_folders(data):
            dataset = sv.DetectionDataset.from_pascal_voc(str(images), str(annotations))
            paths = [path for path in dataset.image_paths if not names or Path(path).stem in names]
            boxes = {path: dataset.annotations[path] for path in paths}
            found[split] = sv.DetectionDataset(dataset.classes, paths, boxes)
    else:
        raise ValueError(f"{data} is {_describe(data)}: expected {EXPECTED}")
    if "train" not in found:
        raise ValueError(f"{data} has no training images: expected a split 'train' in {description or data}")
    classes = (
        found["train"].classes if description else sorted({name for each in found.values() for name in each.classes})
    )
    return {split: _write(dataset, classes, out / f"{split}.json") for split, dataset in found.items()}


def _yolo_folders(description: Path) -> Iterator[tuple[str, Path]]:
    """Yield the splits of a data.yaml and their folders, relative to `path` or, as Roboflow exports, to the file."""
    content = yaml.safe_load(description.read_text())
    roots = [description.parent / str(content.get("path") or ""), description.parent]
    for split, keys in (("train", ["train"]), ("val", ["val", "valid", "test"])):
        given = next((content[key] for key in keys if content.get(key)), None)
        if isinstance(given, list) or str(given).endswith(".txt"):
            raise ValueError(f"{description}: {split}={given}: must be one folder of images")
        names = [given, str(given).removeprefix("../")] if given else []
        folder = next((root / name for name in names for root in roots if (root / name).is_dir()), None)
        if given and folder is None:
            raise FileNotFoundError(f"{description}: no folder {given} for {split}: correct the path")
        if folder:
            yield split, folder / "images" if (folder / "images").is_dir() else folder


def _voc_folders(data: Path) -> Iterator[tuple[str, Path, Path, set[str]]]:
    """Yield the splits, their folders of images and xml files, and the stems of their images if they share folders."""
    lists = {path.stem: set(path.read_text().split()) for path in data.glob("ImageSets/Main/*.txt")}
    for split, names in _SPLITS.items():
        folder = next((data / name for name in names if (data / name).is_dir()), None)
        if lists.get(split) and (data / "JPEGImages").is_dir():
            yield split, data / "JPEGImages", data / "Annotations", lists[split]
        elif folder or (split == "train" and not lists):
            folder = folder or data
            parts = [folder / name for name in ("images", "JPEGImages") if (folder / name).is_dir()] or [folder]
            xml = next(folder.rglob("*.xml"), None)
            if xml:
                yield split, parts[0], xml.parent, set()


def _write(dataset: "DetectionDataset", classes: Sequence[str], path: Path) -> tuple[Path, Path]:
    """Write a data set with these classes as a COCO json. Return it and the folder of its images."""
    dataset.image_paths.sort()  # folders are listed in another order on every machine
    dataset.as_coco(annotations_path=str(path))
    content: dict[str, Any] = json.loads(path.read_text())
    names = {category["id"]: category["name"] for category in content["categories"]}
    for annotation in content["annotations"]:
        annotation["category_id"] = 1 + list(classes).index(names[annotation["category_id"]])
        annotation["iscrowd"] = 0  # supervision marks masks with holes as crowds, on which mmdet does not train
    content["categories"] = [dict(id=1 + number, name=name) for number, name in enumerate(classes)]
    path.write_text(json.dumps(content))
    return path, Path(dataset.image_paths[0]).parent


def _describe(data: Path) -> str:
    """Describe what a folder holds, by the most frequent kind of file besides images."""
    files = [path for path in data.rglob("*") if path.is_file()]
    kinds = Counter(path.suffix.lower() for path in files if path.suffix)
    others = [kind for kind, _ in kinds.most_common() if kind not in (".jpg", ".jpeg", ".png")]
    example = next((path for path in files if others and path.suffix.lower() == others[0]), None)
    if example and example.suffix == ".json" and b'"shapes"' in example.read_bytes()[:100_000]:
        return "a folder of labelme's json files"
    return f"a folder of {kinds[others[0]]} {others[0]} files" if others else f"a folder of {len(files)} images or none"
