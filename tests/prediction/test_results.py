"""predictions.json is what pycocotools evaluates, under the ground truth's ids."""

import json
import logging
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from coco_results import results_of
from mmdet.evaluation import CocoMetric
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from xcit_mm.prediction.predictor import Predictor
from xcit_mm.prediction.results import to_instances

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
        for one in results_of(predict.predict(image).instances, image_id, list(ids.values()))[::3]:
            x, y, w, h = one["bbox"] + rng.uniform(-2, 2, 4)
            one |= dict(id=len(content["annotations"]) + 1, iscrowd=0, bbox=[x, y, w, h], area=w * h)
            content["annotations"].append(one)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("kind", ["det", "seg"])
def test_no_registry_is_missed(kind, models, monkeypatch):
    said: dict[str, int] = {}

    def keep(line: str, logger: object = None, level: int = logging.INFO) -> None:
        said[line] = level

    monkeypatch.setattr("mmengine.logging.print_log", keep)  # which registries import as they speak
    Predictor(*models[kind])
    assert said
    assert [line for line, level in said.items() if level >= logging.WARNING] == []


def test_pycocotools_reports_what_mmdet_does(models, call, shapes, tmp_path):
    folder, ann_file, out = shapes / "images" / "validation", tmp_path / "truth.json", tmp_path / "out"
    predict = Predictor(*models["det"])
    ground_truth(predict, folder, ann_file)
    code, *_ = call("infer", ann_file, *models["det"], "--out", out, "--root", folder, "--no-visualizations")
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


def test_masks_without_boxes_have_boxes():
    """As of SOLO, whose boxes are zeros."""
    masks = torch.zeros(1, 40, 60, dtype=torch.bool)
    masks[0, 10:20, 5:35] = True
    found = InstanceData(bboxes=torch.zeros(1, 4), scores=torch.ones(1), labels=torch.zeros(1).long(), masks=masks)
    (result,) = results_of(to_instances(DetDataSample(pred_instances=found)), 1, [1])
    assert result["bbox"] == [5, 10, 30, 10]
    with pytest.raises(ValueError, match="the model predicts no instances"):
        to_instances(DetDataSample())
