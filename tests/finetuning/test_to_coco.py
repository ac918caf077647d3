"""`train --from MODEL --data DATA` reads data sets of YOLO and Pascal VOC, and describes others."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

CLASSES = ("circle", "square")


def write_yolo(data: Path, root: Path, polygons: bool = False) -> Path:
    """Write a data set in COCO's format as Ultralytics and Roboflow do."""
    for split, name in (("training", "train"), ("validation", "valid")):
        content = json.loads((data / "annotations" / f"instances_{split}.json").read_text())
        shutil.copytree(data / "images" / split, root / name / "images")
        (root / name / "labels").mkdir()
        for image in content["images"]:
            lines = []
            for each in (
                each for each in content["annotations"] if each["image_id"] == image["id"]
            ):
                x, y, w, h = each["bbox"]
                values = (
                    [x + w / 2, y + h / 2, w, h]
                    if not polygons
                    else [x, y, x + w, y, x + w, y + h, x, y + h]
                )
                size = (image["width"], image["height"])
                values = [value / size[place % 2] for place, value in enumerate(values)]
                lines.append(" ".join(map(str, [each["category_id"] - 1, *values])))
            (root / name / "labels" / Path(image["file_name"]).with_suffix(".txt").name).write_text(
                "\n".join(lines)
            )
    names = "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: [circle, square]\n"
    (root / "data.yaml").write_text(names)
    return root


def write_voc(data: Path, root: Path) -> Path:
    """Write a data set in COCO's format as that of VOC2012."""
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for split, name in (("validation", "val"), ("training", "train")):
        content = json.loads((data / "annotations" / f"instances_{split}.json").read_text())
        names = {each["id"]: each["name"] for each in content["categories"]}
        stems = []
        for image in content["images"]:
            stem = f"{name}{Path(image['file_name']).stem}"
            stems.append(stem)
            shutil.copy(
                data / "images" / split / image["file_name"], root / "JPEGImages" / f"{stem}.jpg"
            )
            objects = ""
            for each in (
                each for each in content["annotations"] if each["image_id"] == image["id"]
            ):
                x, y, w, h = each["bbox"]
                sides = dict(xmin=x + 1, ymin=y + 1, xmax=x + w, ymax=y + h)
                box = "".join(f"<{side}>{value}</{side}>" for side, value in sides.items())
                objects += f"<object><name>{names[each['category_id']]}</name><bndbox>{box}</bndbox></object>"
            (root / "Annotations" / f"{stem}.xml").write_text(f"<annotation>{objects}</annotation>")
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(stems))
    return root


@pytest.mark.parametrize("form", ["yolo", "polygons", "voc"])
def test_yolo_and_pascal_voc_become_coco_jsons_beside_the_config(
    form, trained, data, started, folder
):
    pytest.importorskip("supervision")
    other = (
        write_voc(data, folder / form)
        if form == "voc"
        else write_yolo(data, folder / form, form == "polygons")
    )
    cfg = started(trained, "--data", other)
    assert cfg.train_dataloader.dataset.metainfo.classes == CLASSES
    assert cfg.model.type == ("MaskRCNN" if form == "polygons" else "FasterRCNN")
    for split, name in (("train", "training"), ("val", "validation")):
        found = json.loads(Path(cfg[f"{split}_dataloader"].dataset.ann_file).read_text())
        given = json.loads((data / "annotations" / f"instances_{name}.json").read_text())
        assert len(found["images"]) == len(given["images"])
        boxes, same = (
            sorted((*each["bbox"], each["category_id"]) for each in content["annotations"])
            for content in (found, given)
        )
        assert len(boxes) == len(same) and np.abs(np.array(boxes) - np.array(same)).max() <= 1
        assert not any(each["iscrowd"] for each in found["annotations"])
    assert Path(cfg.train_dataloader.dataset.ann_file).parent == folder / f"{form}-coco"


def test_a_folder_of_another_format_is_described(refused, trained, data, folder):
    other = folder / "labelme"
    shutil.copytree(data / "images" / "training", other)
    for path in list(other.glob("*.jpg")):
        path.with_suffix(".json").write_text(
            json.dumps(dict(version="5", shapes=[], imagePath=path.name))
        )
    assert "is a folder of labelme's json files: expected a COCO json" in refused(
        trained, "--data", other
    )
    assert "is a folder of 8 .csv files" in refused(trained, "--data", rename(other, ".csv"))


def rename(root: Path, suffix: str) -> Path:
    for path in list(root.glob("*.json")):
        path.rename(path.with_suffix(suffix))
    return root
