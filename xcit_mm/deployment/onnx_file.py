"""Export of a trained model to an ONNX file for images of any size."""

import json
from ast import literal_eval
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from ..checks.inputs import check_sizes
from ..models.build import load_model
from ..utils.atomic import atomic_path
from ..utils.configs import read_config
from ..utils.output import quiet, say
from ..weights.lookup import find_model
from .check import compare
from .detectors import ExportableDetector
from .metadata import describe_model
from .operators import TO_ONNX
from .supported import check_model
from .traceable import ExportableSegmentor, make_exportable


def export(model: str | Path, out: str | Path, *, checkpoint: str | Path | None = None) -> float:
    """Export a trained detector or segmentor to an ONNX file for images of any size.

    The input of the file is `image`, normalised (B, C, H, W). A segmentor returns `logits`
    (B, classes, H, W), and a detector returns the outputs of `ExportableDetector`. The file is
    written only if it predicts what mmdet or mmseg predict.

    Args:
        model: A published model's name, a work folder, or a config.
        out: The file to write, `.onnx`.
        checkpoint: A path, a URL or `xcit://NAME`, which must fill the whole model. Default: the
            model's own checkpoint.

    Returns:
        The largest deviation of an output from torch, in units of its largest value.

    Raises:
        FileExistsError: If the file exists.
        FileNotFoundError: If an input is missing.
        ValueError: If the model cannot be exported, or the checkpoint does not fit it.
        ModuleNotFoundError: If a package of xcit_mm[export] is missing, or torch is older than 2.8.
        RuntimeError: If the file does not agree with torch. Errors of torch's exporter pass.

    Example:
        >>> from xcit_mm import export
        >>> export("work_dirs/nuts", "nuts.onnx") < 1e-4
        True
    """
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} exists: remove it, or give another path")
    config, weights = find_model(model, checkpoint)
    cfg = read_config(config)
    check_model(cfg)
    with quiet(), torch.no_grad():
        trained = load_model(cfg, weights)
        for finding in check_sizes(cfg, trained):
            say(str(finding))
        exportable = ExportableSegmentor if cfg.default_scope == "mmseg" else ExportableDetector
        module: Any = make_exportable(exportable(trained))
        facts = describe_model(cfg, trained, module.outputs)
        if facts["unsupported"]:
            say(f"note: run.py has no {facts['unsupported']}, so {out} is for your own programs")
        channels = cfg.model.backbone.get("in_channels", 3)
        with atomic_path(out) as path:
            _write_onnx(module, path, channels, facts)
            say("compare with torch ...")
            return compare(path, trained)


def _write_onnx(module: Any, path: Path, channels: int, facts: dict[str, Any]) -> None:
    """Write a traceable module, its weights and its metadata to one file."""
    # Sizes of 1 would become constants: of the batch, and of a feature map of stride 128.
    image = torch.zeros(2, channels, 288, 416)
    sizes = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    say("trace ...")
    program = torch.export.export(module, (image,), dynamic_shapes=(sizes,))
    say("optimise ...")
    onnx: Any = torch.onnx.export(
        program,
        input_names=["image"],
        output_names=module.outputs,
        dynamic_shapes=({0: "batch", 2: "height", 3: "width"},),
        custom_translation_table=TO_ONNX,
        opset_version=18,  # torch writes it without a conversion
        dynamo=True,
        verbose=False,
    )
    _name_nodes(onnx.model.graph)
    onnx.model.ir_version = 8  # the version of opset 18, which onnxruntime reads from 1.14 on
    onnx.model.metadata_props.update({name: json.dumps(fact) for name, fact in facts.items()})
    onnx.save(path, external_data=False)


def _name_nodes(graph: Any) -> None:
    """Name each node by its module and operator, such as `model.neck.fpn_convs.0.conv/Conv`.

    Nodes of the outermost module are named by their operator alone, such as `/Concat_2`. All other
    metadata are removed.
    """
    counts = Counter[str]()
    for node in graph:
        scopes = literal_eval(node.metadata_props.get("pkg.torch.onnx.name_scopes", "['']"))
        module = scopes[-2] if len(scopes) > 1 else ""  # the last is the operator
        name = f"{module}/{node.op_type}"
        counts[name] += 1
        node.name = f"{name}_{counts[name]}" if counts[name] > 1 else name
        node.metadata_props.clear()  # stack traces, with local paths
