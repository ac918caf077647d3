"""Models with their weights: a backbone by its name, a model of a config."""

import ast
import copy
import warnings
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from ..archs import resolve_arch
from ..utils.config_parts import backbone_class
from ..utils.configs import read_config
from ..utils.errors import ArgumentError, reason
from ..utils.output import say
from ..weights.class_names import check_same_classes, configured_classes, learned_classes
from ..weights.layouts import backbone_options, parse_checkpoint
from ..weights.lookup import load_checkpoint, lookup
from ..weights.matching import load_pretrained, match_model
from ..weights.published import PUBLISHED, published_name
from ..weights.reader import meta_of
from .xcit import STRIDES, Pyramid, Trunk, XCiT, level_name, taps_and_strides


def backbone(
    name: str | Path, pretrained: bool = True, prefix: str | None = None, **options: Any
) -> Trunk:
    """Build the backbone of a model or of weights by its name, for torch code, in eval mode.

    The heads of the weights are left out. Give the backbone RGB images, from which `MEAN` of
    `xcit_mm.archs` is subtracted, and which are then divided by its `STD`.

    The tensors in a file do not show which blocks feed which level of a pyramid. If the file also
    holds the text of its config, the blocks are read from this text, which is never run. If it does
    not, as in safetensors, the published blocks are tapped, and a message on stderr names them.

    Args:
        name: One of the following.

            - Published weights, such as 'xcit_small_12_p16_224_dist', or their name in timm.
            - The path or URL of weights in any layout, or `hf://OWNER/NAME`.
            - A model: a name in the model zoo, a config or a folder. A config without published
              weights needs `pretrained=False`.
        pretrained: Whether to load the weights, which are downloaded on first use.
        prefix: Take only the tensors whose names in the file begin with it, such as 'teacher.'.
        options: Arguments of `XCiT` that replace those of the model, such as `frozen_stages`. With
            a pyramid, `out_indices` needs `strides` too, unless the number of tapped blocks stays
            the same.

    Returns:
        For weights of ImageNet or DINO, a `Trunk`, whose feature maps have the stride of the
        patches. With `strides` it is an `XCiT`, whose pyramid has its initial weights. For a
        detector or segmentor, an `XCiT` with the trained pyramid.

    Raises:
        ValueError: If the name is unknown, with the most similar names, the config has a classifier
            or the backbone of another package, the file has no complete XCiT, the weights do not
            fit the options, or an option has an invalid value.
        TypeError: If an option is not an argument.
        OSError: If config or weights cannot be found or downloaded.
    """
    found = lookup(name)
    checkpoint = found.checkpoint or ""
    if pretrained and not checkpoint:
        raise ArgumentError("name", f"{found.problem}, or set pretrained=False")
    published = PUBLISHED.get(published_name(checkpoint))
    if found.config:
        model = _build_for_config(found.config, options)
    elif published:
        model = _build_trunk(dict(arch=published.arch, patch_size=published.patch_size) | options)
    elif checkpoint:
        model = _build_for_file(checkpoint, prefix, options)
    else:
        raise ArgumentError("name", found.problem)
    if pretrained:
        load_pretrained(model, checkpoint, prefix=prefix)
    return model.eval()


def load_model(cfg: Config, checkpoint: str | Path) -> nn.Module:
    """Build the detector, segmentor or classifier of a config, with weights, in eval mode.

    It is on the CPU.

    Args:
        checkpoint: As in `load_checkpoint`.

    Raises:
        OSError: If the checkpoint does not exist or cannot be downloaded.
        ValueError: If the model cannot be built, the checkpoint does not have all of its weights,
            or it was trained on other classes than the config's test data have.
    """
    model = _build_model(cfg)
    saved = load_checkpoint(checkpoint)
    check_same_classes(checkpoint, learned_classes(saved), configured_classes(cfg))
    model.load_state_dict(match_model(model, saved))
    return model.eval()


def model_config(cfg: Config) -> ConfigDict:
    """Copy the model of a config, as mmengine's Runner builds it.

    A `data_preprocessor` of the config becomes the model's, unless the model has its own.
    """
    model = copy.deepcopy(cfg.model)
    if cfg.get("data_preprocessor") is not None:
        model.setdefault("data_preprocessor", copy.deepcopy(cfg.data_preprocessor))
    return model


def has_pyramid(cfg: Config) -> bool:
    """Return whether the backbone of a config is of this package and has a pyramid."""
    network = backbone_class(cfg)  # a class, or a function that builds one
    return isinstance(network, type) and issubclass(network, Pyramid)


