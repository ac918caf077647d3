"""The layouts in which XCiT weights lie on disk: told by their keys, brought to the published names, and back."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..archs import ARCHS, Arch, arch_name
from .bands import stem_key

__all__ = ["CLASSIFIER", "LAYOUTS", "Weights", "backbone_options", "describe", "export", "recognise", "unknown_keys"]

# How the keys begin that belong to classification alone.
CLASSIFIER = ("cls_token", "cls_attn_blocks.", "norm.", "head.")

LAYOUTS = ("official", "timm", "mmpretrain")

# mmpretrain's names by the published ones: how a key begins, and what stands inside it.
_MMPRETRAIN_PREFIXES = {
    "blocks.": "xca_layers.",
    "cls_attn_blocks.": "ca_layers.",
    "pos_embeder.token_projection.": "pos_embed.token_projection.conv.",
    **{f"patch_embed.proj.{2 * i}.0.": f"patch_embed.proj.{i}.conv." for i in range(4)},
    **{f"patch_embed.proj.{2 * i}.1.": f"patch_embed.proj.{i}.bn." for i in range(4)},
}
_MMPRETRAIN_INFIXES = {
    ".local_mp.bn.": ".local_mp.conv1.bn.",
    ".local_mp.conv1.": ".local_mp.conv1.conv.",
    ".local_mp.conv2.": ".local_mp.conv2.conv.",
    ".mlp.fc1.": ".ffn.layers.0.0.",
    ".mlp.fc2.": ".ffn.layers.1.",
}
_TELLING = ("blocks.0.norm1.weight", "blocks.0.attn.temperature")
_CLASS_QKV = re.compile(r"(cls_attn_blocks\.\d+\.attn)\.qkv\.(weight|bias)")


@dataclass
class Weights:
    """What a checkpoint holds, under published names.

    Attributes:
        trunk: Tensors of the backbone, without any prefix: stem, positional encoding and blocks; in dense
            files the pyramid; in others what belongs to classification.
        heads: Tensors of a detector or segmentor outside its backbone, as named in the file.
        layout: 'official', 'timm' or 'mmpretrain'.
        task: 'detector', 'segmentor', 'classifier' or 'backbone'.
        source: The part of the file they are: '' for all of it, or 'model', 'teacher', ...
        metadata: What else the file says, tensors and optimizer left out.
    """

    trunk: dict[str, Tensor]
    heads: dict[str, Tensor]
    layout: str
    task: str
    source: str
    metadata: dict[str, Any] = field(default_factory=dict)


def recognise(checkpoint: Any, use_ema: bool = False) -> Weights:
    """Find the weights in a checkpoint and give them their published names.

    Args:
        checkpoint: What a file held.
        use_ema: Take the averaged weights of a training file, `model_ema` or timm's `state_dict_ema`, instead of
            its `model`.

    Raises:
        ValueError: If there is no XCiT in it, or no averaged weights though asked for.
    """
    source, state, metadata = _unwrap(checkpoint, use_ema)
    if state and all(key.startswith("module.") for key in state):
        state = _strip(state, "module.")
    inner = _strip(state, "backbone.")
    outer = {key: value for key, value in state.items() if not key.startswith("backbone.")} if inner else {}
    if inner.keys() & outer.keys():
        raise ValueError(f"it holds {min(inner.keys() & outer.keys())} twice, once under backbone.")
    if any(not key.startswith(CLASSIFIER) for key in outer):
        task = "segmentor" if any(key.startswith("decode_head.") for key in outer) else "detector"
    else:
        task = "backbone"
        # Beside a bare backbone stands at most a classifier's or DINO's head.
        inner = {**inner, **outer} if inner else state
        outer = {}
    trunk, layout = _published_names(inner)
    if not any(key.startswith("blocks.") for key in trunk):
        raise ValueError(f"no XCiT in it: keys such as {', '.join(list(state)[:3]) or 'none'} are of no known layout")
    if task == "backbone" and "cls_token" in trunk:
        task = "classifier"
    return Weights(trunk, outer, layout, task, source, metadata)


def describe(trunk: Mapping[str, Tensor]) -> str:
    """Architecture and patch size of a trunk by its shapes, such as 's12/p16' or '32x12x4/p8' (width, depth, heads).

    Raises:
        ValueError: If a tensor that tells them is missing.
    """
    shape, patch_size, linear = _shape(trunk)
    return f"{arch_name(*shape)}/p{patch_size}{' (linear)' if linear else ''}"


def backbone_options(trunk: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments of the backbone that a trunk is of, but for what shapes don't tell.

    Raises:
        ValueError: If a tensor that tells them is missing, or another one does not bear it out.
    """
    shape, patch_size, linear = _shape(trunk)
    _check_sizes(trunk, shape, patch_size, linear)
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
    """Width, depth and heads; the patch size; whether patches are projected linearly."""
    for key in _TELLING:
        if key not in trunk:
            raise ValueError(f"it lacks {key}")
    width, heads = (trunk[key].numel() for key in _TELLING)
    depth = 1 + max(int(match[1]) for match in map(re.compile(r"blocks\.(\d+)\.").match, trunk) if match)
    linear = trunk.get("patch_embed.proj.weight")
    if linear is not None and linear.dim() == 4:
        return (width, depth, heads), linear.shape[-1], True
    # A stem of n convolutions halves the size n times.
    halvings = sum(re.fullmatch(r"patch_embed\.proj\.\d+\.0\.weight", key) is not None for key in trunk)
    return (width, depth, heads), 2**halvings, False


