"""`UnpaddedRPNHead` has the same proposals for an image in a padded batch and alone."""

import pytest
import torch
from mmdet.models.dense_heads import RPNHead
from mmdet.testing import demo_mm_inputs
from mmengine.registry import MODELS, init_default_scope
from paths import CONFIGS
from torch import Tensor, nn

from configs import read_config_file

SIZES = ((96, 130), (61, 75), (128, 33))  # most sides are not multiples of a stride
STRIDES = (4, 8, 16, 32, 64)
DETECTOR = CONFIGS / "demo" / "mask-rcnn_xcit-n12-p16_shapes-ignore-padding.py"


def build(kind: str, part: str | None = None) -> nn.Module:
    """The detector of the demo with an RPN head of this kind, or a part of the detector."""
    cfg = read_config_file(DETECTOR)
    cfg.model.rpn_head.type = kind
    cfg.model.train_cfg.rpn_proposal.update(nms_pre=40, max_per_img=30)
    cfg.model.test_cfg.rpn.update(nms_pre=40, max_per_img=30)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    if part:
        cfg.model[part].update(train_cfg=cfg.model.train_cfg.rpn, test_cfg=cfg.model.test_cfg.rpn)
    return MODELS.build(cfg.model[part] if part else cfg.model)


def cells(size: tuple[int, int], stride: int) -> tuple[int, ...]:
    return tuple(-(side // -stride) for side in size)


def head_outputs() -> tuple[list[Tensor], list[Tensor]]:
    """Scores and boxes of a batch, with the highest scores in the padding."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(len(SIZES), *cells((128, 160), stride)) for stride in STRIDES]
    scores, boxes = ([torch.randn(b, c, h, w, generator=generator) for b, h, w in shapes] for c in (3, 12))
    for level, stride in zip(scores, STRIDES, strict=True):
        for score, size in zip(level, SIZES, strict=True):
            height, width = cells(size, stride)
            score[:, height:] += 9
            score[:, :, width:] += 9
    return scores, boxes


def alone(outputs: tuple[list[Tensor], ...], number: int) -> list[list[Tensor]]:
    """Outputs of the head for one image, without padding."""
    sizes = [cells(SIZES[number], stride) for stride in STRIDES]
    return [[m[number : number + 1, :, :h, :w] for m, (h, w) in zip(maps, sizes, strict=True)] for maps in outputs]


@pytest.mark.parametrize("kind, same", [("UnpaddedRPNHead", True), ("RPNHead", False)])
def test_proposals_of_an_image_are_those_alone(kind, same):
    head, plain = build(kind, "rpn_head"), build("RPNHead", "rpn_head")
    metas = [dict(img_shape=size) for size in SIZES]
    outputs = head_outputs()
    together = head.predict_by_feat(*outputs, batch_img_metas=metas)
    for number, found in enumerate(together):
        (expected,) = plain.predict_by_feat(*alone(outputs, number), batch_img_metas=[metas[number]])
        assert len(expected) == 30
        assert (len(found) == 30 and torch.equal(found.bboxes, expected.bboxes)) == same
        if same:
            assert torch.equal(found.scores, expected.scores)


def test_a_detector_trains_with_the_losses_of_rpn_head_and_predicts():
    plain, model = build("RPNHead"), build("UnpaddedRPNHead")
    assert isinstance(model.rpn_head, RPNHead)
    model.load_state_dict(plain.state_dict())
    losses = []
    for net in (plain, model):
        torch.manual_seed(0)
        batch = demo_mm_inputs(2, [(3, 100, 150), (3, 61, 75)], num_items=[2, 3], num_classes=4, with_mask=True)
        data = net.train().data_preprocessor(batch, training=True)
        torch.manual_seed(0)  # of the sampler
        losses.append(net(**data, mode="loss"))
    for name in ("loss_rpn_cls", "loss_rpn_bbox"):
        torch.testing.assert_close(losses[1][name], losses[0][name])
    model.parse_losses(losses[1])[0].backward()
    assert all(p.grad.isfinite().all() for p in model.rpn_head.parameters())
    with torch.no_grad():
        data = model.eval().data_preprocessor(batch)
        assert len(model(**data, mode="predict")) == 2
