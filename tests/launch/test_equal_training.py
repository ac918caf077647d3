"""Real data in other layouts train to the losses of the original, bit for bit."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.paths import ROOT, SHARED
from PIL import Image

DATA = SHARED / "data"
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
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()][:3]


def original_objects(folder: Path) -> dict:
    """Write a COCO data set whose images are sorted by name and whose boxes are those of the
    outlines, as in formats without a list of images. Return its content.
    """
    content = json.loads((DATA / "nuts/annotations/instances_train2017.json").read_text())
    content["images"].sort(key=lambda image: image["file_name"])
    for annotation in content["annotations"]:
        (polygon,) = annotation["segmentation"]
        left, top = min(polygon[::2]), min(polygon[1::2])
        annotation["bbox"] = [left, top, max(polygon[::2]) - left, max(polygon[1::2]) - top]
    shutil.copytree(DATA / "nuts/train2017", folder / "train2017")
    (folder / "instances_train2017.json").write_text(json.dumps(content))
    return content


def of_another_machine(content: dict, folder: Path) -> None:
    shutil.copytree(DATA / "nuts/train2017", folder / "photos/a")
    images = [
        image | dict(file_name=f"C:\\me\\{image['file_name']}") for image in content["images"]
    ]
    annotations = [
        entry | dict(id=f"object {entry['id']}", bbox=list(map(str, entry["bbox"])))
        for entry in content["annotations"]
    ]
    changed = content | dict(images=images, annotations=annotations)
    (folder / "result.json").write_text(json.dumps(changed))


def as_labelme(content: dict, folder: Path) -> None:
    shutil.copytree(DATA / "nuts/train2017", folder / "train")
    names = {category["id"]: category["name"] for category in content["categories"]}
    for image in content["images"]:
        shapes = []
        for entry in content["annotations"]:
            if entry["image_id"] == image["id"]:
                values = iter(entry["segmentation"][0])
                points = [list(point) for point in zip(values, values, strict=True)]
                shapes.append(dict(label=names[entry["category_id"]], points=points))
        path = folder / "train" / image["file_name"]
        path.with_suffix(".json").write_text(json.dumps(dict(shapes=shapes)))


@pytest.mark.parametrize("convert", [of_another_machine, as_labelme])
def test_nuts_train_alike_in_other_formats(convert: Callable, trained, folder):
    content = original_objects(folder / "original")
    (folder / "other").mkdir()
    convert(content, folder / "other")
    losses = train(trained, folder / "original")
    assert len(losses) == 3 and train(trained, folder / "other") == losses


def as_masks_beside_png(source: Path, folder: Path) -> None:
    for photo in sorted((source / "images/training").iterdir()):
        path = folder / "train" / f"{photo.stem}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.open(photo).save(path)
        label = source / "annotations/training" / f"{photo.stem}.png"
        shutil.copy(label, path.with_name(f"{photo.stem}_mask.png"))


def as_pascal_voc(source: Path, folder: Path) -> None:
    shutil.copytree(source / "images/training", folder / "VOC2012/JPEGImages")
    shutil.copytree(source / "annotations/training", folder / "VOC2012/SegmentationClass")
    names = [path.stem for path in (folder / "VOC2012/JPEGImages").iterdir()]
    path = folder / "VOC2012/ImageSets/Segmentation/train.txt"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(names))


@pytest.mark.parametrize("convert", [as_masks_beside_png, as_pascal_voc])
@pytest.mark.parametrize("name", ["ade3", "camvid"])
def test_maps_train_alike_in_other_layouts(name: str, convert: Callable, trained_segmentor, folder):
    for part in ("images", "annotations"):
        source = DATA / name / part / "training"
        shutil.copytree(source, folder / "original" / part / "training")
    convert(DATA / name, folder / "other")
    losses = train(trained_segmentor, folder / "original")
    assert len(losses) == 3 and train(trained_segmentor, folder / "other") == losses
