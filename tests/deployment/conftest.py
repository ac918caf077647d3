import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from golden import fill
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from paths import ROOT

from xcit_mm.deployment.export import export_model

# The pipeline enlarges pictures, and the preprocessor pads them: what is found goes back through both.
SEGMENTOR = """
_base_ = "{root}/configs/demo/fpn_xcit-n12-p16_shapes.py"
model = dict(
    data_preprocessor=dict(test_cfg=dict(size_divisor=32)),
    backbone=dict(arch=dict(_delete_=True, embed_dim=32, depth=2, num_heads=4, eta=1.0), out_indices=(0, 1)),
    neck=dict(in_channels=[32] * 2, out_channels=16, num_outs=2),
    decode_head=dict(in_channels=[16] * 2, in_index=[0, 1], feature_strides=[4, 8], channels=16, align_corners=True),
)
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(200, 120), keep_ratio=True),
    dict(type="LoadAnnotations", reduce_zero_label=True),
    dict(type="PackSegInputs"),
]
test_dataloader = dict(dataset=dict(data_root="{data}", pipeline=test_pipeline))
"""
# Its pictures, of 96 pixels, become ones of 150, which it pads to 160.
MASK_RCNN = """
_base_ = "{root}/configs/demo/mask-rcnn_xcit-n12-p16_shapes.py"
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dim=32, depth=4, num_heads=4, eta=1.0), out_indices=(0, 1, 2, 3)),
    neck=dict(in_channels=[32] * 4, out_channels=32),
    rpn_head=dict(in_channels=32, feat_channels=32),
    roi_head=dict(
        bbox_head=dict(in_channels=32, fc_out_channels=32),
        bbox_roi_extractor=dict(out_channels=32),
        mask_roi_extractor=dict(out_channels=32),
        mask_head=dict(in_channels=32, conv_out_channels=16, num_convs=1),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=60), rcnn=dict(score_thr=0.05)),
)
test_pipeline = [
    dict(type="LoadImageFromFile"),
    dict(type="Resize", scale=(150, 150), keep_ratio=True),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="PackDetInputs", meta_keys=("img_id", "img_path", "ori_shape", "img_shape", "scale_factor")),
]
test_dataloader = dict(dataset=dict(data_root="{data}", pipeline=test_pipeline))
test_evaluator = dict(ann_file="{data}/annotations/instances_validation.json")
"""


class Trained(NamedTuple):
    config: str
    checkpoint: str


def write_trained(folder: Path, text: str, data: Path) -> Trained:
    config, checkpoint = folder / "config.py", folder / "model.pth"
    config.write_text(text.format(root=ROOT, data=data))
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=fill(MODELS.build(cfg.model)).state_dict()), checkpoint)
    return Trained(str(config), str(checkpoint))


def write_file(folder: Path, model: Trained) -> Path:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    export_model(*model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture(scope="session")
def segmentor(tmp_path_factory, shapes) -> Trained:
    """A small Semantic FPN."""
    return write_trained(tmp_path_factory.mktemp("segmentor"), SEGMENTOR, shapes)


@pytest.fixture(scope="session")
def segmentor_file(segmentor, tmp_path_factory) -> Path:
    """The file of it, which takes normalised images."""
    return write_file(tmp_path_factory.mktemp("exported"), segmentor)


@pytest.fixture(scope="session")
def mask_rcnn(tmp_path_factory, shapes) -> Trained:
    """A small Mask R-CNN."""
    return write_trained(tmp_path_factory.mktemp("mask_rcnn"), MASK_RCNN, shapes)


@pytest.fixture(scope="session")
def mask_rcnn_file(mask_rcnn, tmp_path_factory) -> Path:
    """The file of it, which takes normalised images."""
    return write_file(tmp_path_factory.mktemp("exported"), mask_rcnn)


@pytest.fixture
def print_to_nobody(monkeypatch) -> Callable[[], None]:
    """Called, lets what is printed go where nobody reads any more."""

    def close() -> None:  # in the test itself, before which pytest replaces stdout
        reader, writer = os.pipe()
        os.close(reader)
        monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w"))

    return close


@pytest.fixture
def detector(tmp_path) -> Callable[..., Path]:
    """Writes a file that finds the same in every image, with the inputs, outputs and metadata of a detector's."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, types = onnx.helper, onnx.TensorProto

    def write(found: dict[str, np.ndarray], **facts: str) -> Path:
        kinds = {name: helper.np_dtype_to_tensor_dtype(values.dtype) for name, values in found.items()}
        graph = helper.make_graph(
            [helper.make_node("Identity", [f"constant_{name}"], [name]) for name in found],
            "detector",
            [helper.make_tensor_value_info("image", types.FLOAT, ["batch", 3, "height", "width"])],
            [helper.make_tensor_value_info(name, kinds[name], ["n", *found[name].shape[1:]]) for name in found],
            [onnx.numpy_helper.from_array(values, f"constant_{name}") for name, values in found.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        given = dict(
            task="instance segmentation",
            channel_order="RGB",
            mean="[123.675, 116.28, 103.53]",
            std="[58.395, 57.12, 57.375]",
            classes='["circle", "square"]',
            test_cfg='{"rcnn": {"mask_thr_binary": 0.5}}',
            preparation=json.dumps(dict(resize=dict(scale=[160, 100], keep_ratio=True), pad_divisor=32, pad_value=0)),
        )
        helper.set_model_props(model, given | facts)
        onnx.save(model, tmp_path / "detector.onnx")
        return tmp_path / "detector.onnx"

    return write
