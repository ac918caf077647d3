"""The layouts of checkpoints: recognised by their keys, and read into published names.

A model is searched under every prefix of the keys, so what has wrapped it does not matter.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..archs import ARCHS, arch_name, resolve_arch
from .stem import LINEAR_STEM, stem_key

# Prefixes of the keys that only a classifier has, and only a pyramid.
CLASSIFIER_PREFIXES = ("cls_token", "cls_attn_blocks.", "norm.", "head.")
PYRAMID_PREFIXES = ("fpn1.", "fpn2.", "fpn3.", "fpn4.")
# Parts of mmdet's models, of which each has at least one.
_DETECTOR_HEADS = {"bbox_head", "mask_head", "panoptic_head", "roi_head", "rpn_head"}

# Where backbones that wrap a model of timm have it: this package's TimmPyramid, mmseg, mmpretrain.
TIMM_PREFIX = "timm_model."
_BACKBONE = "backbone."  # the name of a backbone in a model of OpenMMLab

# What torch adds anywhere in a key: torch.compile, FSDP and activation checkpointing.
_WRAPPERS = re.compile(
    r"(^|\.)(?:(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+"
)
# Keys of a block and of the stem. The group is the prefix of the backbone.
_BLOCK = re.compile(rf"(|.*?\.)(?:{re.escape(TIMM_PREFIX)})?(?:blocks|xca_layers)\.\d+\.")
_STEM = re.compile(rf"(|.*?\.)(?:{re.escape(TIMM_PREFIX)})?patch_embed\.")

# Parts of published keys by the parts in other projects' keys. A ^ marks the start of a key.
_MMPRETRAIN = {
    "^xca_layers.": "^blocks.",
    "^ca_layers.": "^cls_attn_blocks.",
    "^pos_embed.token_projection.conv.": "^pos_embeder.token_projection.",
    "^head.fc.": "^head.",
    **{f"^patch_embed.proj.{i}.conv.": f"^patch_embed.proj.{2 * i}.0." for i in range(4)},
    **{f"^patch_embed.proj.{i}.bn.": f"^patch_embed.proj.{2 * i}.1." for i in range(4)},
    ".local_mp.conv1.conv.": ".local_mp.conv1.",
    ".local_mp.conv2.conv.": ".local_mp.conv2.",
    ".local_mp.conv1.bn.": ".local_mp.bn.",
    ".ffn.layers.0.0.": ".mlp.fc1.",
    ".ffn.layers.1.": ".mlp.fc2.",
}
_PUBLISHED_NAMES = dict(
    official=dict[str, str](), timm={"^pos_embed.": "^pos_embeder."}, mmpretrain=_MMPRETRAIN
)


@dataclass
class Weights:
    """The content of a checkpoint under published names.

    Attributes:
        trunk: Tensors of the backbone, without any prefix: stem, positional encoding, blocks, the
            pyramid of a detector or segmentor, class attention and head of a classifier.
        heads: Tensors of a detector or segmentor outside its backbone, as named in the file.
        layout: 'official', 'timm' or 'mmpretrain'.
        task: 'detector', 'segmentor', 'classifier' or 'backbone'.
        prefix: What precedes the names of the model in the file, such as 'teacher.', or ''.
        needs_pyramid: Whether the file must fill a pyramid, because it has levels of one.
    """

    trunk: dict[str, Tensor]
    heads: dict[str, Tensor]
    layout: str
    task: str
    prefix: str
    needs_pyramid: bool


def parse_checkpoint(checkpoint: Any, use_ema: bool = False, prefix: str | None = None) -> Weights:
    """Find the weights in the content of a file and give them their published names.

    Args:
        use_ema: Take the averaged weights of a training file, `model_ema` or timm's
            `state_dict_ema`, instead of its `model`.
        prefix: Take only the tensors whose names begin with it, as mmengine does.

    Raises:
        ValueError: If it holds no XCiT, or several, or not the averaged weights that `use_ema`
            requires.
    """
    state = _unwrap(checkpoint, use_ema)
    model = _choose_model(state, prefix)
    state = _select_under(state, model)
    backbones = _find_backbones(state)
    if "" in backbones:  # a bare backbone, which may have others inside
        state = without(state, tuple(name for name in backbones if name))
    backbone = _select_under(state, _BACKBONE)
    rest = without(state, _BACKBONE)
    # Beside a bare backbone, a file has at most the head of a classifier or of DINO.
    heads = {}
    if backbone and without(rest, CLASSIFIER_PREFIXES):
        heads = rest
    else:
        backbone |= rest
    trunk, layout = _rename_as_published(backbone)
    has_pyramid = any(key.startswith(PYRAMID_PREFIXES) for key in trunk)
    parts = {key.partition(".")[0] for key in heads}
    if "decode_head" in parts:
        task = "segmentor"
    elif parts & _DETECTOR_HEADS:
        task = "detector"
    else:  # self-supervised training has a neck and a head too
        task = "classifier" if "cls_token" in trunk else "backbone"
    return Weights(trunk, heads, layout, task, model, has_pyramid)


def list_prefixes(checkpoint: Any, use_ema: bool = False) -> list[str]:
    """List the prefixes of the models in a file, as `parse_checkpoint` takes them.

    A model without a prefix has ''. A file without an XCiT has an empty list.

    Raises:
        ValueError: If the file holds no weights.
    """
    return [_model_prefix(backbone) for backbone in _find_backbones(_unwrap(checkpoint, use_ema))]


def _unwrap(checkpoint: Any, use_ema: bool) -> dict[str, Tensor]:
    """Return the tensors in a file, without the prefixes that torch's wrappers add to names."""
    if not isinstance(checkpoint, Mapping):
        raise ValueError(f"it holds a {type(checkpoint).__name__}, not a dict of weights")
    entries = ["model_ema", "state_dict_ema"] if use_ema else ["state_dict", "model", "teacher"]
    source = next((entry for entry in entries if isinstance(checkpoint.get(entry), Mapping)), "")
    if use_ema and not source:
        raise ValueError("it holds no model_ema or state_dict_ema: load it without use_ema")
    entry = checkpoint[source] if source else checkpoint
    state: dict[str, Any] = {}
    for name, value in entry.items():
        inner = value if isinstance(value, Mapping) else {}  # such as DeepSpeed's `module`
        state |= {str(name): value} | {f"{name}.{key}": part for key, part in inner.items()}
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    return {_WRAPPERS.sub(r"\1", key): value for key, value in tensors.items()}


