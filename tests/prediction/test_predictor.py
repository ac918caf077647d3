"""A model by its name in Python: what `xcit-mm predict` finds as arrays."""

import weakref

import cv2
import numpy as np
import pytest
import supervision as sv
import torch
from mmdet.structures import DetDataSample
from mmengine.model import BaseModel
from mmengine.structures import InstanceData

from xcit_mm import Predictor, read_config
from xcit_mm.models.build import load_model


def test_a_detection_is_arrays_by_descending_score_and_a_map_an_array(predictors, models, turned):
    prediction = predictors["det"](turned)
    count = len(prediction)
    assert prediction.boxes.shape == (count, 4) and prediction.labels.shape == (count,)
    assert prediction.masks.shape == (count, 160, 96) and prediction.masks.dtype == bool
    assert isinstance(prediction.instances.mask, sv.CompactMask)  # in little memory
    assert (np.diff(prediction.scores) <= 0).all()
    options = dict(device="cpu", min_score=float(prediction.scores[2:4].mean()))
    assert len(Predictor.from_pretrained(*models["det"], **options)(turned)) == 3
    prediction = predictors["seg"](turned)
    assert prediction.segmentation.shape == (160, 96) and not hasattr(prediction, "boxes")
    assert len(np.unique(prediction.segmentation)) > 2


def test_a_least_score_below_that_of_the_config_or_in_per_cent_is_named(models, capsys):
    cfg = read_config(models["det"][0])
    cfg.model.test_cfg.rcnn.score_thr = 0.5
    model = load_model(cfg, models["det"][1])
    Predictor(model, cfg, min_score=0.5)
    Predictor(model, cfg, min_score=0.1)
    line = "min_score=0.1 finds no more objects than score_thr=0.5 of the config\n"
    assert capsys.readouterr().err == line
    with pytest.raises(ValueError, match="min_score: 30 is not a score from 0 to 1"):
        Predictor(model, cfg, min_score=30)


def test_paths_and_arrays_give_the_same_prediction(predictors, turned):
    predict = predictors["det"]
    pixels = cv2.imread(str(turned))
    single = predict(str(turned))
    rgb = np.ascontiguousarray(pixels[..., ::-1])
    *same, half = predict([turned, pixels, rgb[..., ::-1], pixels[:48]])
    for prediction in same:
        assert np.array_equal(prediction.image, single.image)
        assert prediction.to_coco() == single.to_coco()
    assert half.image.shape == (48, 96, 3) and predict([]) == []


def test_no_photo_keeps_the_logits_of_another_in_slide_mode(models, turned, monkeypatch):
    """Of 150 classes at 2048 x 2048 pixels they take 2.5 GB."""
    cfg = read_config(models["seg"][0])
    cfg.model.test_cfg = dict(mode="slide", crop_size=(96, 96), stride=(64, 64))
    predictor = Predictor(load_model(cfg, models["seg"][1]), cfg)
    test_step = BaseModel.test_step
    logits = []
    is_held = []

    def watch(self: BaseModel, data: dict) -> list:
        is_held.append(any(reference() is not None for reference in logits))
        samples = test_step(self, data)
        logits.append(weakref.ref(samples[0].seg_logits.data))
        return samples

    monkeypatch.setattr(BaseModel, "test_step", watch)
    assert len(predictor([turned] * 3)) == 3
    assert is_held == [False] * 3


def test_arrays_for_a_step_that_makes_floats_are_those_of_files(models, turned):
    """As many configs of mmdet and mmseg have it. A device may be torch's own."""
    config, checkpoint = models["seg"]
    cfg = read_config(config)
    plain = Predictor(load_model(cfg, checkpoint), cfg)
    cfg.test_dataloader.dataset.pipeline[0].update(to_float32=True, color_type="color")
    predictor = Predictor(load_model(cfg, checkpoint), cfg, device=torch.device("cpu"))
    image = predictor.preprocess.read(turned)
    expected = plain(turned).segmentation
    for given in (turned, image):
        assert np.array_equal(predictor(given).segmentation, expected)
    with pytest.raises(ValueError, match=r"^image of float32, \(160, 96, 3\): give \(H, W, 3\)"):
        predictor(image / np.float32(255))
    assert predictor.device == "cpu"


def test_a_file_that_is_no_image_is_named(predictors, tmp_path):
    path = tmp_path / "text.jpg"
    path.write_text("no image")
    with pytest.raises(ValueError, match=r"text\.jpg: the file is broken or not an image"):
        predictors["seg"](path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_in_memory_predicts_as_one_from_files_and_can_be_trained(
    dtype, predictors, models, turned
):
    def state() -> list[tuple]:
        weights = model.state_dict(keep_vars=True).items()
        return [(key, id(value), value.stride(), value.sum().item()) for key, value in weights]

    cfg = predictors["det"].cfg
    model = load_model(cfg, models["det"][1]).train()
    before = state()
    prediction = Predictor(model, cfg, dtype=dtype)(turned)
    assert state() == before
    assert model.training and all(weight.requires_grad for weight in model.parameters())
    if dtype == "float32":
        assert np.allclose(prediction.boxes, predictors["det"](turned).boxes, atol=1e-3)


@pytest.mark.parametrize("count", [0, 2])
def test_boxes_of_a_model_without_boxes_enclose_the_masks(count, predictors):
    """SOLO predicts boxes of zeros, and floats without objects. Mask2Former has another order."""
    masks = torch.zeros(2, 40, 60, dtype=torch.bool if count else torch.float)
    masks[0, :5, :5] = masks[1, 10:20, 5:35] = True
    instances = InstanceData(
        bboxes=torch.zeros(2, 4),
        scores=torch.tensor([0.2, 0.9]),
        labels=torch.tensor([0, 1], dtype=torch.long if count else torch.float),
        masks=masks,
    )[:count]
    sample = DetDataSample(pred_instances=instances)
    prediction = predictors["det"].to_prediction(np.zeros((40, 60, 3), np.uint8), sample)
    assert prediction.boxes.tolist() == [[5, 10, 35, 20], [0, 0, 5, 5]][:count]
    assert prediction.labels.tolist() == [1, 0][:count]
    assert np.array_equal(prediction.masks, masks[:count].flip(0))
