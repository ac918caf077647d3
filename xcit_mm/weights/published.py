"""The published files: their facts, and downloads."""

import csv
import os
import sys
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

import msgspec
import torch
import torch.distributed as dist

from ..utils.atomic import atomic_path
from ..utils.ranks import Ranks
from .reader import load_from_file

REMOTE_PREFIXES = ("xcit://", "http://", "https://")
PUBLISHED_ROOT = "https://dl.fbaipublicfiles.com/xcit/"


class PublishedFile(NamedTuple):
    """A file of weights that the paper's authors published: a row of `published.csv`.

    Attributes:
        resolution: Side of the training images in pixels, for COCO the shorter side.
        training: Data, and method or model.
        timm_name: Name of the same weights in timm and on the Hub, or ''.
        scale: Factor by which its training images were resized. For COCO it is the factor by which
            the recipe resizes a photo of 640 x 480 pixels.
    """

    url: str
    arch: str
    patch_size: int
    resolution: int
    training: str
    timm_name: str
    licence: str
    scale: float


def _read_table() -> dict[str, PublishedFile]:
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as table:
        _, *rows = csv.reader(table)
    return {name: msgspec.convert(facts, PublishedFile, strict=False) for name, *facts in rows}


PUBLISHED = _read_table()
"""Facts about every published file by the name that its authors gave it."""

_BY_TIMM_NAME = {file.timm_name: name for name, file in PUBLISHED.items() if file.timm_name}


def published_name(name: str) -> str:
    """Return a name without `xcit://`. A name from timm becomes the authors' name."""
    name = name.removeprefix("xcit://")
    return _BY_TIMM_NAME.get(name, name)


def local_path(name: str) -> Path:
    """Return where a file from the web is stored, whether or not it has been downloaded."""
    default = f"{torch.hub.get_dir()}/checkpoints"
    folder = Path(os.environ.get("XCIT_MM_WEIGHTS") or default).expanduser()
    name = published_name(name)
    if name in PUBLISHED:
        return folder / f"{name}.pth"
    file = Path(urlparse(name).path)  # another server may have a file with this name
    return folder / f"{file.stem}-{sha256(name.encode()).hexdigest()[:8]}{file.suffix}"


def ensure_downloaded(name: str) -> Path:
    """Download a file from the web, unless an earlier call did, and return its local path.

    In a distributed run the first process downloads while the others wait.

    Args:
        name: A URL, or a published name, the authors' or timm's, with or without `xcit://`.

    Raises:
        ConnectionError: If the file cannot be downloaded, or what was downloaded cannot be read.
    """
    path = local_path(name)
    ranks = Ranks(dist.group.WORLD if dist.is_available() and dist.is_initialized() else None)
    try:
        if ranks.rank == 0:
            _download(name, path)
    finally:
        ranks.wait()
    _download(name, path)  # by processes of machines with folders of their own
    return path


def _download(name: str, path: Path) -> None:
    """Download a file from the web to a path, unless it is there."""
    if path.exists():
        return
    file = PUBLISHED.get(published_name(name))
    url = file.url if file else name
    try:
        with atomic_path(path, is_shared=True) as part:
            torch.hub.download_url_to_file(url, str(part), progress=sys.stderr.isatty())
            load_from_file(part)  # torch does not notice a missing part
    except (OSError, HTTPException, ValueError) as error:
        fix = f"download it elsewhere and put it at {path}"
        if file and file.timm_name:
            fix = f"take hf://timm/{file.timm_name}, which has the same weights, or {fix}"
        raise ConnectionError(f"cannot download or read {url} ({error}): {fix}") from error
