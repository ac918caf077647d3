"""COCO's format: a json for each split, and folders of images."""

from pathlib import Path

from ..utils.coco import find_image_folder, read_coco
from .dataset import Dataset, Objects


def find_jsons(data: Path) -> dict[str, Path]:
    """Return the jsons of the splits in a folder, none if it has no COCO jsons.

    Raises:
        ValueError: If the json of the training images is unclear.
    """
    paths = sorted(path for pattern in ("*.json", "*/*.json") for path in data.glob(pattern))
    # COCO also has captions, and labelme has a json for each image.
    paths = [path for path in paths if path.name.startswith("instances")] or paths
    if not any(b'"annotations"' in path.read_bytes() for path in paths[:3]):
        return {}
    names = {path: str(path.relative_to(data)) for path in paths}
    training = [path for path in paths if "train" in names[path]] or paths
    if len(training) != 1:
        listed = ", ".join(names[path] for path in training)
        problem = f"{data} must have one json with 'train' in its path, but has {listed}"
        raise ValueError(f"{problem}: give the json itself")
    splits = {"train": training[0]}
    for split in ("val", "test"):
        for path in paths:
            if split in names[path] and path not in splits.values():
                splits.setdefault(split, path)
    return splits


def read_jsons(paths: dict[str, Path]) -> Dataset[Objects]:
    """Describe the jsons of splits.

    Raises:
        FileNotFoundError: If the images of a json are not found.
        ValueError: If a json is not in COCO's format, or cannot train.
    """
    splits = {split: _read_json(path) for split, path in paths.items()}
    content = splits["train"].content
    classes = tuple(category["name"] for category in content["categories"])
    if not classes or not content["annotations"]:
        counts = f"{len(classes)} categories and {len(content['annotations'])} annotations"
        raise ValueError(f"{paths['train']} has {counts}: annotate it")
    return Dataset(classes, splits)


def _read_json(path: Path) -> Objects:
    content = read_coco(path)
    file_names = [image["file_name"] for image in content["images"]]
    folder = find_image_folder(path, file_names)
    if folder is None:
        name = path.stem.removeprefix("instances_")
        places = f"its folder, images/, {name}/ or images/{name}/"
        raise FileNotFoundError(f"{file_names[0]} of {path} is not in {places}")
    for file_name in file_names:
        if file_name.lower().endswith((".tif", ".tiff")):
            problem = f"{file_name} may have many bands or 16 bits"
            raise ValueError(f"{problem}: write a config as in docs/bands.md")
    return Objects(content, folder, path)
