"""Real data in other layouts train to the losses of the original, bit for bit."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT, SHARED
from PIL import Image

DATA = SHARED / "data"
NUTS = DATA / "nuts"
OPTIONS = ["train_cfg.max_iters=3", "train_cfg.val_interval=9", "randomness.seed=0"]
OPTIONS += ["train_dataloader.num_workers=0", "train_dataloader.persistent_workers=False"]
OPTIONS += ["default_hooks.logger.interval=1", "train_dataloader.batch_size=1"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="the photos of the demo configs are missing"),
]


def train(model: Path, data: Path) -> list[float]:
    """Return the losses of three iterations."""
    arguments = ["--from", model, "--data", data, "--cfg-options", *OPTIONS]
    command = [sys.executable, ROOT / "tools" / "train.py", *arguments]
    run = subprocess.run(command, cwd=data.parent, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
    log = next((data.parent / "work_dirs" / data.name).glob("2*/vis_data/scalars.json"))
    losses = [json.loads(line)["loss"] for line in log.read_text().splitlines()][:3]
    assert len(losses) == 3
    return losses


def original_objects() -> dict:
    """Return a COCO data set whose images are sorted by name and whose boxes are those of the
    outlines, as in formats without a list of images.
    """
    coco = json.loads((NUTS / "annotations/instances_train2017.json").read_text())
    coco["images"].sort(key=lambda image: image["file_name"])
    for annotation in coco["annotations"]:
        (polygon,) = annotation["segmentation"]
        left, top = min(polygon[::2]), min(polygon[1::2])
        annotation["bbox"] = [left, top, max(polygon[::2]) - left, max(polygon[1::2]) - top]
    return coco


def write_labelme(coco: dict, folder: Path) -> None:
    shutil.copytree(NUTS / "train2017", folder / "train")
    names = {category["id"]: category["name"] for category in coco["categories"]}
    shapes: dict[int, list[dict]] = {image["id"]: [] for image in coco["images"]}
    for entry in coco["annotations"]:
        (polygon,) = entry["segmentation"]
        points = list(zip(polygon[::2], polygon[1::2], strict=True))
        shape = dict(label=names[entry["category_id"]], points=points)
        shapes[entry["image_id"]].append(shape)
    for image in coco["images"]:
        path = (folder / "train" / image["file_name"]).with_suffix(".json")
        path.write_text(json.dumps(dict(shapes=shapes[image["id"]])))


def test_nuts_train_alike_in_labelme_s_format(trained, folder):
    shutil.copytree(NUTS / "train2017", folder / "original/train2017")
    coco = original_objects()
    (folder / "original/instances_train2017.json").write_text(json.dumps(coco))
    write_labelme(coco, folder / "other")
    assert train(trained, folder / "original") == train(trained, folder / "other")


@pytest.mark.parametrize("name", ["ade3", "camvid"])
def test_maps_train_alike_beside_photos_as_png(name: str, trained_segmentor, folder):
    for part in ("images", "annotations"):
        shutil.copytree(DATA / name / part / "training", folder / "original" / part / "training")
    (folder / "other/train").mkdir(parents=True)
    for photo in (DATA / name / "images/training").iterdir():
        Image.open(photo).save(folder / "other/train" / f"{photo.stem}.png")
        label = DATA / name / "annotations/training" / f"{photo.stem}.png"
        shutil.copy(label, folder / "other/train" / f"{photo.stem}_mask.png")
    losses = train(trained_segmentor, folder / "original")
    assert losses == train(trained_segmentor, folder / "other")
