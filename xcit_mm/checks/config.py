"""Checks of a config: its library, imports, batch size, ignored labels."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mmengine.registry
from mmengine.config import Config
from mmengine.registry import METRICS, Registry
from torch import nn

from ..utils.configs import data_preprocessor, data_sets, evaluators, part_class, type_name
from .data import SPLITS
from .findings import Finding, check, fail, note, ok

# Libraries, and the extras of xcit_mm that install them.
_LIBRARIES = dict(mmdet="mm", mmseg="mm", mmpretrain="classification")


def find_script(cfg: Config, config: str, tool: str) -> Path:
    """Return `tools/TOOL.py` of the library that a config belongs to.

    Raises:
        ValueError: If the config does not belong to a library.
        FileNotFoundError, ModuleNotFoundError: If the library or its tools are not installed.
    """
    library = cfg.get("default_scope")
    if library not in _LIBRARIES:
        raise ValueError(f"default_scope={library!r} in {config}: must be one of {', '.join(_LIBRARIES)}")
    package = importlib.util.find_spec(library)
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            f"{config} needs {library}, which is not installed: pip install xcit_mm[{_LIBRARIES[library]}]"
        )
    script = Path(package.origin).parent / ".mim" / "tools" / f"{tool}.py"
    if not script.is_file():
        raise FileNotFoundError(f"{script} is missing: install {library} with pip or mim, which include its tools")
    return script


@check("D290", "correct custom_imports")
def check_imports(cfg: Config) -> Iterator[Finding]:
    """Check that a config with parts of xcit_mm imports it. The tools of this package import it by themselves."""
    ours = {
        name: (registry, part)
        for registry in vars(mmengine.registry).values()
        if isinstance(registry, Registry)
        for name, part in registry.module_dict.items()
        if part.__module__.partition(".")[0] == "xcit_mm"
    }
    named = []
    for kind in sorted(set(_types(cfg.to_dict()))):
        registry, part = ours.get(kind.rpartition(".")[2], (None, None))
        if registry and part_class(dict(type=kind), registry, cfg.default_scope) is part:
            named.append(kind)
    given = (cfg.get("custom_imports") or {}).get("imports") or []
    if named and not _import_xcit_mm([given] if isinstance(given, str) else list(given)):
        text = f"custom_imports lacks xcit_mm: without it mmdet and mmseg do not find {named[-1]} in the registry"
        yield fail("D202", text, 'custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)')


def _types(part: object) -> Iterator[str]:
    """Yield every `type` in a config."""
    if isinstance(part, dict):
        if isinstance(part.get("type"), str):
            yield part["type"]
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        for item in part:
            yield from _types(item)


def _import_xcit_mm(modules: Sequence[str]) -> bool:
    """Whether a module is xcit_mm or imports it, which a new Python process finds out."""
    if any(module.partition(".")[0] == "xcit_mm" for module in modules):
        return True
    if not modules:
        return False
    code = f"import sys, {', '.join(modules)}; sys.exit('xcit_mm' not in sys.modules)"
    path = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    return subprocess.run([sys.executable, "-c", code], env=path, capture_output=True).returncode == 0


@check("D291", "correct train_dataloader.batch_size")
def check_batch(cfg: Config, batch_size: int, processes: int) -> Iterator[Finding]:
    """Compare the batch of all processes with the batch that the learning rate is for."""
    scaling = cfg.get("auto_scale_lr") or {}
    batch = batch_size * processes
    base = scaling.get("base_batch_size", batch)
    if batch != base and not scaling.get("enable"):
        text = f"{batch} images a step over {processes} process(es), the learning rate is for {base} images"
        yield note("D204", text, "--auto-scale-lr (mmdet), --cfg-options auto_scale_lr.enable=True (both)")
    yield ok(f"{batch} images a step")


@check("D590", "correct ignore_index")
def check_ignored_labels(cfg: Config, heads: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """Check that heads, padding, pipelines and metrics ignore the same label."""
    labels: dict[str, Any] = {
        f"{name}.ignore_index": head.ignore_index
        for name, head in heads.items()
        if getattr(head, "ignore_index", None) is not None
    }
    if not labels:
        return
    labels["data_preprocessor.seg_pad_val"] = data_preprocessor(cfg).get("seg_pad_val", 255)
    for split in SPLITS:
        for dataset in data_sets(cfg, split):
            for step in dataset.get("pipeline", []):
                labels |= {
                    f"{type_name(step)}.{key}": step[key] for key in ("ignore_index", "seg_pad_val") if key in step
                }
        for evaluator in evaluators(cfg, split):
            kind = part_class(evaluator, METRICS, cfg.default_scope)
            if kind is not None and kind.__name__ == "IoUMetric":  # mmseg's
                labels[f"{split}_evaluator.ignore_index"] = evaluator.get("ignore_index", 255)
    if len(set(labels.values())) > 1:
        yield fail(
            "D509",
            "unlabelled pixels have different labels: "
            + ", ".join(f"{name}={label}" for name, label in labels.items()),
            "set all of these to the label of the segmentation maps",
        )
    yield ok(f"label {min(labels.values())} is ignored everywhere")
