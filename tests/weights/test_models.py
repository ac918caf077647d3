"""Models are found by the names of their configs and weights, and by the folder of their training run."""

from pathlib import Path

import pytest

from xcit_mm.weights.models import find_config, find_model, shipped_models
from xcit_mm.weights.published import PUBLISHED

NAMES = ("maskrcnn_xcit_small_12_p16", "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco")


def test_every_published_detector_and_segmentor_has_one_config():
    models = shipped_models()
    dense = [name for name, url in PUBLISHED.items() if "/coco/" in url or "/ade/" in url]
    assert len(dense) == 24 and set(dense) <= models.keys()
    assert len({models[name][0] for name in dense}) == 24
    for name in dense:
        config, checkpoint = find_model(name)
        assert find_model(Path(config).stem) == (config, checkpoint) == find_model(f"xcit://{name}")
        assert checkpoint == f"xcit://{name}" and find_config(name) == config
        head, size = name.split("_xcit_")
        size, depth, patch = size.split("_")
        kind = dict(maskrcnn="mask-rcnn", sem_fpn="fpn", upernet="upernet")[head]
        assert Path(config).name.startswith(f"{kind}_xcit-{size[0]}{depth}-{patch}_") and Path(config).is_file()


def test_what_a_name_stands_for_is_reported(capsys):
    for name in NAMES:
        config, checkpoint = find_model(name)
        assert capsys.readouterr().err == f"{name}: {config} with {checkpoint}\n"
    assert find_model(NAMES[0], "my.pth") == (config, "my.pth")


@pytest.mark.parametrize(
    "model, message",
    [
        ("maskrcnn_xcit_smal_12_p16", "work folder: try maskrcnn_xcit_small_12_p16"),
        ("mskrcnn", "try maskrcnn_xcit_tiny_12_p16, maskrcnn_xcit_tiny_12_p8, maskrcnn_xcit_small_12_p16, "),
        (
            "upernet-s12",
            "try upernet_xcit-s12-p16_8xb2-160k_ade20k-512x512, upernet_xcit-s12-p8_8xb2-160k_ade20k-512x512",
        ),
        ("small_12_p8", "try maskrcnn_xcit_small_12_p8, sem_fpn_xcit_small_12_p8, upernet_xcit_small_12_p8"),
        (
            "xyz",
            "neither a config (*.py) nor a model's name nor a work folder: try the names of `xcit-mm weights list`",
        ),
        ("config.py", "config.py has no checkpoint: give one after it"),
        ("retinanet_xcit-s12-p16_fpn_1x_coco", "has no checkpoint"),
    ],
)
def test_a_wrong_name_is_rejected_with_similar_names(model, message):
    if model.startswith("retinanet_"):
        model = next(name for name in shipped_models() if name.startswith("retinanet_"))
    with pytest.raises(ValueError) as error:
        find_model(model)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_partial_name_lists_all_published_models_with_it():
    with pytest.raises(ValueError) as error:
        find_model("maskrcnn")
    listed = str(error.value).partition(": try ")[2].split(", ")
    assert sorted(listed) == sorted(name for name in PUBLISHED if name.startswith("maskrcnn"))