def _build_model(cfg: Config) -> Any:
    """Build the model of a config, without its backbone's `init_cfg`.

    The scope of the config becomes the default scope.
    """
    model = model_config(cfg)
    (model.get("backbone") or {}).pop("init_cfg", None)
    init_default_scope(cfg.get("default_scope") or "mmengine")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="mmseg.models")  # on losses of trainings
            return MODELS.build(model)
    except Exception as error:  # a wrong config makes the libraries raise nearly anything
        problem = f"the model cannot be built: {reason(error)}"
        raise ValueError(f"{problem}; {fix_of_model(cfg)}") from error


def fix_of_model(cfg: Config) -> str:
    """Say what to do if the model of a config cannot be built."""
    if cfg.get("default_scope"):
        return "correct the model in the config"
    return "give the config a default_scope"


def _build_for_config(path: str, options: dict[str, Any]) -> Any:
    """Build the backbone of a config with initial weights. The default scope stays as it is.

    Raises:
        ArgumentError: If it is not a backbone of this package with a pyramid.
    """
    cfg = read_config(path)
    if not has_pyramid(cfg):
        fix = "give another config, or a file of weights for its trunk"
        raise ArgumentError("name", f"{path} has no backbone of this package with a pyramid: {fix}")
    part = dict(cfg.model.backbone, type=backbone_class(cfg), init_cfg=None)
    # A level keeps its stride, whichever block feeds it.
    part.setdefault("strides", STRIDES[: len(part.get("out_indices") or STRIDES)])
    return MODELS.build(part | options)


def _build_for_file(path: str, prefix: str | None, options: dict[str, Any]) -> Trunk:
    """Build the backbone that the tensors of a file, in any layout, fit, with initial weights.

    Raises:
        ValueError: If the file has no complete XCiT, or its tensors do not fit the options.
    """
    try:
        saved = load_checkpoint(path)
        weights = parse_checkpoint(saved, prefix=prefix)
        arguments = backbone_options(weights.trunk)
        trained = _taps_of_training(saved, weights.needs_pyramid)
        if weights.needs_pyramid:
            patch_size = arguments["patch_size"]  # levels from there on have no tensors
            arguments["strides"] = [
                stride
                for stride in STRIDES
                if stride >= patch_size or f"{level_name(stride)}.0.weight" in weights.trunk
            ]
        model = _build_trunk(arguments | (trained or {}) | options)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    is_known = trained is not None or "out_indices" in options or Path(path).stem in PUBLISHED
    if not is_known:
        strides = getattr(model, "strides", (model.patch_size,) * len(model.out_indices))
        taps = f"blocks {model.out_indices} are tapped for strides {strides}"
        problem = "it has no config with out_indices and strides"
        say(f"{path}: {problem}: {taps}; give both if the training had others")
    return model


def _taps_of_training(checkpoint: Any, has_pyramid: bool) -> dict[str, Any] | None:
    """Return `out_indices` and `strides` of the backbone in the text of a config.

    The result is None if a checkpoint has no such text, if the arguments are not literals, or if
    neither the file nor the text has a pyramid.
    """
    meta = meta_of(checkpoint)
    try:
        written = _written_backbone(meta.get("cfg") or meta["config"])  # of mmengine, or mmcv 1
        names = ("arch", "out_indices", "strides")
        values = {name: _literal(written[name]) for name in names if name in written}
        if not has_pyramid and "strides" not in values:  # coarse levels have no tensors
            return None
        # Of the trained depth: a file may end with the last tap.
        depth = resolve_arch(values["arch"]).depth
        taps, strides = taps_and_strides(depth, values.get("out_indices"), values.get("strides"))
    except Exception:  # a text may be anything
        return None
    return dict(out_indices=taps, strides=strides)


def _written_backbone(config: str) -> dict[str, Any]:
    """Return the code of each argument of the backbone in the text of a config.

    Raises:
        KeyError: If the text has no model, or its model no backbone.
    """
    lines: Any = [line for line in ast.parse(config).body if isinstance(line, ast.Assign)]
    values = {ast.unparse(line.targets[0]): line.value for line in lines}
    model = {part.arg: part.value for part in values["model"].keywords}
    return {part.arg: part.value for part in model["backbone"].keywords}


def _literal(code: ast.expr) -> Any:
    """Return the value of a literal, or of a call of `dict` with literals."""
    if isinstance(code, ast.Call) and ast.unparse(code.func) == "dict":
        return {part.arg: _literal(part.value) for part in code.keywords}
    return ast.literal_eval(code)


def _build_trunk(arguments: dict[str, Any]) -> Trunk:
    return XCiT(**arguments) if "strides" in arguments else Trunk(**arguments)
