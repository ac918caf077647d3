"""predictions.json is what pycocotools evaluates, under the ground truth's ids."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmdet.evaluation import CocoMetric
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from xcit_mm.prediction.inputs import find_inputs
from xcit_mm.prediction.predictor import Predictor
from xcit_mm.prediction.results import assign_ids, coco_results, instances_of, read_ids

MEASURES = ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l")


def ground_truth(predict: Predictor, folder: Path, path: Path) -> None:
    """A file with ids and an order of its own, for which the model's predictions are right in part."""
    rng = np.random.default_rng(0)
    content = dict(images=[], annotations=[], categories=[])
    ids = dict(zip(predict.metainfo["classes"], (20, 3, 41, 7), strict=True))
    content["categories"] = [dict(id=number, name=name) for name, number in ids.items()]
    for number, image_path in enumerate(sorted(folder.iterdir())):
        image = cv2.imread(str(image_path))
        image_id = 100 - 7 * number
        content["images"].insert(0, dict(id=image_id, file_name=image_path.name, height=96, width=96))
        for one in coco_results(predict.predict(image).instances, image_id, list(ids.values()))[::3]:
            x, y, w, h = one["bbox"] + rng.uniform(-2, 2, 4)
            one |= dict(id=len(content["annotations"]) + 1, iscrowd=0, bbox=[x, y, w, h], area=w * h)
            content["annotations"].append(one)
    path.write_text(json.dumps(content))


def test_pycocotools_reports_what_mmdet_does(models, call, shapes, tmp_path):
    folder, ann_file, out = shapes / "images" / "validation", tmp_path / "truth.json", tmp_path / "out"
    predict = Predictor(*models["det"])
    ground_truth(predict, folder, ann_file)
    code, *_ = call("infer", folder, *models["det"], "--out", out, "--ann-file", ann_file)
    assert code == 0

    metric = CocoMetric(str(ann_file), metric=["bbox", "segm"])
    metric.dataset_meta = predict.metainfo
    ids = {one["file_name"]: one["id"] for one in json.loads(ann_file.read_text())["images"]}
    for name, number in ids.items():
        sample = predict(cv2.imread(str(folder / name)))
        sample.set_metainfo(dict(img_id=number))
        metric.process({}, [sample.to_dict()])
    expected = metric.evaluate(len(ids))
    assert 0.1 < expected["coco/bbox_mAP"] < 0.9 and 0.1 < expected["coco/segm_mAP"] < 0.9

    truth = COCO(str(ann_file))
    for kind in ("bbox", "segm"):
        found = json.loads((out / "predictions.json").read_text())
        if kind == "segm":  # small and large are by the area of the mask, unless there is a box
            found = [{key: value for key, value in one.items() if key != "bbox"} for one in found]
        evaluation = COCOeval(truth, truth.loadRes(found), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        for name, value in zip(MEASURES, evaluation.stats, strict=False):
            assert value == pytest.approx(expected[f"coco/{kind}_{name}"], abs=0.00051), (kind, name)


def write_json(path: Path, names: list[str], categories: tuple[str, ...] = ("a", "b")) -> Path:
    images = [dict(id=10 + number, file_name=name) for number, name in enumerate(names)]
    categories = [dict(id=50 - number, name=name) for number, name in enumerate(categories)]
    path.write_text(json.dumps(dict(images=images, categories=categories)))
    return path


def test_ids_are_by_name(tmp_path):
    for name in ("train/a.png", "val/a.png", "val/b.png", "val/other.png", "val/c.mp4"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    path = write_json(tmp_path / "a.json", ["b.png", "val/a.png", "train/a.png", "gone.png", "c.mp4"])
    ids, categories = read_ids(path, ("b", "a"))
    assert categories == [49, 50]
    kept, found, notes = assign_ids(find_inputs(str(tmp_path / "in"))[0], ids)
    assert [one.name for one in kept] == ["train/a.png", "val/a.png", "val/b.png"]
    assert found == {"train/a": 12, "val/a": 11, "val/b": 10}
    assert notes == [
        f"left out 2 not in the annotation file: {tmp_path}/in/val/c.mp4, ...",
        "2 of 5 images of the annotation file are not among the inputs",
    ]


def test_ids_that_do_not_fit_are_refused(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / "in" / folder).mkdir(parents=True)
        (tmp_path / "in" / folder / "a.png").touch()
    inputs = find_inputs(str(tmp_path / "in"))[0]
    (tmp_path / "list.json").write_text("[]")
    for act, error, message in [
        (lambda: read_ids(tmp_path / "none.json", ("a",)), FileNotFoundError, "no annotation file at .*none.json"),
        (lambda: read_ids(tmp_path / "list.json", ("a",)), ValueError, "list.json is not a COCO json"),
        (
            lambda: read_ids(write_json(tmp_path / "a.json", []), ("a", "cat")),
            ValueError,
            "a.json has no category cat of the config's classes, but a, b",
        ),
        (lambda: assign_ids(inputs, {"a.png": 1}), ValueError, "one/a.png and .*two/a.png are both image 1"),
        (lambda: assign_ids(inputs, {"b.png": 1}), ValueError, "lists none of the 2 inputs: .*one/a.png, ..."),
    ]:
        with pytest.raises(error, match=message) as raised:
            act()
        assert "\n" not in str(raised.value)


def test_masks_without_boxes_have_boxes():
    """As of SOLO, whose boxes are zeros."""
    masks = torch.zeros(1, 40, 60, dtype=torch.bool)
    masks[0, 10:20, 5:35] = True
    found = InstanceData(bboxes=torch.zeros(1, 4), scores=torch.ones(1), labels=torch.zeros(1).long(), masks=masks)
    (result,) = coco_results(instances_of(DetDataSample(pred_instances=found)), 1, [1])
    assert result["bbox"] == [5, 10, 30, 10]
    with pytest.raises(ValueError, match="the model predicts no instances"):
        instances_of(DetDataSample())
