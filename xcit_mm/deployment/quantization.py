"""int8: static quantisation of an exported file by pictures, with what it costs and what it brings."""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import init_default_scope
from torch import Tensor

from ..batch.inputs import find_inputs
from ..utils.configs import tested_dataset, type_name
from ..utils.errors import reason
from .evaluation import evaluate_files, file_input
from .formats import read_onnx

__all__ = ["LOSS", "Quantized", "calibration_paths", "milliseconds", "quantize", "write_int8"]

THRESHOLD = "score_threshold"  # a detector's constant
MOST = 100  # calibration images
THREADS = (1, 2)
REPEATS = 7
LOSS = 0.5  # points of AP or mIoU, beyond which the report says that it is much
OPERATORS = ("Conv", "Gemm", "MatMul")  # those with an int8 kernel on CPUs
# Modules that stay in float32: products of channels decide over all tokens, positions are computed once, the images'
# own values and depthwise convolutions take little time, and the last layers' outputs are logits and offsets of boxes.
FLOAT = re.compile(
    r"\.attn\b|\.pos_embeder\b|\.patch_embed\b|\.local_mp\b|"
    r"\.(conv_seg|rpn_cls|rpn_reg|fc_cls|fc_reg|conv_logits|retina_cls|retina_reg)/"
)


@dataclass
class Quantized:
    """What int8 costs and brings.

    Attributes:
        layers: How many are computed in int8, of all convolutions and matrix products with constant weights.
        images: Calibration images.
        evaluated: Images of the test set.
        scores: Of each metric those of torch, the float32 file and the int8 file.
        points: What a score of 1 is in points: 100, or 1 of percentages.
        milliseconds: For each number of threads, an image of `size` in the float32 and the int8 file, medians.
        size: Height and width of the image.
        megabytes: Of the float32 and the int8 file.
    """

    layers: tuple[int, int]
    images: int
    evaluated: int
    scores: dict[str, tuple[float, ...]]
    points: float
    milliseconds: dict[int, tuple[float, float]]
    size: tuple[int, int]
    megabytes: tuple[float, float]

    @property
    def losses(self) -> dict[str, float]:
        """Of AP or mIoU, in points against the float32 file; of all metrics where there is neither."""
        main = [name for name in self.scores if name.endswith(("mAP", "mIoU"))] or list(self.scores)
        return {name: (self.scores[name][1] - self.scores[name][2]) * self.points for name in main}

    def lines(self) -> list[str]:
        """For a report."""
        (before, after), (height, width) = self.megabytes, self.size
        chosen, total = self.layers
        lines = [f"{chosen} of {total} layers, calibrated by {self.images} images; {before:.1f} to {after:.1f} MB"]
        for name, loss in self.losses.items():
            _, full, small = self.scores[name]
            much = f", a loss of more than {LOSS}: weigh it" if loss > LOSS else ""
            lines.append(
                f"{name} {small:.4f}, of float32 {full:.4f}: {-loss:+.2f} points on {self.evaluated} images{much}"
            )
        for threads, (full, small) in self.milliseconds.items():
            times = f"{small:.0f} ms, of float32 {full:.0f}, {full / small:.2f} times as fast"
            lines.append(f"{times} ({height}x{width}, {threads} thread{'s' * (threads > 1)})")
        return lines

    def to_json(self) -> str:
        """For the file's metadata."""
        return json.dumps(
            dict(
                layers=self.layers[0],
                calibration_images=self.images,
                evaluation_images=self.evaluated,
                scores={name: dict(float32=one[1], int8=one[2]) for name, one in self.scores.items()},
                loss_in_points=self.losses,
                milliseconds={
                    f"{threads} threads": dict(float32=before, int8=after)
                    for threads, (before, after) in self.milliseconds.items()
                },
                milliseconds_at=self.size,
                megabytes=dict(float32=self.megabytes[0], int8=self.megabytes[1]),
            )
        )