def _choose_model(state: Mapping[str, Tensor], prefix: str | None) -> str:
    """Return the prefix of the only model in a file, or below a prefix, or raise ValueError."""
    prefix = f"{prefix.removesuffix('.')}." if prefix else ""
    backbones = _find_backbones(_select_under(state, prefix))
    if not backbones:
        keys = ", ".join(list(state)[:3]) or "none"
        place = f"under prefix={prefix!r}" if prefix else "in it"
        raise ValueError(f"no XCiT {place}: the layout of keys such as {keys} is unknown")
    # OpenMMLab's model is `backbone.` beside averages, teachers and others that it may hold.
    chosen = [name for name in backbones if name in ("", _BACKBONE)][:1] or backbones
    models = [prefix + _model_prefix(name) for name in chosen]
    if len(models) > 1:
        choices = " or ".join(f"prefix={name!r}" for name in models)
        raise ValueError(f"it holds {len(models)} models: give {choices}")
    return models[0]


def _find_backbones(state: Mapping[str, Tensor]) -> list[str]:
    """List the prefixes of whole backbones, or else the first prefix of a part of one."""
    of_blocks = dict.fromkeys(match[1] for match in map(_BLOCK.match, state) if match)
    of_stems = {match[1] for match in map(_STEM.match, state) if match}
    return [prefix for prefix in of_blocks if prefix in of_stems] or list(of_blocks)[:1]


def _model_prefix(backbone: str) -> str:
    """Return the prefix of a model from the prefix of its backbone."""
    return re.sub(r"(^|\.)backbone\.$", r"\1", backbone)


def _select_under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)
    }


def without(state: Mapping[str, Tensor], prefixes: str | tuple[str, ...]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.startswith(prefixes)}


def _rename_as_published(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return tensors under their published names, and the layout in which they were."""
    state = {key.removeprefix(TIMM_PREFIX): value for key, value in state.items()}
    if any(key.startswith("xca_layers.") for key in state):
        layout = "mmpretrain"
    elif any(key.startswith("pos_embed.") or ".attn.q." in key for key in state):
        layout = "timm"
    else:
        layout = "official"
    renamed = {}
    for key, value in state.items():
        new_key = f"^{key}"  # as in the names
        for part, new_part in _PUBLISHED_NAMES[layout].items():
            new_key = new_key.replace(part, new_part, 1)
        renamed[new_key.removeprefix("^")] = value
    # The other projects have q, k and v of class attention apart.
    for key in [key for key in renamed if re.match(r"cls_attn_blocks\..*\.attn\.q\.", key)]:
        parts = [key.replace(".attn.q.", f".attn.{part}.") for part in "qkv"]
        tensors = [renamed.pop(part) for part in parts]
        renamed[key.replace(".attn.q.", ".attn.qkv.")] = torch.cat(tensors)
    return renamed, layout


def describe(trunk: Mapping[str, Tensor], depth: int | None = None) -> str:
    """Return architecture and patch size of a trunk, such as 's12/p16'.

    An architecture that is not published is given by width, depth and heads, as in '32x12x4/p8'.

    Args:
        depth: Replaces the number of blocks of a trunk that ends early.

    Raises:
        ValueError: As in `backbone_options`.
    """
    options = backbone_options(trunk)
    arch = resolve_arch(options["arch"])
    name = arch_name(arch.embed_dim, depth or arch.depth, arch.num_heads)
    stem = " (linear)" if options["patch_embed"] == "linear" else ""
    return f"{name}/p{options['patch_size']}{stem}"


def backbone_options(trunk: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of a backbone that the shapes of a trunk determine.

    Raises:
        ValueError: If a tensor that determines them is missing.
    """
    stem = stem_key(trunk)
    for key in ("blocks.0.norm1.weight", "blocks.0.attn.temperature", stem):
        if key not in trunk:
            raise ValueError(f"it is not an XCiT, since it has no {key}")
    last_block = max(int(key.split(".")[1]) for key in trunk if key.startswith("blocks."))
    shape = dict(
        embed_dim=trunk["blocks.0.norm1.weight"].numel(),
        depth=1 + last_block,
        num_heads=trunk["blocks.0.attn.temperature"].numel(),
    )
    name = arch_name(**shape)
    # Each convolution of a stem halves the size.
    convolutions = [key for key in trunk if re.fullmatch(r"patch_embed\.proj\.\d+\.0\.weight", key)]
    patch_size = trunk[stem].shape[-1] if stem == LINEAR_STEM else 2 ** len(convolutions)
    return dict(
        arch=name if name in ARCHS else dict(shape, eta=1.0),  # shapes do not determine eta
        patch_size=patch_size,
        patch_embed="linear" if stem == LINEAR_STEM else "conv",
        in_channels=trunk[stem].shape[1],
        use_pos=any(key.startswith("pos_embeder.") for key in trunk),
    )
