from collections.abc import Callable
from pathlib import Path

import cv2
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from xcit_mm.prediction.predictor import Predictor

BINARY = """
_base_ = {base!r}
model = dict(
    decode_head=dict(num_classes={classes}, out_channels=1, threshold=0.6, loss_decode=dict(use_sigmoid=True))
)
"""
ONE_CLASS = "test_dataloader = dict(dataset=dict(metainfo=dict(classes=('shape',), palette=[(230, 60, 50)])))"


@pytest.fixture(scope="session")
def models(
    untrained: Callable[[str], tuple[Path, Path]], shapes: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[str, str]]:
    """Config and checkpoint of a segmentor and of a detector.

    The detector, sure of nothing, reports twenty boxes an image. The segmentor, which would see one class everywhere,
    has biases that make all as likely.
    """
    folder = tmp_path_factory.mktemp("models")
    config, checkpoint = untrained("mask-rcnn_xcit-n12-p16_shapes")
    (folder / "few.py").write_text(
        f"_base_ = {str(config)!r}\n"
        "model = dict(test_cfg=dict(rpn=dict(max_per_img=100), rcnn=dict(score_thr=0.0, max_per_img=20)))"
    )
    det = str(folder / "few.py"), str(checkpoint)

    config, checkpoint = untrained("fpn_xcit-n12-p16_shapes")
    image = cv2.imread(str(shapes / "images" / "validation" / "00000.jpg"))
    logits = Predictor(str(config), str(checkpoint))(image).seg_logits.data
    content = torch.load(checkpoint)
    content["state_dict"]["decode_head.conv_seg.bias"] -= logits.mean(dim=(1, 2))
    torch.save(content, folder / "seg.pth")
    return dict(seg=(str(config), str(folder / "seg.pth")), det=det)


@pytest.fixture(scope="session")
def binary(models: dict[str, tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[str, str]]:
    """Config and checkpoint of segmentors that see labels 0 and 1 by a threshold, by their number of classes."""
    found = {}
    for classes in (1, 5):
        folder = tmp_path_factory.mktemp("binary")
        config, checkpoint = folder / "binary.py", folder / "binary.pth"
        config.write_text(BINARY.format(base=models["seg"][0], classes=classes) + ONE_CLASS * (classes == 1))
        cfg = Config.fromfile(config)
        init_default_scope(cfg.default_scope)
        torch.manual_seed(0)
        torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), checkpoint)
        found[classes] = str(config), str(checkpoint)
    return found