def calibration_paths(cfg: Config, given: str) -> list[str]:
    """The images of a folder, glob or list, of many every n-th, each of which the config's test pipeline can read.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If one is no image or cannot be read.
    """
    inputs = find_inputs(given).inputs
    inputs = inputs[:: -(-len(inputs) // MOST)]
    init_default_scope(cfg.default_scope)  # for the pipeline's names
    pipeline = _pipeline(cfg)
    for one in inputs:
        if one.is_video:
            raise ValueError(f"calibration image {one.path}: it is a video, give images")
        try:
            pipeline(_given(one.path))
        except Exception as error:  # readers and transforms raise nearly anything
            raise ValueError(f"calibration image {one.path} cannot be read: {reason(error)[:200]}") from None
    return [one.path for one in inputs]


def _pipeline(cfg: Config) -> Compose:
    """A config's test pipeline without its annotations."""
    return Compose([step for step in tested_dataset(cfg)["pipeline"] if type_name(step) != "LoadAnnotations"])


def _given(path: str) -> dict[str, Any]:
    return dict(img_path=path, img_id=0)


def prepared_images(cfg: Config, model: Any, paths: Iterable[str]) -> Iterator[np.ndarray]:
    """Images (1, C, H, W) as a file takes them, prepared by the config's test pipeline and data preprocessor."""
    pipeline = _pipeline(cfg)
    for path in paths:
        data = model.data_preprocessor(pseudo_collate([pipeline(_given(path))]), False)
        yield file_input(data, cfg.default_scope == "mmdet").numpy()


def write_int8(cfg: Config, model: Any, path: Path, out: Path, paths: list[str], count: int | None) -> Quantized:
    """Write an exported file in int8, score and time both, and say so in the metadata of the new one.

    Args:
        cfg: A config of mmdet or mmseg.
        model: Its model, in eval mode.
        path: The float32 file.
        out: The int8 file.
        paths: Of calibration images.
        count: Images of the test set to score the files on; None: all.
    """
    import onnx

    layers = quantize(path, out, prepared_images(cfg, model, paths))
    evaluated, scores = evaluate_files(cfg, model, [read_onnx(file) for file in (path, out)], count)
    image = next(prepared_images(cfg, model, paths))
    quantized = Quantized(
        layers=layers,
        images=len(paths),
        evaluated=evaluated,
        scores=scores,
        points=100 if cfg.default_scope == "mmdet" else 1,
        milliseconds=measure_speed(path, out, image),
        size=image.shape[2:],
        megabytes=(path.stat().st_size / 1e6, out.stat().st_size / 1e6),
    )
    file = onnx.load(out)
    file.metadata_props.add(key="int8", value=quantized.to_json())
    onnx.save(file, out)
    return quantized


def quantize(path: Path, out: Path, images: Iterable[np.ndarray]) -> tuple[int, int]:
    """Write an exported file with its layers in int8, weights per channel, activations by the range they had.

    Args:
        path: The float32 file.
        out: The int8 file, of standard operators as well: QuantizeLinear and DequantizeLinear around each layer.
        images: For calibration, (1, C, H, W).

    Returns:
        How many layers are quantised, and how many there are.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.images = iter(images)

        def get_next(self) -> dict[str, np.ndarray] | None:
            image = next(self.images, None)
            return None if image is None else dict(image=image)

    model = onnx.load(path)
    constants = {one.name: one for one in model.graph.initializer}
    layers = [
        node.name
        for node in model.graph.node
        if node.op_type in OPERATORS and not constants.keys().isdisjoint(node.input)
    ]
    chosen = [name for name in layers if not FLOAT.search(name)]
    if not chosen:
        raise ValueError("the model has no layer to quantise: leave --int8 out")
    threshold = constants.get(THRESHOLD)
    given = onnx.TensorProto()
    if threshold is not None:  # the masks' layers have to see objects in every image
        given.CopyFrom(threshold)
        threshold.CopyFrom(onnx.numpy_helper.from_array(np.zeros(1, np.float32), THRESHOLD))
    quantize_static(
        model,
        out,
        Reader(),
        op_types_to_quantize=list(OPERATORS),
        nodes_to_quantize=chosen,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        # Products without a quantised output give float32, to which their bias is added.
        extra_options=dict(OpTypesToExcludeOutputQuantization=["Gemm", "MatMul"]),
    )
    quantized = onnx.load(out)
    for constant in quantized.graph.initializer:
        if constant.name == THRESHOLD:
            constant.CopyFrom(given)
    del quantized.metadata_props[:]
    quantized.metadata_props.extend(model.metadata_props)
    used = {node.domain for node in quantized.graph.node}
    kept = [one for one in quantized.opset_import if one.domain in used]
    del quantized.opset_import[:]
    quantized.opset_import.extend(kept)
    onnx.checker.check_model(quantized, full_check=True)
    onnx.save(quantized, out)
    return len(chosen), len(layers)


def measure_speed(before: Path, after: Path, image: np.ndarray) -> dict[int, tuple[float, float]]:
    """Milliseconds of an image (1, C, H, W) in two files, for each number of threads."""
    found = {}
    for threads in THREADS:
        runs = [read_onnx(path, threads=threads) for path in (before, after)]
        full, small = milliseconds(runs, torch.from_numpy(image), REPEATS)
        found[threads] = (full, small)
    return found


def milliseconds(runs: Sequence[Callable[[Tensor], Any]], image: Tensor, repeats: int) -> list[float]:
    """Of each of several functions of an image, medians of runs in turns, so that other work meets each of them."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(1 + repeats):  # the first warms up
        for run, values in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run(image)
            values.append(time.perf_counter() - start)
    return [1000 * median(values[1:]) for values in seconds]
