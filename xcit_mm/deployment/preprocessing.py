"""How a config's test pipeline prepares pictures: as data for the runner, and as a graph inside the file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.config import Config

from ..utils.configs import data_preprocessor, tested_dataset, type_name

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["check_preparation", "preparation", "prepare_graph", "put_preprocessing", "with_preprocessing"]

_HARMLESS = ("LoadAnnotations", "PackDetInputs", "PackSegInputs")  # the image passes through them as it is
# What each step may be told; anything else would have to be done by a runner too.
_KNOWN: dict[str, dict[str, Any]] = dict(
    LoadImageFromFile=dict(to_float32=False, color_type="color", imdecode_backend="cv2"),
    Resize=dict(scale_factor=None, backend="cv2", interpolation="bilinear"),
)
_FREE = dict(
    LoadImageFromFile=("backend_args", "file_client_args", "ignore_empty"),
    Resize=("scale", "keep_ratio", "clip_object_border"),
)


def preparation(cfg: Config) -> dict[str, Any]:
    """What a config's test pipeline and data preprocessor do with an RGB or BGR picture besides normalising it.

    Returns:
        `resize`, None or a dict of `scale` [width, height], `keep_ratio` and `interpolation`; `pad_divisor` and
        `pad_value` of the padding at the right and the bottom, after normalisation. Where anything else is done to
        pictures, `unknown` alone, which says what.
    """
    try:
        return _preparation(cfg)
    except _Unknown as error:
        return dict(unknown=str(error))


class _Unknown(Exception):
    pass


def _preparation(cfg: Config) -> dict[str, Any]:
    resize = None
    for step in tested_dataset(cfg).get("pipeline", []):
        name = type_name(step)
        if name in _HARMLESS:
            continue
        if name not in _KNOWN or (name == "Resize" and resize is not None):
            raise _Unknown(f"{name} in the config's test pipeline")
        _check_step(name, step)
        if name == "Resize":
            scale = step["scale"]
            scale = [scale, scale] if isinstance(scale, int) else list(scale)
            resize = dict(scale=scale, keep_ratio=step.get("keep_ratio", False), interpolation="bilinear")
    divisor, value = _padding(data_preprocessor(cfg))
    if (cfg.model.get("test_cfg") or {}).get("mode") == "slide":
        raise _Unknown("test_cfg.mode='slide' in the config")
    return dict(resize=resize, pad_divisor=divisor, pad_value=value)


def _check_step(name: str, step: dict) -> None:
    for key, value in step.items():
        if key != "type" and key not in _FREE[name] and value != _KNOWN[name].get(key, ...):
            raise _Unknown(f"{name}({key}={value!r}) in the config's test pipeline")
    if name == "Resize" and step.get("scale") is None:
        raise _Unknown("Resize without a scale in the config's test pipeline")


def _padding(preprocessor: dict) -> tuple[int, float]:
    """Divisor of the padded sides and the value there, of mmdet's or mmseg's data preprocessor in testing."""
    name = type_name(preprocessor) if preprocessor else None
    if name == "DetDataPreprocessor":
        return 1, 0  # a detector's file pads, and so knows where the picture ends
    if name != "SegDataPreProcessor":
        raise _Unknown(f"data_preprocessor.type={name!r} in the config")
    test_cfg = preprocessor.get("test_cfg") or {}
    if test_cfg.get("size") is not None:
        raise _Unknown(f"data_preprocessor.test_cfg.size={test_cfg['size']} in the config")
    return test_cfg.get("size_divisor") or 1, preprocessor.get("pad_val", 0)


def with_preprocessing(model: "ModelProto") -> "ModelProto":
    """A file of this package that takes the picture itself: `picture` (H, W, 3), RGB, uint8, for `image`.

    A detector's boxes are then in pixels of the picture, up to rounding within it; a segmentor gives
    `segmentation_map` (H, W), the classes as uint8, or int32 beyond 256 classes.

    Raises:
        ValueError: If the model is neither, or does not tell how pictures are prepared.
    """
    from onnx import compose

    facts = {one.key: one.value for one in model.metadata_props}
    check_preparation(facts.get("task", "file of another origin"), json.loads(facts.get("preparation", "{}")))
    prepare = prepare_graph(model)
    inner = compose.add_prefix(model, "model_")
    outputs = [output.name for output in model.graph.output]
    finish = _parsed(model, _segmentor_s_end(facts) if outputs == ["logits"] else _detector_s_end(outputs))
    joined = compose.merge_models(prepare, inner, io_map=[("image", "model_image")])
    used = [value.name for value in finish.graph.input]
    whole = compose.merge_models(
        joined,
        finish,
        io_map=[(name, name) for name in used],
        outputs=[value.name for value in finish.graph.output],
        producer_name=model.producer_name,
        producer_version=model.producer_version,
    )
    del whole.opset_import[1:]  # the same, of each part
    return whole


def put_preprocessing(path: Path) -> None:
    """Let a written file take pictures, as `with_preprocessing` says."""
    import onnx

    model = with_preprocessing(onnx.load(path))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def check_preparation(task: str, steps: dict[str, Any]) -> None:
    """Check that the preparation of pictures, `preparation`'s, can go into the file of a model of this task.

    Raises:
        ValueError: If it cannot.
    """
    if task == "backbone" or not steps:
        raise ValueError(f"the preparation of pictures goes into whole detectors and segmentors, not into a {task}")
    if "unknown" in steps:
        raise ValueError(f"the preparation of pictures cannot go into a file, for {steps['unknown']}: leave it out")


def _parsed(model: "ModelProto", text: str) -> "ModelProto":
    """A graph in ONNX's text form as a model, of the versions of another one."""
    from onnx import parser

    version = next(one.version for one in model.opset_import if not one.domain)
    return parser.parse_model(f'<ir_version: {model.ir_version}, opset_import: ["": {version}]>\n{text}')


