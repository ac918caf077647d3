"""Checks of a config: its library and imports, batch, optimizer and schedule, colours, ignored labels."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mmengine.registry
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import OPTIM_WRAPPERS, OPTIMIZERS, Registry

from ..models import XCiT
from ..utils import configs
from ..utils.configs import part_class, type_name
from .findings import Finding, check, fail, note, ok
from .weights import started_from

# Libraries, and the extras of xcit_mm that install them.
_LIBRARIES = dict(mmdet="mm", mmseg="mm", mmpretrain="classification")


def find_script(cfg: Config, config: str, tool: str) -> Path:
    """Return `tools/TOOL.py` of the library of a config. Raise ValueError or ImportError if there is none."""
    library = cfg.get("default_scope")
    if library not in _LIBRARIES:
        raise ValueError(f"default_scope={library!r} in {config}: must be one of {', '.join(_LIBRARIES)}")
    package = importlib.util.find_spec(library)
    if package is None or package.origin is None:
        fix = f"pip install xcit_mm[{_LIBRARIES[library]}]"
        raise ModuleNotFoundError(f"{config} needs {library}, which is not installed: {fix}")
    script = Path(package.origin).parent / ".mim" / "tools" / f"{tool}.py"
    if not script.is_file():
        raise ModuleNotFoundError(f"{script} is missing: install {library} with pip or mim, which include its tools")
    return script


@check
def check_imports(cfg: Config) -> Iterator[Finding]:
    """Check that a config with parts of xcit_mm imports it. The tools of this package import it by themselves."""
    registries = [each for each in vars(mmengine.registry).values() if isinstance(each, Registry)]
    ours = [
        name
        for name in _types(cfg.to_dict())
        for registry in registries
        for kind in [registry.module_dict.get(name.rpartition(".")[2])]
        if getattr(kind, "__module__", "").startswith("xcit_mm")
        and part_class(dict(type=name), registry, cfg.default_scope) is kind  # mmpretrain has an XCiT of its own
    ]
    given = (cfg.get("custom_imports") or {}).get("imports") or []
    modules = [given] if isinstance(given, str) else given
    origins = [getattr(importlib.util.find_spec(module), "origin", None) for module in modules]
    if ours and not any("xcit_mm" in Path(origin).read_text() for origin in origins if origin):
        text = f"custom_imports lacks xcit_mm: without it mmdet and mmseg do not find {ours[-1]} in the registry"
        yield fail("D202", text, 'custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)')


def _types(part: Any) -> list[str]:
    """Return every `type` in a config, in alphabetical order."""
    own = [part["type"]] if isinstance(part, dict) and isinstance(part.get("type"), str) else []
    items = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
    return sorted({*own, *(name for item in items for name in _types(item))})


@check
def check_recipe(cfg: Config, processes: int) -> Iterator[Finding]:
    """Compare batch, optimizer, schedule and colours, which a config may have from another recipe."""
    scaling, optimizer = cfg.get("auto_scale_lr") or {}, (cfg.get("optim_wrapper") or {}).get("optimizer") or {}
    batch = (cfg.get("train_dataloader") or {}).get("batch_size", 1) * processes
    base = scaling.get("base_batch_size", batch)
    if batch != base and not scaling.get("enable"):
        text = f"{batch} images a step over {processes} process(es), the learning rate is for {base} images"
        yield note("D204", text, "--auto-scale-lr (mmdet), --cfg-options auto_scale_lr.enable=True (both)")
    is_xcit = configs.backbone_class(cfg) is XCiT
    if is_xcit and part_class(optimizer, OPTIMIZERS, cfg.default_scope) is torch.optim.SGD:
        lr, decay = (6e-5, 0.01) if cfg.default_scope == "mmseg" else (1e-4, 0.05)
        text = f"SGD with lr={optimizer.get('lr')}, which base configs have for ResNets: the recipes of XCiT take AdamW"
        fix = f"optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr={lr}, weight_decay={decay}))"
        yield note("D205", text, fix)
    length, given = (cfg.get("train_cfg") or {}).get("max_iters"), cfg.get("param_scheduler") or []
    for each in [given] if isinstance(given, dict) else given:
        end = each.get("end") or each.get("T_max") or 0
        if length and each.get("by_epoch", True) and not each.get("convert_to_iter_based"):
            yield note("D212", f"{each['type']} counts epochs, and the loop of iterations has one", "by_epoch=False")
        elif length and (
            length * 1.1 < end < 1e9 or (0 < end < length * 0.9 and type_name(each)[:4] in ("Cosi", "Poly"))
        ):
            yield note("D212", f"{each['type']} ends after {end} iterations, training after {length}", "one length")
    published = [name for name in started_from(cfg) if name.startswith("xcit://")]
    if published and is_xcit and cfg.get("test_dataloader") and configs.channel_order(cfg) == "BGR":
        text = f"{published[0]} was trained on RGB, the model gets BGR"
        yield note("D216", text, "--cfg-options model.data_preprocessor.bgr_to_rgb=True")
    yield ok(f"{batch} images a step")


def is_mixed_precision(cfg: Config) -> bool:
    """Return whether a config trains with mmengine's AmpOptimWrapper."""
    return part_class(cfg.get("optim_wrapper") or {}, OPTIM_WRAPPERS, cfg.get("default_scope")) is AmpOptimWrapper


def check_launcher(launcher: str | None) -> Iterator[Finding]:
    """Check that several processes have GPUs: every launcher of mmengine selects one by `torch.cuda`."""
    if launcher not in (None, "none") and get_device() in ("cpu", "mps"):
        text = "mmengine starts several processes on GPUs only, and this machine has none"
        yield fail("D220", text, "start without --launcher: in a single process SyncBN acts as BN")
