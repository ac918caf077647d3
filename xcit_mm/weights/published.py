"""The published files: their facts, and downloads."""

import os
import sys
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

import torch
from mmengine import dist

from ..archs import ARCHS, PATCH_SIZES, SIZES
from ..utils.atomic import atomic_path
from .reader import load_from_file

REMOTE_PREFIXES = ("xcit://", "http://", "https://")
PUBLISHED_ROOT = "https://dl.fbaipublicfiles.com/xcit/"


class PublishedFile(NamedTuple):
    """A file of weights that the paper's authors published.

    Attributes:
        resolution: Side of the images of the training in pixels, the shorter side for COCO.
        training: Data, and method or model.
        timm_name: Name of the same weights in timm and on the Hub, or ''.
        scale: Factor at which the model saw its training images: of COCO, what the recipe does to
            a photo of 640 x 480 pixels.
    """

    url: str
    arch: str
    patch_size: int
    resolution: int
    training: str
    timm_name: str = ""
    licence: str = "Apache-2.0"
    scale: float = 1.0


_DENSE = ("t12", "s12", "s24", "m24")
_XCIT = "xcit_{size}_p{patch_size}"

# By the path of a file: its architectures, resolution, training, and name in timm.
_FAMILIES = {
    f"coco/maskrcnn_{_XCIT}": (_DENSE, 800, "COCO, Mask R-CNN", ""),
    f"ade/sem_fpn_{_XCIT}": (_DENSE, 512, "ADE20k, Semantic FPN", ""),
    f"ade/upernet_{_XCIT}": (_DENSE, 512, "ADE20k, UperNet", ""),
    f"{_XCIT}_224": (ARCHS, 224, "ImageNet", f"{_XCIT}_224.fb_in1k"),
    f"{_XCIT}_224_dist": (ARCHS, 224, "ImageNet, distilled", f"{_XCIT}_224.fb_dist_in1k"),
    f"{_XCIT}_384_dist": (ARCHS, 384, "ImageNet, distilled", f"{_XCIT}_384.fb_dist_in1k"),
    "xcit_{size}_cp{patch_size}_dino": (("s12", "m24"), 224, "ImageNet, DINO", ""),
}


PUBLISHED: dict[str, PublishedFile] = {}
"""Facts of every published file by its name, as in `xcit://NAME`."""

for _path, (_archs, _resolution, _training, _timm_name) in _FAMILIES.items():
    for _arch in _archs:
        for _patch_size in PATCH_SIZES:
            # The size of 's12' is 'small_12'.
            _names = dict(size=f"{SIZES[_arch[0]]}_{_arch[1:]}", patch_size=_patch_size)
            _file = _path.format(**_names)
            PUBLISHED[_file.rpartition("/")[2]] = PublishedFile(
                f"{PUBLISHED_ROOT}{_file}.pth",
                _arch,
                _patch_size,
                _resolution,
                _training,
                _timm_name.format(**_names),
                scale=1.67 if _training.startswith("COCO") else 1.0,
            )

_BY_TIMM_NAME = {file.timm_name: name for name, file in PUBLISHED.items() if file.timm_name}


def published_name(name: str) -> str:
    """Return a name without `xcit://`, and that of timm as the authors' name of the same file."""
    name = name.removeprefix("xcit://")
    return _BY_TIMM_NAME.get(name, name)


def local_path(name: str) -> Path:
    """Return where a file from the web is stored, downloaded or not."""
    default = f"{torch.hub.get_dir()}/checkpoints"
    folder = Path(os.environ.get("XCIT_MM_WEIGHTS") or default).expanduser()
    name = published_name(name)
    if name.startswith(REMOTE_PREFIXES):
        file = Path(urlparse(name).path)  # another server may have a file of this name
        return folder / f"{file.stem}-{sha256(name.encode()).hexdigest()[:8]}{file.suffix}"
    if name not in PUBLISHED:
        raise ValueError(f"{name!r} is not a published name: run xcit-mm weights list")
    return folder / f"{name}.pth"


def ensure_downloaded(name: str) -> Path:
    """Return the local path of a file from the web, which the first of several processes downloads
    if necessary.

    Args:
        name: A URL, or a published name, the authors' or timm's, with or without `xcit://`.

    Raises:
        ValueError: If the name is not published.
        ConnectionError: If the file cannot be downloaded, or only a part of it.
    """
    path = local_path(name)
    file = PUBLISHED.get(published_name(name))
    url = file.url if file else name
    if dist.get_rank() > 0:
        dist.barrier()
    try:
        if not path.exists():
            with atomic_path(path, is_shared=True) as part:
                torch.hub.download_url_to_file(url, str(part), progress=sys.stderr.isatty())
                load_from_file(part)  # torch does not notice a missing part
    except (OSError, HTTPException, ValueError) as error:
        fix = f"download it elsewhere and put it at {path}"
        if file and file.timm_name:
            fix = f"take hf://timm/{file.timm_name}, which has the same weights, or {fix}"
        raise ConnectionError(f"cannot download {url} ({error}): {fix}") from error
    finally:
        if dist.get_rank() == 0:
            dist.barrier()
    return path
