"""Segmentation maps in one layout:

root/images/train/xxx.jpg    root/masks/train/xxx.png
root/images/val/yyy.jpg      root/masks/val/yyy.png
root/classes.txt             names of the labels 0, 1, ..., one on each line
"""

from pathlib import Path

from mmengine.fileio import list_dir_or_file

from ..utils.errors import preview
from ..utils.images import PHOTO_SUFFIXES
from .coco import check_unique
from .dataset import PAGE, Dataset, Maps, read_text


def read(folder: Path) -> Dataset:
    """List the images and maps in a folder, and raise the errors of `read_dataset`."""
    names = folder / "classes.txt"
    if not names.exists():
        raise FileNotFoundError(
            f"no {names}: give a folder as {PAGE} shows; for a raster, give its labels too"
        )
    classes = read_text(names).rstrip("\r\n").splitlines()
    if len(classes) < 2 or "" in classes:
        raise ValueError(
            f"{names}: expected at least two names, one on each line, and no empty line"
        )
    check_unique(classes, f"{names}: two labels are named")
    has_val = (folder / "images" / "val").exists() or (folder / "masks" / "val").exists()
    val = _read_split(folder, "val") if has_val else None
    return Dataset(tuple(classes), _read_split(folder, "train"), val)


def _read_split(folder: Path, split: str) -> Maps:
    image_folder = folder / "images" / split
    map_folder = folder / "masks" / split
    photos = _list_images(image_folder)
    if not photos:
        raise FileNotFoundError(f"{image_folder} is missing or has no images: see {PAGE}")
    suffixes = sorted({path.suffix for path in photos})
    if len(suffixes) > 1:
        raise ValueError(f"{image_folder}: expected images of one suffix, found {suffixes}")
    images = {path.with_suffix("") for path in photos}
    maps = {path.with_suffix("") for path in _list_images(map_folder) if path.suffix == ".png"}
    alone = sorted(images ^ maps)
    if alone:
        problem = f"images of {image_folder} and *.png of {map_folder} need the same names"
        raise FileNotFoundError(f"{problem}: add or remove {preview(alone)}")
    folders = dict(img_path=str(image_folder), seg_map_path=str(map_folder))
    return Maps(dict(data_prefix=folders, img_suffix=suffixes[0]), sorted(images))


def _list_images(folder: Path) -> list[Path]:
    """List the images below a folder, by paths relative to it.

    mmseg lists them in the same way: it leaves out hidden files, but not those in hidden folders.
    """
    names = list_dir_or_file(folder, list_dir=False, recursive=True) if folder.is_dir() else ()
    return [Path(name) for name in names if name.lower().endswith(PHOTO_SUFFIXES)]
