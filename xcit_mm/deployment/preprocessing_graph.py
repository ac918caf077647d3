"""ONNX graphs before and after a model: from the pixels of an image to the model's input, and back to these pixels.

The functions are onnxscript: Python that is compiled to ONNX operators. They compute what `runtime` computes in numpy.
"""

# mypy: allow-untyped-defs

import json
from typing import Any

import numpy as np
import onnxscript
from onnx import ModelProto, TensorProto, compose, numpy_helper
from onnxscript import optimizer, script

# Without types, since mypy takes the annotations of onnxscript for classes that cannot be indexed.
op: Any = onnxscript.opset18
types: Any = onnxscript
TO_UINT8, TO_INT32, TO_INT64 = TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64
TO_FLOAT, TO_DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE


@script(default_opset=op)
def fixed_taps(before, after):
    """Compute what `runtime.images._fixed_taps` computes."""
    scale = 1.0 / (op.Cast(after, to=TO_DOUBLE) / op.Cast(before, to=TO_DOUBLE))
    entry = op.Cast(op.Range(0, after, 1), to=TO_DOUBLE)
    position = op.Cast((entry + 0.5) * scale - 0.5, to=TO_FLOAT)
    floor = op.Floor(position)
    cell = op.Cast(floor, to=TO_INT64)
    last = before - 1
    weight = op.Where(op.Or(cell < 0, cell >= last), 0.0, position - floor)
    first = op.Min(op.Max(cell, 0), last)
    second = op.Min(first + 1, last)
    first_weight = op.Cast(op.Round((1.0 - weight) * 2048.0), to=TO_INT32)
    second_weight = op.Cast(op.Round(weight * 2048.0), to=TO_INT32)
    return first, second, first_weight, second_weight


@script(default_opset=op)
def interpolate_columns(rows, first, second, first_weight, second_weight):
    """Interpolate rows (h, W, 3) at w columns, in integers."""
    left = op.Cast(op.Gather(rows, first, axis=1), to=TO_INT32) * op.Unsqueeze(first_weight, [1])
    right = op.Cast(op.Gather(rows, second, axis=1), to=TO_INT32) * op.Unsqueeze(second_weight, [1])
    return (left + right) / 16


@script(default_opset=op)
def resize(pixels, size, resized_size):
    """Resize an image (H, W, 3) as the runtime does. The operator Resize would change one value in eight."""
    top, bottom, top_weight, bottom_weight = fixed_taps(op.Gather(size, 0), op.Gather(resized_size, 0))
    left, right, left_weight, right_weight = fixed_taps(op.Gather(size, 1), op.Gather(resized_size, 1))
    upper = interpolate_columns(op.Gather(pixels, top), left, right, left_weight, right_weight)
    lower = interpolate_columns(op.Gather(pixels, bottom), left, right, left_weight, right_weight)
    upper_share = upper * op.Unsqueeze(top_weight, [1, 2]) / 65536
    lower_share = lower * op.Unsqueeze(bottom_weight, [1, 2]) / 65536
    return op.Cast((upper_share + lower_share + 2) / 4, to=TO_UINT8)


@script(default_opset=op)
def keep_pixels(pixels, size, resized_size):
    return op.Identity(pixels)


@script(default_opset=op)
def keep_size(size):
    return op.Identity(size)


def _resized_size(steps: dict[str, Any] | None) -> Any:
    """Return the function from the size of an image, (height, width), to its size after resizing."""
    if steps is None:
        return keep_size
    width, height = steps["scale"]
    if not steps["keep_ratio"]:
        constant = [height, width]

        @script(default_opset=op)
        def fixed(size):
            return op.Constant(value_ints=constant)

        return fixed
    long, short = float(max(width, height)), float(min(width, height))

    @script(default_opset=op)
    def rescaled(size):
        """Compute mmcv's `rescale_size` in double precision, as Python does, so that all sizes are mmcv's."""
        sides = op.Cast(size, to=TO_DOUBLE)
        factor = op.Min(long / op.ReduceMax(sides), short / op.ReduceMin(sides))
        return op.Cast(sides * factor + 0.5, to=TO_INT64)

    return rescaled


