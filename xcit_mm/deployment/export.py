"""Trained models as ONNX or torch.export files for images of any size, checked against torch."""

import importlib.util
import io
import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..archs import arch_name
from ..checks.preflight import check_backbone, check_checkpoint
from ..models.backbone import XCiT
from ..models.build import backbone_from_config, model_from_config
from ..utils.configs import (
    backbone_class,
    channel_order,
    normalisation,
    read_config,
    tested_dataset,
    tested_metainfo,
)
from ..utils.errors import reason
from ..version import __version__
from .agreement import Agreement, compare_with_mmdet
from .detectors import Detections
from .evaluation import check_evaluation, evaluate_files
from .formats import count_operators, read_onnx, read_pt2, write_onnx, write_pt2
from .half import Halved, write_half
from .pictures import Moved, check_pictures
from .preprocessing import check_preparation, preparation, put_preprocessing
from .quantization import Quantized, calibration_paths, write_int8
from .supported import check_detector
from .traceable import Logits, exportable

__all__ = ["PARTS", "Exported", "export_model"]

PARTS = ("backbone", "model")
SUFFIXES = (".onnx", ".pt2")
# Batch, height, width. What is 1 is taken for a constant, as it is meant for the batch of a detector, but not for the
# cells of its level of stride 128.
TRACED = (2, 288, 416)
CHECKED = ((1, 203, 330), (2, 256, 128))
TOLERANCE = 1e-3  # of an output's mean magnitude


@dataclass
class Exported:
    """What was written.

    Attributes:
        outputs: For each output how near to torch it is.
        metadata: What the file says of itself.
        operators: Of an ONNX file, how often each occurs.
        scores: If evaluated, for each metric torch's and the file's.
        moved: Of a file that takes pictures, what preparing them in it changes.
        quantized: Of an int8 file, what that costs and brings.
        halved: Of an fp16 file, how far that moves what is found.
    """

    outputs: dict[str, str]
    metadata: dict[str, str]
    operators: Counter[str] = field(default_factory=Counter)
    scores: dict[str, tuple[float, ...]] = field(default_factory=dict)
    moved: Moved | None = None
    quantized: Quantized | None = None
    halved: Halved | None = None


def export_model(
    config: str,
    checkpoint: str,
    out: Path,
    part: str = "model",
    takes_pictures: bool = False,
    evaluate: int | None = None,
    calibration: str | None = None,
    half: bool = False,
) -> Exported:
    """Write a trained model to one file, which takes normalised images (B, C, H, W), `image`, of any size.

    The backbone gives its pyramid, `stride4` to `stride32`; a segmentor gives `logits` (B, classes, H, W), whose argmax
    is the segmentation map. A detector takes one image, and gives what `Detections` gives. `out` is written only if it
    gives what torch gives, at other sizes than the traced one; see `Agreement` for detectors.

    Args:
        config: Path of a config of mmdet or mmseg.
        checkpoint: A path, a URL or `xcit://NAME`. It fills all that is exported.
        out: A file name in .onnx or .pt2, torch.export's, which takes images from 64 pixels a side and no detectors.
        part: 'backbone' or 'model'.
        takes_pictures: Whether the file takes `picture` (H, W, 3), RGB, uint8, instead, prepares it as the config's
            test pipeline does, and answers in its pixels, as `with_preprocessing` says.
        evaluate: Test the file and torch on so many images of the config's test set.
        calibration: A folder, glob or list of images, by which the file becomes one of int8; then `evaluate` is the
            whole test set by default.
        half: Whether the file computes in half precision, for GPUs.

    Raises:
        FileNotFoundError: If config, checkpoint, images, data to test on or the folder of `out` are not there.
        ModuleNotFoundError: If packages for ONNX are missing.
        ValueError: If the model cannot be exported, or the checkpoint does not fit it.
        RuntimeError: If torch is too old, tracing fails, or the file does not give what torch gives.
    """
    _check_torch()
    _check_target(out)
    cfg = read_config(config, [])
    check_checkpoint(checkpoint)
    _check_part(cfg, part, out)
    if takes_pictures:
        _check_takes_pictures(cfg, part, out)
    if evaluate is not None or calibration is not None:
        check_evaluation(cfg, part, evaluate)
    paths = _check_precision(cfg, part, out, calibration, half)
    with _quiet():
        model: Any = (model_from_config if part == "model" else backbone_from_config)(cfg, checkpoint)
    with _quiet(), TemporaryDirectory(dir=out.parent, prefix=".export-") as folder, torch.no_grad():
        written = final = Path(folder) / out.name
        exported = _write(cfg, model, part, written)
        try:
            if paths:
                final = Path(folder) / f"int8-{out.name}"
                exported.quantized = write_int8(cfg, model, written, final, paths, evaluate)
                exported.metadata["int8"] = exported.quantized.to_json()
            elif half:
                final = Path(folder) / f"fp16-{out.name}"
                exported.halved = write_half(cfg, model, written, final, evaluate)
                exported.metadata["fp16"] = exported.halved.to_json()
            elif evaluate is not None:
                _, exported.scores = evaluate_files(cfg, model, [_read(written)], evaluate)
            if takes_pictures:
                for file in {written, final}:
                    put_preprocessing(file)
                # What 8 bits change is told by scores instead.
                exported.moved = check_pictures(final if half else written, config, checkpoint)
            if out.suffix == ".onnx":
                exported.operators = count_operators(final)
        except Exception as error:  # data sets and metrics too
            raise RuntimeError(f"the file is not written: {reason(error)}") from error
        final.replace(out)
    return exported


