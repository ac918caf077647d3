"""A model by its name in Python: what `xcit-mm predict` finds as arrays."""

import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.structures import InstanceData
from PIL import Image
from torch.nn.utils import prune

from xcit_mm import Predictor
from xcit_mm.models.build import load_model
from xcit_mm.prediction.preprocessing import Preprocessing


@pytest.fixture(scope="module")
def predictors(models, tmp_path_factory) -> dict[str, Predictor]:
    """Predictors of the work folders of training runs."""
    built = {}
    for kind, (config, checkpoint) in models.items():
        folder = tmp_path_factory.mktemp(kind)
        Config.fromfile(config).dump(folder / "mine.py")
        (folder / "last_checkpoint").write_text(checkpoint)
        built[kind] = Predictor.from_pretrained(folder, device="cpu")
    return built


def test_a_detection_is_arrays_by_descending_score(predictors, models, turned):
    prediction = predictors["det"](turned)
    count = len(prediction)
    assert prediction.boxes.shape == (count, 4) and prediction.labels.shape == (count,)
    assert prediction.masks.shape == (count, 160, 96) and prediction.masks.dtype == bool
    assert (np.diff(prediction.scores) <= 0).all()
    options = dict(device="cpu", min_score=float(prediction.scores[2]))
    assert len(Predictor.from_config(*models["det"], **options)(turned)) == 3


def test_a_segmentation_is_a_map_and_has_no_boxes(predictors, turned):
    prediction = predictors["seg"](turned)
    assert prediction.segmentation.shape == (160, 96) and not hasattr(prediction, "boxes")
    assert len(prediction) == len(np.unique(prediction.segmentation))


def test_paths_pillow_and_arrays_give_the_same_prediction(predictors, turned):
    predict = predictors["det"]
    pixels = cv2.imread(str(turned))
    single = predict(str(turned))
    with Image.open(turned) as image:
        from_path, from_pillow, from_array, half = predict([turned, image, pixels, pixels[:48]])
    difference = np.abs(from_pillow.image.astype(int) - single.image)
    assert difference.mean() < 1  # two decoders of JPEG
    for prediction in (from_path, from_array):
        assert np.array_equal(prediction.image, single.image)
        assert prediction.to_coco() == single.to_coco()
    assert half.image.shape == (48, 96, 3) and predict([]) == []


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        ("none.jpg", FileNotFoundError, "none.jpg"),
        ("text.jpg", ValueError, "text.jpg: the file is broken or not an image"),
        (np.zeros((40, 40, 3)), ValueError, r"float64, \(40, 40, 3\)"),
        (np.zeros((0, 40, 3), np.uint8), ValueError, r"\(0, 40, 3\) has no pixels"),
        (Image.fromarray(np.zeros((40, 40), np.uint16)), ValueError, "I;16"),
        (torch.zeros(3, 40, 40), TypeError, "Tensor"),
    ],
)
def test_a_wrong_image_is_rejected_in_one_line(
    image, error, message, predictors, tmp_path, monkeypatch
):
    (tmp_path / "text.jpg").write_text("no image")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message) as raised:
        predictors["seg"](image)
    assert "\n" not in str(raised.value)


def test_an_image_of_fewer_bands_than_the_model_takes_is_refused(models):
    """The mean of the preprocessing would make four equal bands of it."""
    cfg = Config.fromfile(models["seg"][0])
    cfg.model.backbone.in_channels = 4
    cfg.test_dataloader.dataset.pipeline[0].color_type = "unchanged"
    preprocess = Preprocessing(cfg)
    assert preprocess(np.zeros((40, 40, 4), np.uint8))["inputs"].shape[0] == 4
    with pytest.raises(ValueError, match="image of 1 channel: the model takes 4"):
        preprocess(np.zeros((40, 40), np.uint8))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_in_memory_predicts_as_one_from_files_and_can_be_trained(
    dtype, predictors, models, turned
):
    def state() -> list[tuple]:
        weights = model.state_dict(keep_vars=True).items()
        return [(key, id(value), value.stride(), value.sum().item()) for key, value in weights]

    cfg = predictors["det"].cfg
    model = load_model(cfg, models["det"][1]).train()
    convolution = model.neck.fpn_convs[0].conv
    prune.identity(convolution, "weight")  # keeps a tensor that cannot be copied
    before = state()
    predictor = Predictor(model, cfg, dtype=dtype)
    prediction = predictor(turned)
    assert state() == before
    assert model.training and all(weight.requires_grad for weight in model.parameters())
    if dtype == "bfloat16":
        return
    assert np.allclose(prediction.boxes, predictors["det"](turned).boxes, atol=1e-3)
    layers = [part.backbone.blocks[0].mlp.fc1 for part in (model, predictor.model)]
    assert layers[0].weight.data_ptr() == layers[1].weight.data_ptr()


def test_boxes_of_a_model_without_boxes_enclose_the_masks_and_the_best_comes_first(predictors):
    """SOLO predicts masks and boxes of zeros. Mask2Former has another order."""
    masks = torch.zeros(2, 40, 60, dtype=torch.bool)
    masks[0, :5, :5] = masks[1, 10:20, 5:35] = True
    scores = torch.tensor([0.2, 0.9])
    instances = InstanceData(
        bboxes=torch.zeros(2, 4), scores=scores, labels=torch.tensor([0, 1]), masks=masks
    )
    image = np.zeros((40, 60, 3), np.uint8)
    sample = DetDataSample(pred_instances=instances)
    prediction = predictors["det"].to_prediction(image, sample)
    assert prediction.boxes.tolist() == [[5, 10, 35, 20], [0, 0, 5, 5]]
    assert prediction.labels.tolist() == [1, 0] and prediction.scores[0] > prediction.scores[1]
    assert np.array_equal(prediction.masks, masks.flip(0))
    with pytest.raises(ValueError, match="the model predicts no boxes or masks"):
        predictors["det"].to_prediction(image, DetDataSample())


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
    command = [sys.executable, "-c", MEMORY, *models["det"], str(photos / "00.png")]
    ended = subprocess.run(command, capture_output=True, text=True)
    count, megabytes = ended.stdout.split()
    assert int(count) == 20 and float(megabytes) < 180, ended.stderr[-2000:]


def test_classes_in_groups_give_the_map_of_all_at_once(predictors, turned, monkeypatch):
    expected = predictors["seg"](turned).segmentation
    monkeypatch.setattr("xcit_mm.prediction.masks.CLASSES", 3)
    assert np.array_equal(predictors["seg"](turned).segmentation, expected)
    assert len(np.unique(expected)) > 2