def prepare_graph(model: "ModelProto") -> "ModelProto":
    """A model's preparation: `picture` (H, W, 3), RGB, uint8, to `image` (1, 3, h, w), `size` and `prepared_size`.

    The sizes are (height, width), before and after resizing; `image` is padded besides.
    """
    facts = {one.key: one.value for one in model.metadata_props}
    steps = json.loads(facts["preparation"])
    return _parsed(
        model,
        f"""
        prepare (uint8[H, W, 3] picture) => (float[1, 3, h, w] image, int64[2] size, int64[2] prepared_size) {{
            size = Shape <start = 0, end = 2> (picture)
            {_prepared_size(steps["resize"])}
            {_resized(steps["resize"])}
            planes = Transpose <perm = [2, 0, 1]> (resized)
            batch_axis = Constant <value_ints = [0]> ()
            batch = Unsqueeze (planes, batch_axis)
            values = Cast <to = 1> (batch)
            {_ordered(facts["channel_order"])}
            {_normalised(json.loads(facts["mean"]), json.loads(facts["std"]))}
            {_padded(steps["pad_divisor"], steps["pad_value"])}
        }}""",
    )


def _prepared_size(resize: dict | None) -> str:
    """mmcv's `rescale_size`, in double precision as Python computes it, so that every picture is as large as there."""
    if resize is None:
        return "prepared_size = Identity (size)"
    width, height = resize["scale"]
    if not resize["keep_ratio"]:
        return f"prepared_size = Constant <value_ints = [{height}, {width}]> ()"
    return f"""
            sides = Cast <to = 11> (size)
            longer = ReduceMax (sides)
            shorter = ReduceMin (sides)
            longest = Constant <value = double {{{max(width, height)}}}> ()
            shortest = Constant <value = double {{{min(width, height)}}}> ()
            by_longer = Div (longest, longer)
            by_shorter = Div (shortest, shorter)
            factor = Min (by_longer, by_shorter)
            scaled = Mul (sides, factor)
            half = Constant <value = double {{0.5}}> ()
            nearest = Add (scaled, half)
            prepared_size = Cast <to = 7> (nearest)"""


