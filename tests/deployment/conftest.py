import json
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


class Trained(NamedTuple):
    config: str
    checkpoint: str


@pytest.fixture(scope="session")
def segmentor(tmp_path_factory, shapes) -> Trained:
    """A small Semantic FPN."""
    folder = tmp_path_factory.mktemp("segmentor")
    config, checkpoint = folder / "fpn.py", folder / "fpn.pth"
    config.write_text(SEGMENTOR.format(root=ROOT, data=shapes))
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=fill(MODELS.build(cfg.model)).state_dict()), checkpoint)
    return Trained(str(config), str(checkpoint))


@pytest.fixture(scope="session")
def segmentor_file(segmentor, tmp_path_factory) -> Path:
    """The file of it, which takes normalised images."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    out = tmp_path_factory.mktemp("exported") / "model.onnx"
    export_model(segmentor.config, segmentor.checkpoint, out)
    return out


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
