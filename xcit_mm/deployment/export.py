"""Trained backbones and segmentors as ONNX or torch.export files for images of any size, checked against torch."""

import importlib.util
import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..archs import arch_name
from ..models.factory import backbone_from_config, model_from_config
from ..runs.configs import channel_order, read_config, tested_metainfo
from ..runs.preflight import check_backbone, check_checkpoint
from ..version import __version__
from .pictures import Moved, check_pictures
from .preprocessing import check_preparation, preparation, with_preprocessing
from .traceable import Logits, exportable

__all__ = ["PARTS", "Exported", "export_model"]

PARTS = ("backbone", "model")
SUFFIXES = (".onnx", ".pt2")
OPSET = 18  # the one that torch's exporter writes without converting
TRACED = (2, 96, 160)  # batch, height, width; a batch of 1 would be taken for a constant
CHECKED = ((1, 203, 330), (2, 256, 128))
TOLERANCE = 1e-3  # of an output's mean magnitude


@dataclass
class Exported:
    """What was written.

    Attributes:
        outputs: For each output its largest deviation from torch, in units of its mean magnitude.
        operators: Of an ONNX file, how often each occurs.
        metadata: What the file says of itself.
        moved: Of a file that takes pictures, what preparing them in it changes.
    """

    outputs: dict[str, float]
    operators: Counter[str]
    metadata: dict[str, str]
    moved: Moved | None = None


def export_model(
    config: str, checkpoint: str, out: Path, part: str | None = None, takes_pictures: bool = False
) -> Exported:
    """Write a trained model to one file, which takes normalised images (B, C, H, W), `image`, of any size.

    The backbone gives its pyramid, `stride4` to `stride32`; a segmentor gives `logits` (B, classes, H, W), whose argmax
    is the segmentation map. `out` is written only if it gives what torch gives, at other sizes than the traced one.

    Args:
        config: Path of a config of mmdet or mmseg.
        checkpoint: A path, a URL or `xcit://NAME`. It fills all that is exported.
        out: A file name in .onnx or .pt2, torch.export's, which takes images from 64 pixels a side.
        part: 'backbone' or 'model'; default: a detector's backbone, a whole segmentor.
        takes_pictures: Whether the file takes `picture` (H, W, 3), RGB, uint8, instead, prepares it as the config's
            test pipeline does, and answers in its pixels, as `with_preprocessing` says.

    Raises:
        FileNotFoundError: If config, checkpoint or the folder of `out` are not there.
        ModuleNotFoundError: If packages for ONNX are missing.
        ValueError: If the model cannot be exported, or the checkpoint does not fit it.
        RuntimeError: If tracing fails, or the file does not give what torch gives.
    """
    _check_target(out)
    cfg = read_config(config, [])
    check_checkpoint(checkpoint)
    part = _check_part(cfg, part)
    if takes_pictures:
        _check_takes_pictures(cfg, part, out)
    with _quiet():
        model: Any = (model_from_config if part == "model" else backbone_from_config)(cfg, checkpoint)
    names = ["logits"] if part == "model" else [f"stride{stride}" for stride in model.strides]
    metadata = _metadata(cfg, model)
    model = Logits(model) if part == "model" else model
    channels = cfg.model.backbone.get("in_channels", 3)
    with _quiet(), TemporaryDirectory(dir=out.parent, prefix=".export-") as folder, torch.no_grad():
        written = Path(folder) / out.name
        try:
            program = _trace(exportable(model), channels)
            write, read = (_write_onnx, _read_onnx) if out.suffix == ".onnx" else (_write_pt2, _read_pt2)
            operators = write(program, written, names, metadata)
            outputs = _deviations(model, read(written), names, channels)
        except Exception as error:  # exporters and runtimes raise nearly anything
            raise RuntimeError(f"this {part} cannot be exported: {' '.join(str(error).split())[:300]}") from error
        for name, deviation in outputs.items():
            if not deviation <= TOLERANCE:
                raise RuntimeError(f"{name} of the exported {part} deviates by {deviation:.1e} from torch: not written")
        moved = None
        if takes_pictures:
            operators = _put_preprocessing(written)
            moved = check_pictures(written, config, checkpoint)
        written.replace(out)
    return Exported(outputs, operators, metadata, moved)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of builders, and the exporters' notes on their own workings."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _check_target(out: Path) -> None:
    if out.suffix not in SUFFIXES:
        raise ValueError(f"{out}: name it {' or '.join(SUFFIXES)}")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent}: make it first")
    packages = ("onnx", "onnxscript", "onnxruntime") if out.suffix == ".onnx" else ()
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"{', '.join(missing)} not installed: pip install -r requirements/export.txt")


