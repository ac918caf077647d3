"""Detections as NumPy arrays and as predictions.json, which pycocotools evaluates like mmdet."""

import json
import sys

import cv2
import numpy as np
import pytest
import torch
from helpers.runs import model_of, run
from mmdet.evaluation import CocoMetric
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.structures import InstanceData
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from xcit_mm.prediction import Predictor
from xcit_mm.prediction.preprocessing import Preprocessing

METRICS = ("mAP", "mAP_50", "mAP_75", "mAP_s", "mAP_m", "mAP_l")


@pytest.mark.parametrize(
    ("pipeline", "problem"),
    [
        ([dict(type="PackSegInputs")], "LoadImageFromFile is not found"),
        (
            [dict(type="LoadImageFromFile"), dict(type="Unknown")],
            "the test pipeline cannot be built",
        ),
        ([], "has no pipeline"),
    ],
)
def test_a_pipeline_that_cannot_load_arrays_raises(pipeline, problem, models, tmp_path):
    config = tmp_path / "config.py"
    lines = (
        f"_base_ = {models['seg'][0]!r}\n",
        f"test_dataloader = dict(dataset=dict(pipeline={pipeline}))",
    )
    config.write_text("".join(lines))
    with pytest.raises(ValueError, match=problem):
        Preprocessing(Config.fromfile(config))


def test_pycocotools_reports_the_metrics_of_mmdet(models, call, shapes, tmp_path):
    """The ground truth has ids and an order of its own, and the predictions are partly right."""
    folder, path, out = shapes / "images" / "validation", tmp_path / "truth.json", tmp_path / "out"
    predictor, rng = Predictor.from_config(*models["det"]), np.random.default_rng(0)
    samples = []
    ids = dict(zip(predictor.metainfo["classes"], (20, 3, 41, 7), strict=True))
    truth = dict(
        images=[],
        annotations=[],
        categories=[dict(id=number, name=name) for name, number in ids.items()],
    )
    for number, image_path in enumerate(sorted(folder.iterdir())):
        sample, image_id = predictor.predict_sample(cv2.imread(str(image_path))), 100 - 7 * number
        truth["images"].insert(0, dict(id=image_id, file_name=image_path.name, height=96, width=96))
        found = predictor.to_prediction(cv2.imread(str(image_path)), sample)
        for result in found.to_coco(image_id, list(ids.values()))[::3]:
            x, y, w, h = result["bbox"] + rng.uniform(-2, 2, 4)
            result |= dict(
                id=len(truth["annotations"]) + 1, iscrowd=0, bbox=[x, y, w, h], area=w * h
            )
            truth["annotations"].append(result)
        sample.set_metainfo(dict(img_id=image_id))
        samples.append(sample.to_dict())
    path.write_text(json.dumps(truth))
    metric = CocoMetric(str(path), metric=["bbox", "segm"])
    metric.dataset_meta = predictor.metainfo
    metric.process({}, samples)
    expected = metric.evaluate(len(truth["images"]))
    assert 0.1 < expected["coco/bbox_mAP"] < 0.9 and 0.1 < expected["coco/segm_mAP"] < 0.9

    command = (
        "infer",
        path,
        *model_of(models["det"]),
        "--out",
        out,
        "--root",
        folder,
        "--no-visualizations",
    )
    assert call(*command)[0] == 0
    for kind in ("bbox", "segm"):
        found = json.loads((out / "predictions.json").read_text())
        if kind == "segm":  # pycocotools takes the area of the mask only without a box
            found = [
                {key: value for key, value in result.items() if key != "bbox"} for result in found
            ]
        evaluation = COCOeval(COCO(str(path)), COCO(str(path)).loadRes(found), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        for name, value in zip(METRICS, evaluation.stats, strict=False):
            assert value == pytest.approx(expected[f"coco/{kind}_{name}"], abs=0.00051), (
                kind,
                name,
            )


def test_boxes_of_a_model_without_boxes_enclose_the_masks(models):
    """SOLO predicts masks and boxes of zeros."""
    masks = torch.zeros(1, 40, 60, dtype=torch.bool)
    masks[0, 10:20, 5:35] = True
    found = InstanceData(
        bboxes=torch.zeros(1, 4), scores=torch.ones(1), labels=torch.zeros(1).long(), masks=masks
    )
    predictor, image = Predictor.from_config(*models["det"]), np.zeros((40, 60, 3), np.uint8)
    (result,) = predictor.to_prediction(image, DetDataSample(pred_instances=found)).to_coco()
    assert result["bbox"] == [5, 10, 30, 10]
    with pytest.raises(ValueError, match="the model predicts no instances"):
        predictor.to_prediction(image, DetDataSample())


MEMORY = """
import resource, sys
import cv2, numpy as np
from xcit_mm import Predictor

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3  # MB

predictor = Predictor.from_config(*sys.argv[1:3], device="cpu")
photo = cv2.resize(cv2.imread(sys.argv[3]), (4000, 3000))
predictor(photo[:100, :100])
before = peak()
prediction = predictor(photo)
print(len(prediction), peak() - before)
"""


def test_memory_follows_the_boxes_of_masks_not_the_photo(models, photos):
    """Twenty masks of the photo's size take 240 MB."""
    ended = run(sys.executable, "-c", MEMORY, *models["det"], photos / "00.png")
    count, megabytes = ended.stdout.split()
    assert int(count) == 20 and float(megabytes) < 180, ended.stderr[-2000:]
