"""The layouts of checkpoints with XCiT weights: recognised by their keys, read into published names and written."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..archs import ARCHS, Arch, arch_name
from .bands import stem_key

# Prefixes of the keys that only a classifier has.
CLASSIFIER_PREFIXES = ("cls_token", "cls_attn_blocks.", "norm.", "head.")

LAYOUTS = ("official", "timm", "mmpretrain")

# Names of the other projects by the published names. A ^ stands for the start of a key.
_TIMM = {"^pos_embeder.": "^pos_embed."}
_MMPRETRAIN = {
    "^blocks.": "^xca_layers.",
    "^cls_attn_blocks.": "^ca_layers.",
    "^pos_embeder.token_projection.": "^pos_embed.token_projection.conv.",
    "^head.": "^head.fc.",
    **{f"^patch_embed.proj.{2 * i}.0.": f"^patch_embed.proj.{i}.conv." for i in range(4)},
    **{f"^patch_embed.proj.{2 * i}.1.": f"^patch_embed.proj.{i}.bn." for i in range(4)},
    ".local_mp.conv1.": ".local_mp.conv1.conv.",
    ".local_mp.conv2.": ".local_mp.conv2.conv.",
    ".local_mp.bn.": ".local_mp.conv1.bn.",
    ".mlp.fc1.": ".ffn.layers.0.0.",
    ".mlp.fc2.": ".ffn.layers.1.",
}
# Tensors whose sizes are the width and the number of heads.
_SHAPE_KEYS = ("blocks.0.norm1.weight", "blocks.0.attn.temperature")


@dataclass
class Weights:
    """The content of a checkpoint under published names.

    Attributes:
        trunk: Tensors of the backbone, without any prefix: stem, positional encoding and blocks. Those of a detector
            or segmentor include the pyramid, those of a classifier its class attention and head.
        heads: Tensors of a detector or segmentor outside its backbone, as named in the file.
        layout: 'official', 'timm' or 'mmpretrain'.
        task: 'detector', 'segmentor', 'classifier' or 'backbone'.
        source: Entry of the file that holds the tensors, such as 'model' or 'teacher'; '' for the file itself.
        metadata: The other entries of the file, without tensors and optimizer.
    """

    trunk: dict[str, Tensor]
    heads: dict[str, Tensor]
    layout: str
    task: str
    source: str
    metadata: dict[str, Any] = field(default_factory=dict)


def parse_checkpoint(checkpoint: Any, use_ema: bool = False) -> Weights:
    """Find the weights in the content of a file and give them their published names.

    Args:
        use_ema: Take the averaged weights of a training file, `model_ema` or timm's `state_dict_ema`, instead of
            its `model`.

    Raises:
        ValueError: If it holds no XCiT, or lacks the averaged weights that `use_ema` requires.
    """
    source, state, metadata = _unwrap(checkpoint, use_ema)
    if state and all(key.startswith("module.") for key in state):
        state = _strip(state, "module.")
    inner = _strip(state, "backbone.")
    outer = {key: value for key, value in state.items() if not key.startswith("backbone.")} if inner else {}
    if inner.keys() & outer.keys():
        raise ValueError(f"it holds {min(inner.keys() & outer.keys())} twice, once under backbone.")
    if any(not key.startswith(CLASSIFIER_PREFIXES) for key in outer):
        task = "segmentor" if any(key.startswith("decode_head.") for key in outer) else "detector"
    else:
        # Beside a bare backbone, a file has at most the head of a classifier or of DINO.
        task, inner, outer = "backbone", {**inner, **outer} or state, {}
    trunk, layout = _published_names(inner)
    if not any(key.startswith("blocks.") for key in trunk):
        raise ValueError(f"no XCiT in it: keys such as {', '.join(list(state)[:3]) or 'none'} have an unknown layout")
    if task == "backbone" and "cls_token" in trunk:
        task = "classifier"
    return Weights(trunk, outer, layout, task, source, metadata)


def _unwrap(checkpoint: Any, use_ema: bool) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
    """Find the entry that holds the tensors, the tensors, and the metadata."""
    if not isinstance(checkpoint, Mapping):
        raise ValueError(f"it holds a {type(checkpoint).__name__}, not a dict of weights")
    entries = ["model_ema", "state_dict_ema"] if use_ema else ["state_dict", "model", "teacher"]
    source = next((entry for entry in entries if isinstance(checkpoint.get(entry), Mapping)), "")
    if use_ema and not source:
        raise ValueError("it holds no model_ema or state_dict_ema: load it without use_ema")
    state = dict(checkpoint[source] if source else checkpoint)
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise ValueError(f"its entry {key!r} is a {type(value).__name__}, not a tensor")
    if not source:
        return source, state, {}
    metadata = {k: v for k, v in checkpoint.items() if not isinstance(v, (Mapping, Tensor)) or k == "meta"}
    return source, state, metadata


def _strip(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _published_names(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    layout, names = "official", dict[str, str]()
    if any(key.startswith("xca_layers.") for key in state):
        layout, names = "mmpretrain", _MMPRETRAIN
    elif any(key.startswith("pos_embed.") or ".attn.q." in key for key in state):
        layout, names = "timm", _TIMM
    return _join_class_qkv(_rename(state, {theirs: published for published, theirs in names.items()})), layout


def to_layout(weights: Weights, layout: str) -> dict[str, Any]:
    """Make a checkpoint of a trunk in a layout, with the wrapping of that project.

    Raises:
        ValueError: If the weights hold a detector or segmentor, which has the official layout only.
    """
    if weights.heads:
        raise ValueError(f"a {weights.task} has one layout only: keep it, or convert its backbone alone (--backbone)")
    if layout == "official":
        return dict(model=dict(weights.trunk))
    # The models of the other projects have no pyramid.
    state = _split_class_qkv({key: value for key, value in weights.trunk.items() if not key.startswith("fpn")})
    if layout == "timm":
        return _rename(state, _TIMM)
    renamed = _rename(state, _MMPRETRAIN).items()
    return dict(meta={}, state_dict={key if key.startswith("head.") else f"backbone.{key}": v for key, v in renamed})


def _rename(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Rename every key. Two keys of one new name are an error, since one tensor would be lost."""
    renamed = {}
    for key, value in state.items():
        key = f"^{key}"
        for old, new in names.items():
            key = key.replace(old, new, 1)
        renamed[key[1:]] = value
    if len(renamed) != len(state):
        raise ValueError("two of its keys have the same published name")
    return renamed


