import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from golden import fill
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from paths import ROOT

from xcit_mm.deployment import ExportTarget, export_model
from xcit_mm.models.build import model_from_config

# The pipeline enlarges images, and the preprocessor pads them. Results are converted back from both.
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
# Its images of 96 pixels are enlarged to 150 and padded to 160.
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
    # Of two equal limits, only that of the detections is an optional input of a file.
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=60), rcnn=dict(score_thr=0.05, max_per_img=60)),
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
    config: Path
    checkpoint: Path

    def load(self) -> tuple[Config, Any]:
        """Return the config and the model in eval mode."""
        cfg = Config.fromfile(self.config)
        return cfg, model_from_config(cfg, self.checkpoint)


@pytest.fixture(scope="session")
def write_trained(tmp_path_factory, shapes) -> Callable[..., Trained]:
    """Write a config, given as text or as a Config, and a checkpoint of its model or backbone."""

    def write(given: str | Config, part: str = "model", **names: object) -> Trained:
        folder = tmp_path_factory.mktemp("trained")
        config, checkpoint = folder / "config.py", folder / "model.pth"
        if isinstance(given, Config):
            given.dump(config)
        else:
            config.write_text(given.format(root=ROOT, data=shapes, **names))
        cfg = Config.fromfile(config)
        init_default_scope(cfg.default_scope)
        cfg.model.backbone.pop("init_cfg", None)
        model = fill(MODELS.build(cfg.model if part == "model" else cfg.model.backbone))
        torch.save(dict(state_dict=model.state_dict()), checkpoint)
        return Trained(config, checkpoint)

    return write


@pytest.fixture(scope="session")
def segmentor(write_trained) -> Trained:
    """A small Semantic FPN."""
    return write_trained(SEGMENTOR)


@pytest.fixture(scope="session")
def mask_rcnn(write_trained) -> Trained:
    """A small Mask R-CNN."""
    return write_trained(MASK_RCNN)


@pytest.fixture(scope="session")
def export_float32(tmp_path_factory) -> Callable[[Trained], Path]:
    """Export a model to a file of float32."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)

    def export(model: Trained) -> Path:
        path = tmp_path_factory.mktemp("exported") / "model.onnx"
        export_model(*model, ExportTarget(path))
        return path

    return export


@pytest.fixture(scope="session")
def segmentor_file(segmentor, export_float32) -> Path:
    """The float32 file of the segmentor."""
    return export_float32(segmentor)


@pytest.fixture
def exported_before(segmentor_file, monkeypatch) -> None:
    """Let an export of the segmentor write its existing float32 file, since tracing takes most of the time."""
    module = importlib.import_module("xcit_mm.deployment.export")
    monkeypatch.setattr(module, "_trace", lambda *_: None)
    monkeypatch.setattr(module, "write_onnx", lambda program, path, *_: shutil.copy(segmentor_file, path))


@pytest.fixture(scope="session")
def mask_rcnn_file(mask_rcnn, export_float32) -> Path:
    """The float32 file of the detector."""
    return export_float32(mask_rcnn)


@pytest.fixture
def close_stdout(monkeypatch) -> Callable[[], None]:
    """Replace stdout by a pipe whose reader has gone."""

    def close() -> None:  # called by the test, since pytest replaces stdout before it
        reader, writer = os.pipe()
        os.close(reader)
        monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w"))

    return close


@pytest.fixture
def raw_detections() -> dict[str, np.ndarray]:
    """Outputs of a detector for an image of 100x150 pixels, padded to 128x160; some boxes exceed the image."""
    boxes = [[10.2, 8.7, 60.1, 70.9], [-5, -8, 30, 25], [100, 60, 170, 120], [40.5, 40.5, 41, 41], [150, 90, 158, 130]]
    grids = torch.from_numpy(np.random.default_rng(0).random((len(boxes), 1, 7, 7), dtype=np.float32))
    masks = torch.nn.functional.interpolate(grids, (28, 28), mode="bicubic").clamp(0, 1)
    return dict(
        boxes=np.array(boxes, np.float32),
        scores=np.array([0.9, 0.8, 0.7, 0.6, 0.2], np.float32),
        labels=np.array([0, 1, 1, 0, 1]),
        masks=masks[:, 0].numpy(),
    )


@pytest.fixture
def detector(tmp_path, raw_detections) -> Callable[..., Path]:
    """Write a file with the inputs and metadata of a detector, which returns `raw_detections` for every image."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, types = onnx.helper, onnx.TensorProto

    def write(**facts: str) -> Path:
        outputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), ["n", *values.shape[1:]])
            for name, values in raw_detections.items()
        ]
        graph = helper.make_graph(
            [helper.make_node("Identity", [f"constant_{name}"], [name]) for name in raw_detections],
            "detector",
            [helper.make_tensor_value_info("image", types.FLOAT, ["batch", 3, "height", "width"])],
            outputs,
            [onnx.numpy_helper.from_array(values, f"constant_{name}") for name, values in raw_detections.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        steps = dict(resize=dict(scale=[160, 100], keep_ratio=True), pad_divisor=32, pad_value=0)
        defaults = dict(
            task="instance segmentation",
            channel_order="RGB",
            mean="[123.675, 116.28, 103.53]",
            std="[58.395, 57.12, 57.375]",
            classes='["circle", "square"]',
            test_cfg='{"rcnn": {"mask_thr_binary": 0.5}}',
            preprocessing=json.dumps(steps),
        )
        helper.set_model_props(model, defaults | facts)
        onnx.save(model, tmp_path / "detector.onnx")
        return tmp_path / "detector.onnx"

    return write