def _check_part(cfg: Config, part: str | None) -> str:
    library = cfg.get("default_scope")
    backbone = cfg.get("model", {}).get("backbone", {}).get("type")
    if backbone != "XCiT":
        raise ValueError(f"the config's backbone is {backbone}: only models with XCiT are exported")
    if library not in ("mmdet", "mmseg"):
        raise ValueError(f"default_scope={library!r}: must be one of mmdet, mmseg")
    if part == "model" and library == "mmdet":
        raise ValueError(
            "a whole detector is not exported here, since its boxes and masks need mmdeploy: export the backbone"
        )
    check_backbone(cfg)
    return part or ("backbone" if library == "mmdet" else "model")


def _check_takes_pictures(cfg: Config, part: str, out: Path) -> None:
    if out.suffix != ".onnx":
        raise ValueError(f"{out}: only .onnx files prepare pictures: name it .onnx")
    check_preparation(part, preparation(cfg))


def _trace(model: nn.Module, channels: int) -> ExportedProgram:
    batch, height, width = TRACED
    sizes = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    return torch.export.export(model, (torch.zeros(batch, channels, height, width),), dynamic_shapes=(sizes,))


def _write_onnx(program: ExportedProgram, path: Path, names: list[str], metadata: dict[str, str]) -> Counter[str]:
    """Write a program, weights and all, in one file; returns its operators."""
    onnx: Any = torch.onnx.export(
        program,
        input_names=["image"],
        output_names=names,
        dynamic_shapes=({0: "batch", 2: "height", 3: "width"},),
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    graph = onnx.model.graph
    for node in graph:
        node.metadata_props.clear()  # stack traces, with paths of this machine
    onnx.model.metadata_props.update(metadata)
    onnx.save(path, external_data=False)
    return Counter(node.op_type for node in graph)


def _put_preprocessing(path: Path) -> Counter[str]:
    """Let a written file take pictures; returns its operators."""
    import onnx

    model = with_preprocessing(onnx.load(path))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return Counter(node.op_type for node in model.graph.node)


def _read_onnx(path: Path) -> Callable[[Tensor], list[Tensor]]:
    from onnxruntime import InferenceSession

    session = InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda image: [torch.from_numpy(out) for out in session.run(None, {"image": image.numpy()})]


def _write_pt2(program: ExportedProgram, path: Path, names: list[str], metadata: dict[str, str]) -> Counter[str]:
    torch.export.save(program, path, extra_files={"metadata.json": json.dumps(metadata)})
    return Counter()


def _read_pt2(path: Path) -> nn.Module:
    return torch.export.load(path).module()


def _deviations(model: nn.Module, run: Callable, names: list[str], channels: int) -> dict[str, float]:
    """For each output the largest deviation of `run` from `model` at the sizes checked, over its mean magnitude."""
    generator = torch.Generator().manual_seed(0)
    worst = dict.fromkeys(names, 0.0)
    for batch, height, width in CHECKED:
        image = torch.randn(batch, channels, height, width, generator=generator)
        for name, found, expected in zip(names, _as_tuple(run(image)), _as_tuple(model(image)), strict=True):
            if found.shape != expected.shape:
                raise RuntimeError(f"{name} of the exported model is {tuple(found.shape)}, not {tuple(expected.shape)}")
            deviation = ((found - expected).abs().max() / expected.abs().mean()).item()
            worst[name] = max(deviation, worst[name]) if deviation == deviation else float("nan")
    return worst


def _as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else outputs


def _metadata(cfg: Config, model: nn.Module) -> dict[str, str]:
    """What a user of the file has to know: text, lists as JSON."""
    backbone: Any = getattr(model, "backbone", model)
    preprocessor = cfg.model.get("data_preprocessor") or {}
    found = dict(
        xcit_mm_version=__version__,
        task="backbone" if backbone is model else "semantic segmentation",
        arch=arch_name(backbone.arch.embed_dim, backbone.arch.depth, backbone.arch.num_heads),
        patch_size=str(backbone.patch_size),
        channel_order=channel_order(cfg),
        mean=json.dumps(preprocessor.get("mean")),
        std=json.dumps(preprocessor.get("std")),
    )
    if backbone is not model:
        found |= dict(classes=json.dumps(tested_metainfo(cfg)["classes"]), test_cfg=json.dumps(cfg.model.test_cfg))
        found |= dict(preparation=json.dumps(preparation(cfg)))
    if found["task"] == "semantic segmentation":
        segmentor: Any = model
        threshold = segmentor.decode_head.threshold if segmentor.out_channels == 1 else None
        found |= dict(align_corners=json.dumps(segmentor.align_corners), threshold=json.dumps(threshold))
    return found