def _write(cfg: Config, model: Any, part: str, path: Path) -> Exported:
    """Write a model to a file in float32, which takes normalised images, and compare it with torch."""
    metadata = _metadata(cfg, model)
    traced, names = _outputs(cfg, model)
    channels = cfg.model.backbone.get("in_channels", 3)
    write = write_onnx if path.suffix == ".onnx" else write_pt2
    try:
        write(_trace(exportable(traced), channels), path, names, metadata)
        agreement = _compared(traced, partial(_read, path), names, channels)
    except Exception as error:  # exporters and runtimes raise nearly anything
        raise RuntimeError(f"this {part} cannot be exported: {reason(error)[:300]}") from error
    agreement.check()
    return Exported(agreement.lines(), metadata)


def _read(path: Path, score_threshold: float | None = None) -> Callable:
    return read_onnx(path, score_threshold) if path.suffix == ".onnx" else read_pt2(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of builders, the exporters' notes on their own workings, and pycocotools' tables."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _check_torch() -> None:
    if not hasattr(Dim, "DYNAMIC"):
        raise RuntimeError(f"torch {torch.__version__} traces no images of any size: export with torch 2.6 or newer")


def _check_target(out: Path) -> None:
    if out.suffix not in SUFFIXES:
        raise ValueError(f"{out}: name it {' or '.join(SUFFIXES)}")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent}: make it first")
    packages = ("onnx", "onnxscript", "onnxruntime") if out.suffix == ".onnx" else ()
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"{', '.join(missing)} not installed: pip install -r requirements/export.txt")


def _check_part(cfg: Config, part: str, out: Path) -> None:
    library = cfg.get("default_scope")
    if library not in ("mmdet", "mmseg"):
        raise ValueError(f"default_scope={library!r}: must be one of mmdet, mmseg")
    if backbone_class(cfg) is not XCiT:
        backbone = cfg.model.get("backbone", {}).get("type")
        raise ValueError(f"the config's backbone is {backbone}: only models with this package's XCiT are exported")
    if part == "model" and library == "mmdet":
        if out.suffix != ".onnx":
            raise ValueError(f"{out}: a whole detector is written as .onnx only: name it so, or export the backbone")
        check_detector(cfg)
    check_backbone(cfg)
    (tested_metainfo if part == "model" else tested_dataset)(cfg)  # raises where there is none


def _check_precision(cfg: Config, part: str, out: Path, calibration: str | None, half: bool) -> list[str]:
    """Check what is asked of 8 and 16 bits; gives the images that calibrate the former."""
    if half and (part != "model" or out.suffix != ".onnx"):
        raise ValueError(f"{out}, the {part}: only whole models are written in fp16, as .onnx: leave --fp16 out")
    if calibration is None:
        return []
    if out.suffix != ".onnx":
        raise ValueError(f"{out}: only .onnx files are quantised: name it .onnx")
    if half:
        raise ValueError("--int8 and --fp16: give one of them")
    return calibration_paths(cfg, calibration)