def _resized(resize: dict | None) -> str:
    """A picture resized as by OpenCV's INTER_LINEAR, in integers as by the runner.

    The operator Resize, rounded, would give one value in eight another grey level.
    """
    if resize is None:
        return "resized = Identity (picture)"
    lines = "".join(
        f"""
            {line} = Gather <axis = 0> (picture, rows_{line})
            {line}_before = Gather <axis = 1> ({line}, columns_first)
            {line}_after = Gather <axis = 1> ({line}, columns_second)
            {line}_left = Cast <to = 6> ({line}_before)
            {line}_right = Cast <to = 6> ({line}_after)
            {line}_weighted_left = Mul ({line}_left, left_weights)
            {line}_weighted_right = Mul ({line}_right, right_weights)
            {line}_sum = Add ({line}_weighted_left, {line}_weighted_right)
            {line}_across = Div ({line}_sum, bits_4)
            {line}_weighted = Mul ({line}_across, {line}_weights)
            {line}_part = Div ({line}_weighted, bits_16)"""
        for line in ("first", "second")
    )
    return f"""
            zero = Constant <value_int = 0> ()
            one = Constant <value_int = 1> ()
            middle = Constant <value = double {{0.5}}> ()
            unit = Constant <value = double {{1.0}}> ()
            none = Constant <value = float {{0.0}}> ()
            all = Constant <value = float {{1.0}}> ()
            bits_11 = Constant <value = float {{2048.0}}> ()
            bits_4 = Constant <value = int32 {{16}}> ()
            bits_16 = Constant <value = int32 {{65536}}> ()
            bits_2 = Constant <value = int32 {{4}}> ()
            rounding = Constant <value = int32 {{2}}> ()
            {_fixed_taps("rows", 0)}
            {_fixed_taps("columns", 1)}
            last_axis = Constant <value_ints = [1]> ()
            last_axes = Constant <value_ints = [1, 2]> ()
            left_weights = Unsqueeze (columns_first_weight, last_axis)
            right_weights = Unsqueeze (columns_second_weight, last_axis)
            first_weights = Unsqueeze (rows_first_weight, last_axes)
            second_weights = Unsqueeze (rows_second_weight, last_axes)
            {lines}
            parts = Add (first_part, second_part)
            parts_and_half = Add (parts, rounding)
            blended = Div (parts_and_half, bits_2)
            resized = Cast <to = 2> (blended)"""


def _fixed_taps(side: str, number: int) -> str:
    """The runner's function of this name."""
    return f"""
            {side}_before = Gather (size, {"zero" if number == 0 else "one"})
            {side}_after = Gather (prepared_size, {"zero" if number == 0 else "one"})
            {side}_entries = Range (zero, {side}_after, one)
            {side}_entry = Cast <to = 11> ({side}_entries)
            {side}_centre = Add ({side}_entry, middle)
            {side}_from = Cast <to = 11> ({side}_before)
            {side}_to = Cast <to = 11> ({side}_after)
            {side}_ratio = Div ({side}_to, {side}_from)
            {side}_scale = Div (unit, {side}_ratio)
            {side}_scaled = Mul ({side}_centre, {side}_scale)
            {side}_exact = Sub ({side}_scaled, middle)
            {side}_place = Cast <to = 1> ({side}_exact)
            {side}_floor = Floor ({side}_place)
            {side}_fraction = Sub ({side}_place, {side}_floor)
            {side}_whole = Cast <to = 7> ({side}_floor)
            {side}_last = Sub ({side}_before, one)
            {side}_under = Less ({side}_whole, zero)
            {side}_over = GreaterOrEqual ({side}_whole, {side}_last)
            {side}_outside = Or ({side}_under, {side}_over)
            {side}_weight = Where ({side}_outside, none, {side}_fraction)
            {side}_from_zero = Max ({side}_whole, zero)
            {side}_first = Min ({side}_from_zero, {side}_last)
            {side}_next = Add ({side}_first, one)
            {side}_second = Min ({side}_next, {side}_last)
            {side}_rest = Sub (all, {side}_weight)
            {side}_first_share = Mul ({side}_rest, bits_11)
            {side}_second_share = Mul ({side}_weight, bits_11)
            {side}_first_rounded = Round ({side}_first_share)
            {side}_second_rounded = Round ({side}_second_share)
            {side}_first_weight = Cast <to = 6> ({side}_first_rounded)
            {side}_second_weight = Cast <to = 6> ({side}_second_rounded)"""


