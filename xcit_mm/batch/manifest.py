"""Manifest of a run: the config, checkpoint, options, model, versions and inputs that determine its results."""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import mmcv
import mmengine
import numpy as np
import torch
from mmengine.config import Config

from ..utils.atomic import atomic_write
from ..utils.configs import image_side, loading_options, raster_bands, raster_step, tested_metainfo
from ..version import __version__
from ..weights.published import REMOTE_PREFIXES, ensure_downloaded
from .inputs import Input
from .options import RunOptions

MANIFEST, INPUTS, SHARDS, VISUALIZATIONS, LABELS = "run.json", "inputs.jsonl", "shards", "visualizations", "labels"
IMAGES, PREDICTIONS, INSTANCES = "images.json", "predictions.json", "instances"
SUSPECTS = ".suspects.json"
# The manifest marks the folder as a run's, so it is removed last.
FILES = (SHARDS, VISUALIZATIONS, LABELS, INSTANCES, IMAGES, PREDICTIONS, SUSPECTS, INPUTS, MANIFEST)


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
    digest = hashlib.sha256()
    with open(ensure_downloaded(checkpoint) if checkpoint.startswith(REMOTE_PREFIXES) else checkpoint, "rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    manifest = dict(
        config=dict(path=os.path.abspath(cfg.filename), text=cfg.pretty_text),
        checkpoint=dict(path=checkpoint, sha256=digest.hexdigest()),
        options=asdict(options),
        model=asdict(model),
        versions=dict(xcit_mm=__version__) | {name: module.__version__ for name, module in modules.items()},
        # `starts` has the first input of each update; numbers of inputs that an update dropped are not used again.
        inputs=dict(source=source, count=len(inputs), starts=[0], dropped=[]),
    )
    return json.loads(json.dumps(manifest))  # as read from a file, so that manifests can be compared


def resume_manifest(
    earlier: dict[str, Any], before: list[Input], current: dict[str, Any], listed: list[Input], update: bool
) -> tuple[dict[str, Any], list[Input]]:
    """Return the manifest and the inputs of a resumed run, whose inputs were `before`, and are `listed` now.

    An input keeps its number and its key. If `update`, new inputs follow, and vanished inputs are dropped. Else, the
    inputs stay as they are.

    Raises:
        ValueError: If the results of an input would differ, no input is the same, or an input has changed and `update`
            is not given. The message describes the first difference.
    """
    _check_equal(earlier, current)
    section, dropped = earlier["inputs"], set(earlier["inputs"]["dropped"])
    numbers = {_identity(input_): n for n, input_ in enumerate(before) if n not in dropped}
    new = [input_ for input_ in listed if _identity(input_) not in numbers]
    vanished = {numbers[identity] for identity in numbers.keys() - set(map(_identity, listed))}
    if len(vanished) == len(numbers):
        old, now = ("{count} at {source}".format(**manifest["inputs"]) for manifest in (earlier, current))
        raise ValueError(f"its inputs were {old}, are {now}")
    if not update:
        if changed := {input_.path for input_ in new} & {before[number].path for number in vanished}:
            raise ValueError(f"{min(changed)} has another size, other values or another id: add --update")
        if new or vanished:
            note = f"{len(new)} new inputs and {len(vanished)} that vanished: add --update to take and drop them"
            print(note, file=sys.stderr)
        return current | dict(inputs=section), before
    keys = {input_.key for input_ in before}
    new = [i._replace(key=f"{i.key}-{n}") if i.key in keys else i for n, i in enumerate(new, start=len(before))]
    section = dict(
        source=current["inputs"]["source"],
        count=len(before) + len(new),
        starts=section["starts"] + [len(before)] * bool(new),
        dropped=sorted(dropped | vanished),
    )
    return current | dict(inputs=section), before + new


def _identity(input_: Input) -> str:
    return json.dumps(input_._replace(key=""))


def _check_equal(earlier: dict[str, Any], current: dict[str, Any]) -> None:
    """Raise ValueError if two manifests differ in a value that changes the result of an input."""
    old, new = map(_values, (earlier, current))
    absent = "not given"  # in the manifest of another version. None may be a value.
    name = next((name for name in {**old, **new} if old.get(name, absent) != new.get(name, absent)), None)
    if name == "config":
        pairs = zip_longest(old[name].splitlines(), new[name].splitlines(), fillvalue="")
        before, after = next(pair for pair in pairs if pair[0] != pair[1])
        path = current["config"]["path"]
        raise ValueError(f"its config had '{before.strip()}', {path} has '{after.strip()}'")
    if name == "checkpoint":
        before, after = ("{path} ({sha256:.8})".format(**manifest[name]) for manifest in (earlier, current))
        raise ValueError(f"its checkpoint was {before}, is {after}")
    if name is not None:
        before, after = (str(values.get(name, absent))[:200] for values in (old, new))
        raise ValueError(f"its {name} was {before}, is {after}")


def _values(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the values that change results, by name."""
    values = dict(config=manifest["config"]["text"], checkpoint=manifest["checkpoint"]["sha256"])
    return values | manifest["options"] | manifest.get("model", {}) | manifest.get("versions", {})


def write_manifest(out: Path, manifest: dict[str, Any]) -> None:
    with atomic_write(out / MANIFEST) as file:
        file.write(json.dumps(manifest, indent=2).encode())


def read_manifest(out: Path) -> dict[str, Any] | None:
    """Read the manifest of an earlier run, or return None if the folder has no files of a run."""
    files = [out / name for name in FILES if (out / name).exists()]
    if not files:
        return None
    try:
        manifest = json.loads((out / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise FileExistsError(
            f"{files[0]} does not belong to a run, which has a {MANIFEST}: give another --out"
        ) from None
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or not manifest.keys() >= {"config", "checkpoint", "options", "inputs"}:
        raise FileExistsError(f"{out / MANIFEST} is not the manifest of a run: give another --out")
    return manifest


def read_inputs(out: Path, manifest: dict[str, Any]) -> list[Input]:
    """Read the inputs of a run, if they have been written."""
    if not (out / INPUTS).exists():
        return []
    with (out / INPUTS).open() as lines:
        return [Input(*json.loads(line)) for line in islice(lines, manifest["inputs"]["count"])]
