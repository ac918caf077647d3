"""Checks before a model is built: the library, imports, recipe and backbone of a config, a path and
a device.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import OPTIMIZERS

from ..models import XCiT, XCiTClassifier
from ..utils.configs import backbone_class, data_preprocessor, part_class, type_name
from .findings import Finding, fail, note

# Libraries, and the extras of xcit_mm that install them.
_LIBRARIES = dict(mmdet="mm", mmseg="mm", mmpretrain="classification")


def find_script(cfg: Config, config: str, tool: str) -> Path:
    """Return `tools/TOOL.py` of the library of a config. Raise ValueError or ImportError if there
    is none.
    """
    library = cfg.get("default_scope")
    if library not in _LIBRARIES:
        raise ValueError(
            f"default_scope={library!r} in {config}: must be one of {', '.join(_LIBRARIES)}"
        )
    package = importlib.util.find_spec(library)
    if package is None or package.origin is None:
        fix = f"pip install xcit_mm[{_LIBRARIES[library]}]"
        raise ModuleNotFoundError(f"{config} needs {library}, which is not installed: {fix}")
    return Path(package.origin).parent / ".mim" / "tools" / f"{tool}.py"


def check_imports(cfg: Config) -> Iterator[Finding]:
    """Check that a config of an XCiT imports xcit_mm. The tools of this package import it by
    themselves.
    """
    given = (cfg.get("custom_imports") or {}).get("imports") or []
    modules = [given] if isinstance(given, str) else given
    origins = [getattr(importlib.util.find_spec(module), "origin", None) for module in modules]
    known = any(
        "xcit_mm" in Path(origin).read_text() for origin in origins if origin
    )  # a module may import xcit_mm
    if backbone_class(cfg) in (XCiT, XCiTClassifier) and not known:
        text = "custom_imports lacks xcit_mm: without it mmdet and mmseg do not find XCiT in the registry"
        yield fail(
            "D202", text, 'custom_imports = dict(imports=["xcit_mm"], allow_failed_imports=False)'
        )


def check_recipe(cfg: Config, processes: int) -> Iterator[Finding]:
    """Compare batch and optimizer, which a config may have from another recipe."""
    scaling, optimizer = (
        cfg.get("auto_scale_lr") or {},
        (cfg.get("optim_wrapper") or {}).get("optimizer") or {},
    )
    batch = (cfg.get("train_dataloader") or {}).get("batch_size", 1) * processes
    base = scaling.get("base_batch_size", batch)
    if batch != base and not scaling.get("enable"):
        text = f"{batch} images a step over {processes} process(es), the learning rate is for {base} images"
        yield note(
            "D204", text, "--auto-scale-lr (mmdet), --cfg-options auto_scale_lr.enable=True (both)"
        )
    if (
        backbone_class(cfg) is XCiT
        and part_class(optimizer, OPTIMIZERS, cfg.default_scope) is torch.optim.SGD
    ):
        lr, decay = (6e-5, 0.01) if cfg.default_scope == "mmseg" else (1e-4, 0.05)
        text = f"SGD with lr={optimizer.get('lr')}, which base configs have for ResNets: the recipes of XCiT take AdamW"
        fix = f"optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr={lr}, weight_decay={decay}))"
        yield note("D205", text, fix)


def check_backbone(cfg: Config) -> None:
    """Build the XCiT of a config without memory, so that a wrong argument raises its error now.

    Raises:
        TypeError, ValueError: If an argument is wrong, or if the data preprocessor or values of a
            base config do not fit the backbone, or if the head cannot predict in windows.
    """
    backbone, kind = cfg.model.get("backbone", {}), backbone_class(cfg)
    if kind in (XCiT, XCiTClassifier):
        if cfg.model.get("pretrained"):  # a base config of mmseg has the weights of its ResNet
            fix = "set pretrained=None in model, and give weights as backbone.init_cfg"
            raise ValueError(
                f"model.pretrained={cfg.model['pretrained']!r} is of the base config's backbone: {fix}"
            )
        if cfg.model.get("neck") and "type" not in cfg.model["neck"]:
            raise ValueError(
                "model.neck has no type, since the base config has none: give in_channels to the heads"
            )
        with torch.device("meta"):
            built = kind(
                **{
                    name: value
                    for name, value in backbone.items()
                    if name not in ("type", "_scope_")
                }
            )
        for name in ("mean", "std"):
            values = data_preprocessor(cfg).get(name)
            if isinstance(values, Sequence) and len(values) not in (1, built.in_channels):
                problem = f"{len(values)} values, the backbone has in_channels={built.in_channels}"
                raise ValueError(
                    f"data_preprocessor.{name} has {problem}: give one for each channel, or one for all"
                )
    head = cfg.model.get("decode_head") or {}
    is_mask2former = (
        isinstance(head, dict) and head.get("type") and type_name(head) == "Mask2FormerHead"
    )
    if is_mask2former and (cfg.model.get("test_cfg") or {}).get("mode") == "slide":
        raise ValueError(
            "Mask2FormerHead of mmseg predicts whole images only: model.test_cfg=dict(mode='whole')"
        )


def check_checkpoint(path: str | Path) -> None:
    """Raise FileNotFoundError if a local checkpoint does not exist. URLs and `xcit://` names are
    downloaded later.
    """
    if "://" not in str(path) and not Path(path).expanduser().is_file():
        raise FileNotFoundError(f"no checkpoint at {path}: check the path")


def check_device(device: str | None) -> None:
    """Raise ValueError if torch cannot use a device. None is valid."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        why = str(error).strip().splitlines()[0]
        raise ValueError(
            f"device {device} cannot be used ({why}): leave it out, or take cpu"
        ) from None