def _ordered(channel_order: str) -> str:
    if channel_order == "RGB":
        return "ordered = Identity (values)"
    return """
            blue_first = Constant <value_ints = [2, 1, 0]> ()
            ordered = Gather <axis = 1> (values, blue_first)"""


def _normalised(mean: list[float] | None, std: list[float] | None) -> str:
    if mean is None or std is None:
        return "normalised = Identity (ordered)"
    tensors = ("{" + ", ".join(map(repr, map(float, values))) + "}" for values in (mean, std))
    means, stds = (f"float[1, {len(mean)}, 1, 1] {values}" for values in tensors)
    return f"""
            mean = Constant <value = {means}> ()
            std = Constant <value = {stds}> ()
            centred = Sub (ordered, mean)
            normalised = Div (centred, std)"""


def _padded(divisor: int, value: float) -> str:
    if divisor == 1:
        return "image = Identity (normalised)"
    return f"""
            divisor = Constant <value_ints = [{divisor}]> ()
            negative = Neg (prepared_size)
            missing = Mod (negative, divisor)
            nowhere = Constant <value_ints = [0, 0, 0, 0, 0, 0]> ()
            pads = Concat <axis = 0> (nowhere, missing)
            pad_value = Constant <value = float {{{float(value)!r}}}> ()
            image = Pad (normalised, pads, pad_value)"""


def _segmentor_s_end(facts: dict[str, str]) -> str:
    """Logits without padding, resized to the picture's size as mmseg does, and their classes."""
    mode = "align_corners" if json.loads(facts["align_corners"]) else "half_pixel"
    threshold = json.loads(facts["threshold"])
    kind, number = ("uint8", 2) if len(json.loads(facts["classes"])) <= 256 else ("int32", 6)
    if threshold is None:
        classes = "label = ArgMax <axis = 1> (enlarged)"
    else:
        classes = f"""
            probability = Sigmoid (enlarged)
            threshold = Constant <value = float {{{float(threshold)!r}}}> ()
            label = Greater (probability, threshold)"""
    return f"""
        finish (float[1, C, h, w] model_logits, int64[2] size, int64[2] prepared_size)
            => ({kind}[H, W] segmentation_map) {{
            corner = Constant <value_ints = [0, 0]> ()
            rows_and_columns = Constant <value_ints = [2, 3]> ()
            unpadded = Slice (model_logits, corner, prepared_size, rows_and_columns)
            channels = Shape <start = 0, end = 2> (unpadded)
            map_shape = Concat <axis = 0> (channels, size)
            enlarged = Resize <mode = "linear", coordinate_transformation_mode = "{mode}"> (
                unpadded, , , map_shape)
            {classes}
            number = Cast <to = {number}> (label)
            first_axes = Constant <value_ints = [0, 1]> ()
            segmentation_map = Squeeze (number, first_axes)
        }}"""


def _detector_s_end(outputs: list[str]) -> str:
    """Boxes in the picture's pixels; whatever else is found, as it is."""
    kinds = dict(scores="float[n]", labels="int64[n]", masks="float[n, 28, 28]")
    others = [name for name in outputs if name != "boxes"]
    given = "".join(f", {kinds[name]} model_{name}" for name in others)
    returned = "".join(f", {kinds[name]} {name}" for name in others)
    same = "\n".join(f"            {name} = Identity (model_{name})" for name in others)
    return f"""
        finish (float[n, 4] model_boxes{given}, int64[2] size, int64[2] prepared_size)
            => (float[n, 4] boxes{returned}) {{
            before = Cast <to = 11> (size)
            after = Cast <to = 11> (prepared_size)
            scale = Div (after, before)
            width_first = Constant <value_ints = [1, 0, 1, 0]> ()
            scales = Gather (scale, width_first)
            box_scales = Cast <to = 1> (scales)
            boxes = Div (model_boxes, box_scales)
{same}
        }}"""
