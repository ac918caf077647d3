"""Manifest of a run: the config, checkpoint, options, model, versions and inputs that determine its results."""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

import mmcv
import mmengine
import numpy as np
import torch
from mmengine.config import Config

from ..utils.configs import image_side, loading_options, raster_bands, raster_step, tested_metainfo
from ..version import __version__
from ..weights.published import REMOTE_PREFIXES, ensure_downloaded
from .inputs import Input
from .options import RunOptions

__all__ = ["ModelInfo", "create_manifest", "find_difference", "merge_inputs"]


@dataclass(frozen=True)
class ModelInfo:
    """Properties of a run's model that the results depend on."""

    is_detector: bool  # else a segmentor
    classes: list[str]
    palette: list[list[int]] | None  # RGB, if the data set has a palette
    category_ids: list[int]  # of the classes in COCO files
    channels: int
    loads_rasters: bool  # unscaled, by `LoadRasterFromFile`
    image_side: int | None  # in pixels, if the config states it
    loading: dict[str, str]  # options of `read_image`

    @classmethod
    def from_config(cls, cfg: Config, category_ids: Sequence[int] | None = None) -> "ModelInfo":
        """Read the properties from a config. Default ids count from 1; those of a segmentor from 0, as in its maps."""
        metainfo, is_detector = tested_metainfo(cfg), cfg.get("default_scope") == "mmdet"
        classes, palette = list(metainfo["classes"]), metainfo.get("palette")
        return cls(
            is_detector,
            classes,
            [list(map(int, color)) for color in palette] if isinstance(palette, list | tuple) else None,
            list(category_ids or range(int(is_detector), int(is_detector) + len(classes))),
            raster_bands(cfg) or 3,
            raster_step(cfg) is not None,
            image_side(cfg),
            loading_options(cfg),
        )


def create_manifest(
    cfg: Config, checkpoint: str, source: str, inputs: Sequence[Input], options: RunOptions, model: ModelInfo
) -> dict[str, Any]:
    """Create the content of run.json. `source` is the path that the inputs were listed from."""
    library = cfg.get("default_scope")
    modules = dict(torch=torch, numpy=np, mmengine=mmengine, mmcv=mmcv)
    if library in ("mmdet", "mmseg"):
        modules[library] = __import__(library)
    with open(ensure_downloaded(checkpoint) if checkpoint.startswith(REMOTE_PREFIXES) else checkpoint, "rb") as file:
        checkpoint_hash = _sha256(iter(lambda: file.read(2**20), b""))
    manifest = dict(
        config=dict(path=os.path.abspath(cfg.filename), text=cfg.pretty_text),
        checkpoint=dict(path=checkpoint, sha256=checkpoint_hash),
        options=asdict(options),
        model=asdict(model),
        versions=dict(xcit_mm=__version__) | {name: module.__version__ for name, module in modules.items()},
        # `starts` has the first input of each update; numbers of inputs that an update dropped are not used again.
        inputs=dict(source=source, count=len(inputs), starts=[0], dropped=[]),
    )
    return json.loads(json.dumps(manifest))  # as read from a file, so that manifests can be compared


def _sha256(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


_HASHED = dict(config="text", checkpoint="sha256")  # sections with one value that changes results


def find_difference(earlier: dict[str, Any], current: dict[str, Any]) -> str | None:
    """Describe the first difference of two manifests that changes the result of an input, or return None."""
    absent = "not given"  # in the manifest of another version. None may be a value.
    for section, values in current.items():
        if section == "inputs":
            continue
        before = earlier.get(section, {})
        for name in [_HASHED[section]] if section in _HASHED else {**before, **values}:
            if before.get(name, absent) == values.get(name, absent):
                continue
            if section == "config":
                pairs = zip_longest(before[name].splitlines(), values[name].splitlines(), fillvalue="")
                old, new = next(pair for pair in pairs if pair[0] != pair[1])
                return f"its config had '{old.strip()}', {values['path']} has '{new.strip()}'"
            if section == "checkpoint":
                old, new = ("{path} ({sha256:.8})".format(**manifest) for manifest in (before, values))
                return f"its checkpoint was {old}, is {new}"
            old, new = (str(manifest.get(name, absent))[:200] for manifest in (before, values))
            return f"its {name} was {old}, is {new}"
    return None


def merge_inputs(
    earlier: dict[str, Any], before: list[Input], current: dict[str, Any], listed: list[Input], update: bool
) -> tuple[dict[str, Any], list[Input]]:
    """Merge the inputs of a run, `before`, with those listed now, and return the manifest's section and the inputs.

    An input keeps its number and its key. If `update`, new inputs follow, and vanished inputs are dropped. Else, the
    inputs stay as they are.

    Raises:
        FileExistsError: If no input is the same, or an input has changed and `update` is not given.
    """
    dropped = set(earlier["dropped"])
    numbers = {_identity(input_): n for n, input_ in enumerate(before) if n not in dropped}
    new = [input_ for input_ in listed if _identity(input_) not in numbers]
    vanished = numbers.keys() - set(map(_identity, listed))
    if len(vanished) == len(numbers):
        raise FileExistsError(
            "its inputs were {count} at {source}, ".format(**earlier) + "are {count} at {source}".format(**current)
        )
    if not update:
        if changed := {input_.path for input_ in new} & {before[numbers[identity]].path for identity in vanished}:
            raise FileExistsError(f"{min(changed)} has another size, other values or another id: add --update")
        if new or vanished:
            note = f"{len(new)} new inputs and {len(vanished)} that vanished: add --update to take and drop them"
            print(note, file=sys.stderr)
        return earlier, before
    keys = {input_.key for input_ in before}
    new = [i._replace(key=f"{i.key}-{n}") if i.key in keys else i for n, i in enumerate(new, start=len(before))]
    section = dict(
        source=current["source"],
        count=len(before) + len(new),
        starts=earlier["starts"] + [len(before)] * bool(new),
        dropped=sorted(dropped | {numbers[identity] for identity in vanished}),
    )
    return section, before + new


def _identity(input_: Input) -> str:
    return json.dumps(input_._replace(key=""))