def _check_sizes(trunk: Mapping[str, Tensor], shape: tuple[int, int, int], patch_size: int, linear: bool) -> None:
    """Check that the file's larger tensors bear out the sizes that small ones claim, at which a model is then built.

    One tensor of a few bytes may claim 3000 blocks, or a width that no memory holds.
    """
    width, depth, heads = shape
    if not width or not heads or width % heads:
        raise ValueError(
            f"it holds {' and '.join(_TELLING)} for width {width} and {heads} heads, which do not go together"
        )
    for index in range(depth):
        _check_size(trunk, f"blocks.{index}.attn.qkv.weight", 3 * width, width)
    if linear:
        _check_size(trunk, "patch_embed.proj.weight", width, None, patch_size, patch_size)
    else:
        _check_size(trunk, "patch_embed.proj.0.0.weight", 2 * width // patch_size, None, 3, 3)
    if "head.weight" in trunk:
        _check_size(trunk, "head.weight", None, width)


def _check_size(trunk: Mapping[str, Tensor], key: str, *wanted: int | None) -> None:
    """Check the shape of a tensor, where None may be any size."""
    if key not in trunk:
        raise ValueError(f"it lacks {key}")
    found = tuple(trunk[key].shape)
    if len(found) != len(wanted) or any(size not in (None, own) for size, own in zip(wanted, found, strict=True)):
        sizes = ", ".join("any" if size is None else str(size) for size in wanted)
        raise ValueError(f"it holds {key} of {found}, not ({sizes})")


def unknown_keys(trunk: Mapping[str, Tensor]) -> list[str]:
    """Keys that no XCiT has, neither a dense one nor a classifier."""
    known = ("patch_embed.proj.", "pos_embeder.token_projection.", "blocks.", "fpn", *CLASSIFIER)
    return [key for key in trunk if not key.startswith(known)]


def export(weights: Weights, layout: str) -> dict[str, Any]:
    """Checkpoint of a trunk in a layout, wrapped as that project does.

    Raises:
        ValueError: If the weights hold a detector or segmentor, which only mmdet and mmseg can name.
    """
    if weights.heads:
        raise ValueError(
            f"a {weights.task} has one layout only: keep the file, or convert its backbone alone (--backbone)"
        )
    if layout == "official":
        return dict(model=dict(weights.trunk))
    # These projects' models have no pyramid.
    state = _split_class_qkv({key: value for key, value in weights.trunk.items() if not key.startswith("fpn")})
    if layout == "timm":
        return _rename(state, lambda key: key.replace("pos_embeder.", "pos_embed.", 1))
    state = _rename(state, _to_mmpretrain)
    return dict(meta={}, state_dict=state)


def _unwrap(checkpoint: Any, use_ema: bool) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
    if not isinstance(checkpoint, Mapping):
        raise ValueError(f"it holds a {type(checkpoint).__name__}, not a dict of weights")
    wrappers = ["model_ema", "state_dict_ema"] if use_ema else ["state_dict", "model", "teacher"]
    for source in wrappers:
        if isinstance(checkpoint.get(source), Mapping):
            state = dict(checkpoint[source])
            metadata = {k: v for k, v in checkpoint.items() if not isinstance(v, (Mapping, Tensor)) or k == "meta"}
            break
    else:
        if use_ema:
            raise ValueError("it holds no model_ema or state_dict_ema: load it without use_ema")
        source, state, metadata = "", dict(checkpoint), {}
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise ValueError(f"its entry {key!r} is a {type(value).__name__}, not a tensor")
    return source, state, metadata


def _strip(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _rename(state: Mapping[str, Tensor], new_name: Callable[[str], str]) -> dict[str, Tensor]:
    """Rename every key; two keys of one new name are an error, since one tensor would be lost."""
    renamed = {new_name(key): value for key, value in state.items()}
    if len(renamed) != len(state):
        raise ValueError("two of its keys have the same published name")
    return renamed


def _published_names(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    if any(key.startswith("xca_layers.") for key in state):
        layout, state = "mmpretrain", _rename(state, _from_mmpretrain)
    elif any(key.startswith("pos_embed.") or ".attn.q." in key for key in state):
        layout, state = "timm", _rename(state, lambda key: re.sub(r"^pos_embed\.", "pos_embeder.", key))
    else:
        layout = "official"
    return _join_class_qkv(state), layout


def _from_mmpretrain(key: str) -> str:
    key = re.sub(r"^head\.fc\.", "head.", key)
    return _replace(key, _inverse(_MMPRETRAIN_PREFIXES), _inverse(_MMPRETRAIN_INFIXES))


def _to_mmpretrain(key: str) -> str:
    if key.startswith("head."):
        return key.replace("head.", "head.fc.", 1)
    return "backbone." + _replace(key, _MMPRETRAIN_PREFIXES, _MMPRETRAIN_INFIXES)


def _inverse(table: dict[str, str]) -> dict[str, str]:
    return {new: old for old, new in table.items()}


def _replace(key: str, prefixes: dict[str, str], infixes: dict[str, str]) -> str:
    for old, new in prefixes.items():
        if key.startswith(old):
            key = new + key.removeprefix(old)
            break
    for old, new in infixes.items():
        if old in key:
            return key.replace(old, new, 1)
    return key


def _join_class_qkv(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Class attention's q, k and v as one `qkv`, as published."""
    joined = {}
    for key, value in state.items():
        match = re.fullmatch(r"(cls_attn_blocks\.\d+\.attn)\.([qkv])\.(weight|bias)", key)
        if match is None:
            joined[key] = value
            continue
        parts = [state[name] for name in (f"{match[1]}.{part}.{match[3]}" for part in "qkv") if name in state]
        if len(parts) < 3:
            raise ValueError(f"{match[1]} lacks one of q, k and v")
        joined[f"{match[1]}.qkv.{match[3]}"] = torch.cat(parts)
    return joined


def _split_class_qkv(state: dict[str, Tensor]) -> dict[str, Tensor]:
    split = {}
    for key, value in state.items():
        match = _CLASS_QKV.fullmatch(key)
        if match is None:
            split[key] = value
        else:
            for part, tensor in zip("qkv", value.chunk(3), strict=True):
                split[f"{match[1]}.{part}.{match[2]}"] = tensor
    return split
