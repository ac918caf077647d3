"""Export of trained models to ONNX or torch.export, for images of any size, checked against torch."""

import io
import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..checks.preflight import check_checkpoint
from ..models.build import backbone_from_config, model_from_config
from ..utils.configs import read_config
from ..utils.errors import reason
from .comparison import compare_detector, compare_maps
from .detectors import ExportableDetector
from .evaluation import Scores, check_evaluation, evaluate_files, score_lines
from .float16 import write_float16
from .formats import count_operators, read_onnx, working_folder, write_onnx
from .images import calibration_paths
from .metadata import class_names, model_metadata
from .precision import PrecisionReport, compare_precision
from .preprocessing import add_preprocessing, compare_preprocessing
from .quantization import write_int8
from .target import ExportTarget
from .traceable import ExportableSegmentor, exportable

TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")  # in the errors of torch


@dataclass
class ExportReport:
    """Result of an export.

    Attributes:
        outputs: For each output a summary of its comparison with torch, and of the preprocessing in the file.
        metadata: Metadata of the file.
        operators: Number of operators of each type of an ONNX file.
        scores: If evaluated, scores of torch and the float32 file.
        precision: Comparison of a float16 or int8 file.
    """

    outputs: dict[str, str]
    metadata: dict[str, str]
    operators: Counter[str] = field(default_factory=Counter)
    scores: Scores = field(default_factory=dict)
    precision: PrecisionReport | None = None

    def lines(self) -> Iterator[str]:
        """Summarize the export."""
        rows = list(self.outputs.items())
        rows += [("scores", line) for line in score_lines(self.scores)]
        if self.precision:
            rows += [(self.precision.key, line) for line in self.precision.lines()]
        if self.operators:
            rows.append(("operators", ", ".join(f"{name} {count}" for name, count in self.operators.most_common())))
        rows += [(key, value if len(value) <= 100 else f"{value[:100]}...") for key, value in self.metadata.items()]
        return (f"{name:15} {line}" for name, line in rows)


def export_model(
    config: str | Path,
    checkpoint: str | Path,
    target: ExportTarget,
    evaluate: int | None = None,
    calibration: str | None = None,
) -> ExportReport:
    """Export a trained model to one file, whose input is a batch of normalised images (B, C, H, W), `image`.

    Height and width may be of any size. A backbone returns its pyramid, `stride4` to `stride32`; a segmentor `logits`
    (B, classes, H, W), whose argmax is the segmentation map. A detector returns what
    `ExportableDetector` returns. The file is written only if its outputs agree with torch's, at other sizes than the
    traced one: see `compare_maps`.

    Args:
        config: Path of a config of mmdet or mmseg.
        checkpoint: A path, a URL or `xcit://NAME`. It must fill the whole exported part.
        target: File to write.
        evaluate: Number of images of the config's test set on which to evaluate the file and torch. For int8 the
            default is the whole test set.
        calibration: Folder, glob pattern or list of images to calibrate int8 with.

    Raises:
        FileNotFoundError: If config, checkpoint, images, test data or the folder of the file are missing.
        ModuleNotFoundError: If packages for ONNX are missing.
        ValueError: If the model cannot be exported to this target, or the checkpoint does not fit it.
        RuntimeError: If torch is too old, tracing fails, or the file does not agree with torch.
    """
    target.check()
    cfg = read_config(config, [])
    check_checkpoint(checkpoint)
    target.check_model(cfg)
    is_int8 = target.precision == "int8"
    if is_int8 == (calibration is None):
        raise ValueError(f"precision={target.precision!r} with {calibration=}: int8 alone needs calibration images")
    if target.size and evaluate is not None:
        raise ValueError("--evaluate with --size: test images have other sizes, leave one of them out")
    if evaluate is not None or is_int8:
        check_evaluation(cfg, target.part, evaluate)
    paths = [] if calibration is None else calibration_paths(cfg, calibration)
    with _quiet(), working_folder(target.path.parent) as folder, torch.no_grad():
        model: Any = (model_from_config if target.part == "model" else backbone_from_config)(cfg, checkpoint)
        classes = class_names(cfg, model, str(checkpoint)) if target.part == "model" else []
        float32 = folder / target.path.name
        file = float32 if target.precision == "float32" else folder / f"{target.precision}-{float32.name}"
        try:
            report = _export_float32(cfg, model, float32, classes, target.size)
            if is_int8:
                report.precision = write_int8(cfg, model, float32, file, paths, evaluate)
            elif target.precision == "float16":
                report.precision = write_float16(cfg, model, float32, file)
            if report.precision:
                count = 0 if evaluate is None and not is_int8 else evaluate
                compare_precision(cfg, model, float32, file, report.precision, count)
                report.metadata[report.precision.key] = report.precision.to_json()
            elif evaluate is not None:
                _, report.scores = evaluate_files(cfg, model, dict(float32=_read(float32)), evaluate)
            if target.preprocessing:
                for path in {float32, file}:
                    add_preprocessing(path)
                # Scores report the effect of int8.
                report.outputs["preprocessing"] = compare_preprocessing(cfg, model, float32 if is_int8 else file)
            if target.is_onnx:
                report.operators = count_operators(file)
        except Exception as error:  # exporters, runtimes, data sets and metrics raise nearly anything
            why = TERMINAL_CODES.sub("", reason(error))[:300]
            raise RuntimeError(f"the file is not written: {why}") from error
        file.replace(target.path)
    return report


def _export_float32(
    cfg: Config, model: Any, path: Path, classes: list[str], size: tuple[int, int] | None
) -> ExportReport:
    """Export a model in float32 without preprocessing, and compare it with torch."""
    channels, traced = cfg.model.backbone.get("in_channels", 3), model
    is_detector = hasattr(model, "backbone") and cfg.default_scope == "mmdet"
    if not hasattr(model, "backbone"):
        names = [f"stride{stride}" for stride in model.strides]
    elif cfg.default_scope == "mmseg":
        traced, names = ExportableSegmentor(model), ["logits"]
    else:
        traced = ExportableDetector(model, size is not None)
        names = traced.outputs
    metadata = model_metadata(cfg, model, classes, getattr(traced, "divisor", 1))
    if size:
        metadata["size"] = json.dumps(size)
    options = traced.options if is_detector and not size else {}
    program = _trace(exportable(traced), channels, size, options)
    if path.suffix == ".onnx":
        write_onnx(program, path, names, metadata, options)
    else:
        torch.export.save(program, path, extra_files={"metadata.json": json.dumps(metadata)})
    if is_detector:
        return ExportReport(compare_detector(cfg, model, _read(path), channels, size).lines(), metadata)
    return ExportReport(compare_maps(cfg, model, names, _read(path), channels, size), metadata)


def _read(path: Path) -> Callable:
    return read_onnx(path) if path.suffix == ".onnx" else torch.export.load(path).module()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of builders, the notes of exporters, and the tables of pycocotools."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _trace(
    model: nn.Module, channels: int, size: tuple[int, int] | None, options: dict[str, Tensor]
) -> ExportedProgram:
    if size:
        return torch.export.export(model, (torch.zeros(1, channels, *size),))
    # A size of 1 would become a constant: wrong for a batch, and for the cells of a detector's level of stride 128.
    sizes = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    fixed = [(None,) * len(options)] if options else []  # one entry for all positional arguments after the image
    inputs = (torch.zeros(2, channels, 288, 416), *options.values())
    return torch.export.export(model, inputs, dynamic_shapes=(sizes, *fixed))
