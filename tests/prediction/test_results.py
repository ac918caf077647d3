"""Detections as NumPy arrays and as predictions.json, which pycocotools evaluates like mmdet."""

import json
import sys

import cv2
import numpy as np
import pytest
import torch
from helpers.runs import run
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


def test_pycocotools_reports_the_metrics_of_mmdet(models, shapes, tmp_path):
    """The ground truth has ids and an order of its own, and the predictions are partly right."""
    predictor = Predictor.from_config(*models["det"])
    rng = np.random.default_rng(0)
    ids = [20, 3, 41, 7]
    categories = [dict(id=id_, name=name) for id_, name in zip(ids, predictor.names, strict=True)]
    images: list[dict] = []
    annotations: list[dict] = []
    samples = []
    results = []
    for number, path in enumerate(sorted((shapes / "images" / "validation").iterdir())):
        image = cv2.imread(str(path))
        image_id = 100 - 7 * number
        images.insert(0, dict(id=image_id, file_name=path.name, height=96, width=96))
        sample = predictor.predict_sample(image)
        objects = predictor.to_prediction(image, sample).to_coco(image_id, ids)
        results += objects
        for result in objects[::3]:
            x, y, width, height = result["bbox"] + rng.uniform(-2, 2, 4)
            box = dict(bbox=[x, y, width, height], area=width * height)
            annotations.append(result | box | dict(id=len(annotations) + 1, iscrowd=0))
        sample.set_metainfo(dict(img_id=image_id))
        samples.append(sample.to_dict())
    truth = tmp_path / "truth.json"
    truth.write_text(
        json.dumps(dict(images=images, annotations=annotations, categories=categories))
    )
    metric = CocoMetric(str(truth), metric=["bbox", "segm"])
    metric.dataset_meta = predictor.metainfo
    metric.process({}, samples)
    expected = metric.evaluate(len(images))
    for kind in ("bbox", "segm"):
        assert 0.1 < expected[f"coco/{kind}_mAP"] < 0.9
        if kind == "segm":  # pycocotools takes the area of the mask only without a box
            for result in results:
                del result["bbox"]
        (tmp_path / "results.json").write_text(json.dumps(results))
        coco = COCO(str(truth))
        evaluation = COCOeval(coco, coco.loadRes(str(tmp_path / "results.json")), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        values = [expected[f"coco/{kind}_{name}"] for name in METRICS]
        assert evaluation.stats[: len(METRICS)] == pytest.approx(values, abs=0.00051)


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
    with pytest.raises(ValueError, match="the model predicts no boxes or masks"):
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