def preprocessing_graph(model: ModelProto) -> ModelProto:
    """Return the graph of a model's preprocessing, as the model's metadata describe it.

    The input is `pixels` (H, W, 3), RGB, uint8. The outputs are `image` (1, 3, h, w), resized, normalised and padded;
    `size`, the height and width of `pixels`; and `resized_size`, those before padding.
    """
    facts = {prop.key: prop.value for prop in model.metadata_props}
    steps = json.loads(facts["preprocessing"])
    resized_size_of = _resized_size(steps["resize"])
    resize_pixels = keep_pixels if steps["resize"] is None else resize
    channels = [0, 1, 2] if facts["channel_order"] == "RGB" else [2, 1, 0]
    mean = _per_channel(json.loads(facts["mean"]) or [0.0])
    std = _per_channel(json.loads(facts["std"]) or [1.0])
    divisor, pad_value = steps["pad_divisor"], float(steps["pad_value"])

    @script(default_opset=op)
    def preprocess(pixels):
        size = op.Shape(pixels, start=0, end=2)
        resized_size = resized_size_of(size)
        resized = resize_pixels(pixels, size, resized_size)
        values = op.Cast(op.Unsqueeze(op.Transpose(resized, perm=[2, 0, 1]), [0]), to=TO_FLOAT)
        normalised = (op.Gather(values, channels, axis=1) - op.Constant(value=mean)) / op.Constant(value=std)
        padding = op.Mod(op.Neg(resized_size), divisor)
        image = op.Pad(normalised, op.Concat([0, 0, 0, 0, 0, 0], padding, axis=0), pad_value)
        return image, size, resized_size

    return _model(
        preprocess, model, [types.UINT8["H", "W", 3]], [types.FLOAT[1, 3, "h", "w"], types.INT64[2], types.INT64[2]]
    )


def _per_channel(values: list[float]) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.float32).reshape(1, -1, 1, 1))


def segmentor_graph(model: ModelProto) -> ModelProto:
    """Return the graph from `logits` (1, classes, h, w) to the `segmentation_map` (H, W) of an image's pixels."""
    facts = {prop.key: prop.value for prop in model.metadata_props}
    mode = "align_corners" if json.loads(facts["align_corners"]) else "half_pixel"
    threshold = json.loads(facts["threshold"])
    min_probability = 0.0 if threshold is None else float(threshold)
    kind = types.UINT8 if len(json.loads(facts["classes"])) <= 256 else types.INT32
    label_type = kind.dtype

    @script(default_opset=op)
    def best(logits):
        return op.ArgMax(logits, axis=1)

    @script(default_opset=op)
    def above_threshold(logits):
        return op.Sigmoid(logits) > min_probability

    classify = best if threshold is None else above_threshold

    @script(default_opset=op)
    def to_segmentation_map(logits, size, resized_size):
        unpadded = op.Slice(logits, [0, 0], resized_size, [2, 3])
        shape = op.Concat(op.Shape(unpadded, start=0, end=2), size, axis=0)
        enlarged = op.Resize(unpadded, None, None, shape, mode="linear", coordinate_transformation_mode=mode)
        segmentation_map = op.Squeeze(op.Cast(classify(enlarged), to=label_type), [0, 1])
        return segmentation_map  # noqa: RET504  # the name of the output

    inputs = [types.FLOAT[1, "C", "h", "w"], types.INT64[2], types.INT64[2]]
    return _model(to_segmentation_map, model, inputs, [kind["H", "W"]])


@script(default_opset=op)
def to_pixels(model_boxes, size, resized_size):
    """Convert boxes (n, 4) of the resized image to pixels of the image."""
    scale = op.Cast(resized_size, to=TO_DOUBLE) / op.Cast(size, to=TO_DOUBLE)
    boxes = model_boxes / op.Cast(op.Gather(scale, [1, 0, 1, 0]), to=TO_FLOAT)
    return boxes  # noqa: RET504  # the name of the output


def detector_graph(model: ModelProto) -> ModelProto:
    """Return the graph from a detector's `model_boxes` (n, 4) to `boxes` in an image's pixels."""
    return _model(to_pixels, model, [types.FLOAT["n", 4], types.INT64[2], types.INT64[2]], [types.FLOAT["n", 4]])


def _model(function: Any, model: ModelProto, input_types: list[Any], output_types: list[Any]) -> ModelProto:
    """Convert an onnxscript function to a flat graph, which can be merged with `model`."""
    proto = function.to_model_proto(input_types=input_types, output_types=output_types, ir_version=model.ir_version)
    proto = optimizer.optimize(proto)  # inlines functions, and casts constants here, since onnxruntime would warn
    del proto.opset_import[:]
    proto.opset_import.add(domain="", version=op.version)
    del proto.graph.value_info[:]
    # `merge_models` rejects names that occur in both graphs.
    return compose.add_prefix(proto, f"{function.name}/", rename_inputs=False, rename_outputs=False)
