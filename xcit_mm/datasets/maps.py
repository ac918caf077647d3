"""Segmentation maps: images/train, images/val, masks/train, masks/val and classes.txt."""

from pathlib import Path

from ..utils.errors import preview
from ..utils.images import PHOTO_SUFFIXES
from .coco import check_unique
from .dataset import Dataset, Maps, read_text


def read(folder: Path) -> Dataset:
    """Read which images and maps a folder has. The errors are those of `read_dataset`."""
    names = folder / "classes.txt"
    if not names.exists():
        raise FileNotFoundError(f"no {names}: docs/your-own-data.md shows the folder of maps")
    classes = read_text(names).rstrip().splitlines()
    if len(classes) < 2 or "" in classes:
        raise ValueError(f"{names}: expected at least two names, one on each line")
    check_unique(classes, f"{names}: two labels are named")
    has_val = (folder / "images" / "val").exists() or (folder / "masks" / "val").exists()
    val = _read_split(folder, "val") if has_val else None
    return Dataset(tuple(classes), _read_split(folder, "train"), val)


def _read_split(folder: Path, split: str) -> Maps:
    image_folder = folder / "images" / split
    map_folder = folder / "masks" / split
    images = _list_images(image_folder, PHOTO_SUFFIXES)
    maps = _list_images(map_folder, (".png",))
    alone = sorted(images.keys() ^ maps.keys())
    if alone or not images:
        problem = f"{image_folder} has {len(images)} images, {map_folder} {len(maps)} maps (*.png)"
        raise FileNotFoundError(f"{problem}; without a partner: {preview(alone) or 'none'}")
    suffixes = sorted(set(images.values()))
    if len(suffixes) > 1:
        raise ValueError(f"{image_folder} has images with the suffixes {suffixes}: expected one")
    return Maps(image_folder, map_folder, suffixes[0], sorted(images))


def _list_images(folder: Path, suffixes: tuple[str, ...]) -> dict[str, str]:
    """Return the suffix of each image below a folder, as mmseg lists them: without hidden files."""
    paths = [path for path in folder.rglob("[!.]*") if path.suffix.lower() in suffixes]
    names = [str(path.relative_to(folder).with_suffix("")) for path in paths]
    check_unique(names, f"{folder}: two images are named")
    return {name: path.suffix for name, path in zip(names, paths, strict=True)}