def _join_class_qkv(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join q, k and v of class attention into one `qkv`, as published."""
    joined = dict(state)
    for key in state:
        if key.startswith("cls_attn_blocks.") and ".attn.q." in key:
            parts = [key.replace(".q.", f".{part}.") for part in "qkv"]
            if not joined.keys() >= set(parts):
                raise ValueError(f"{key.partition('.q.')[0]} lacks one of q, k and v")
            joined[key.replace(".q.", ".qkv.")] = torch.cat([joined.pop(part) for part in parts])
    return joined


def _split_class_qkv(state: dict[str, Tensor]) -> dict[str, Tensor]:
    split = dict(state)
    for key in state:
        if key.startswith("cls_attn_blocks.") and ".attn.qkv." in key:
            thirds = split.pop(key).chunk(3)
            split |= {key.replace(".qkv.", f".{part}."): third for part, third in zip("qkv", thirds, strict=True)}
    return split


def describe(trunk: Mapping[str, Tensor]) -> str:
    """Return architecture and patch size of a trunk, such as 's12/p16' or '32x12x4/p8' (width, depth, heads).

    Raises:
        ValueError: If a tensor whose size they are is missing.
    """
    shape, patch_size, linear = _shape(trunk)
    return f"{arch_name(*shape)}/p{patch_size}{' (linear)' if linear else ''}"


def backbone_options(trunk: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of a backbone that the shapes of a trunk determine.

    Raises:
        ValueError: If a tensor that determines them is missing.
    """
    shape, patch_size, linear = _shape(trunk)
    arch: str | dict[str, float] = arch_name(*shape)
    if arch not in ARCHS:
        arch = dict(zip(Arch._fields, (*shape, 1.0), strict=False))
    return dict(
        arch=arch,
        patch_size=patch_size,
        patch_embed="linear" if linear else "conv",
        in_channels=trunk[stem_key(trunk)].shape[1],
        use_pos=any(key.startswith("pos_embeder.") for key in trunk),
    )


def _shape(trunk: Mapping[str, Tensor]) -> tuple[tuple[int, int, int], int, bool]:
    """Return width, depth and heads; the patch size; whether the stem is a linear projection."""
    for key in _SHAPE_KEYS:
        if key not in trunk:
            raise ValueError(f"it lacks {key}")
    width, heads = (trunk[key].numel() for key in _SHAPE_KEYS)
    depth = 1 + max(int(match[1]) for match in map(re.compile(r"blocks\.(\d+)\.").match, trunk) if match)
    stem = trunk.get(stem_key(trunk))
    if stem is None or stem.dim() != 4:
        raise ValueError(f"it lacks filters of the stem, {stem_key(trunk)}")
    if "patch_embed.proj.weight" in trunk:
        return (width, depth, heads), stem.shape[-1], True
    # A stem of n convolutions halves the size n times.
    halvings = sum(re.fullmatch(r"patch_embed\.proj\.\d+\.0\.weight", key) is not None for key in trunk)
    return (width, depth, heads), 2**halvings, False