def _outputs(cfg: Config, model: Any) -> tuple[nn.Module, list[str]]:
    """A model in the form that is traced, and the names of its outputs."""
    if not hasattr(model, "backbone"):
        return model, [f"stride{stride}" for stride in model.strides]
    if cfg.default_scope == "mmseg":
        return Logits(model), ["logits"]
    detections = Detections(model)
    return detections, detections.outputs


def _check_takes_pictures(cfg: Config, part: str, out: Path) -> None:
    if out.suffix != ".onnx":
        raise ValueError(f"{out}: only .onnx files prepare pictures: name it .onnx")
    check_preparation(part, preparation(cfg))


def _trace(model: nn.Module, channels: int) -> ExportedProgram:
    batch, height, width = TRACED
    batch, first = (1, Dim.STATIC) if isinstance(model, Detections) else (batch, Dim.DYNAMIC)
    sizes = {0: first, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    return torch.export.export(model, (torch.zeros(batch, channels, height, width),), dynamic_shapes=(sizes,))


@dataclass
class Deviations:
    """For each output its largest deviation from torch, in units of its mean magnitude."""

    largest: dict[str, float]

    def check(self) -> None:
        """Raise a RuntimeError if one is beyond the tolerance, or no number."""
        for name, deviation in self.largest.items():
            if not deviation <= TOLERANCE:
                raise RuntimeError(f"{name} of the exported model deviates by {deviation:.1e} from torch: not written")

    def lines(self) -> dict[str, str]:
        """For each output how near it is."""
        return {
            name: f"within {deviation:.1e} of torch, in units of its mean magnitude"
            for name, deviation in self.largest.items()
        }


def _compared(model: nn.Module, read: Callable, names: list[str], channels: int) -> Agreement | Deviations:
    """Compare what has been written with torch at the sizes checked."""
    if isinstance(model, Detections):
        return compare_with_mmdet(model, read, channels)
    run = read()
    generator = torch.Generator().manual_seed(0)
    largest = dict.fromkeys(names, 0.0)
    for batch, height, width in CHECKED:
        image = torch.randn(batch, channels, height, width, generator=generator)
        for name, found, expected in zip(names, _as_tuple(run(image)), _as_tuple(model(image)), strict=True):
            if found.shape != expected.shape:
                raise RuntimeError(f"{name} of the exported model is {tuple(found.shape)}, not {tuple(expected.shape)}")
            deviation = ((found - expected).abs().max() / expected.abs().mean()).item()
            largest[name] = max(deviation, largest[name]) if deviation == deviation else float("nan")
    return Deviations(largest)


def _as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else outputs


def _metadata(cfg: Config, model: nn.Module) -> dict[str, str]:
    """What a user of the file has to know: text, lists as JSON."""
    backbone: Any = getattr(model, "backbone", model)
    mean, std = normalisation(cfg)
    task = "semantic segmentation"
    if cfg.default_scope == "mmdet":
        task = "instance segmentation" if getattr(model, "with_mask", False) else "object detection"
    found = dict(
        xcit_mm_version=__version__,
        task="backbone" if backbone is model else task,
        arch=arch_name(backbone.arch.embed_dim, backbone.arch.depth, backbone.arch.num_heads),
        patch_size=str(backbone.patch_size),
        channel_order=channel_order(cfg),
        mean=json.dumps(mean),
        std=json.dumps(std),
    )
    if backbone is not model:
        found |= dict(classes=json.dumps(tested_metainfo(cfg)["classes"]), test_cfg=json.dumps(cfg.model.test_cfg))
        found |= dict(preparation=json.dumps(preparation(cfg)))
    if found["task"] == "semantic segmentation":
        segmentor: Any = model
        threshold = segmentor.decode_head.threshold if segmentor.out_channels == 1 else None
        found |= dict(align_corners=json.dumps(segmentor.align_corners), threshold=json.dumps(threshold))
    return found
