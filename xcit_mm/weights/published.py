"""Weights from the web: the published names, where files come from and where they are kept."""

import os
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch
from mmengine import dist

from ..utils.atomic import atomic_write

__all__ = ["PUBLISHED", "REMOTE", "download", "fetch", "folder", "local_path"]

# How the names begin that are downloaded.
REMOTE = ("xcit://", "http://", "https://")
_ROOT = "https://dl.fbaipublicfiles.com/xcit"
_IMAGENET = ("nano_12", "tiny_12", "tiny_24", "small_12", "small_24", "medium_24", "large_24")
_DENSE = ("tiny_12", "small_12", "small_24", "medium_24")


def _published() -> dict[str, str]:
    paths = []
    for patch in ("p16", "p8"):
        for training in ("224", "224_dist", "384_dist"):
            paths += [f"xcit_{size}_{patch}_{training}" for size in _IMAGENET]
        paths += [f"xcit_{size}_c{patch}_dino" for size in ("small_12", "medium_24")]
        paths += [f"coco/maskrcnn_xcit_{size}_{patch}" for size in _DENSE]
        paths += [f"ade/{head}_xcit_{size}_{patch}" for head in ("sem_fpn", "upernet") for size in _DENSE]
    return {path.rpartition("/")[2]: f"{_ROOT}/{path}.pth" for path in paths}


PUBLISHED: dict[str, str] = _published()
"""URL of every published file by its name, as in `xcit://NAME`."""


def local_path(name: str) -> Path:
    """Where a file from the web is kept; of a URL under its last part and a hash of the whole.

    Args:
        name: A URL or a published name, with or without `xcit://`.

    Raises:
        ValueError: If the name is not a published one.
    """
    name = name.removeprefix("xcit://")
    if name.startswith(REMOTE):
        file = Path(urlparse(name).path)
        return folder() / f"{file.stem}-{sha256(name.encode()).hexdigest()[:8]}{file.suffix}"
    if name not in PUBLISHED:
        raise ValueError(f"{name!r} is not a published name: run python tools/weights.py list")
    return folder() / f"{name}.pth"


def folder() -> Path:
    """Where downloads are kept: `$XCIT_MM_WEIGHTS`, or else torch hub's folder."""
    return Path(os.environ.get("XCIT_MM_WEIGHTS") or os.path.join(torch.hub.get_dir(), "checkpoints")).expanduser()


def fetch(name: str) -> Path:
    """Path of a file from the web, downloaded first if it is not there yet; `name` is as of `local_path`.

    Raises:
        ValueError: If the name is not a published one.
        ConnectionError: If the file is not there and cannot be downloaded.
    """
    path, name = local_path(name), name.removeprefix("xcit://")
    download(PUBLISHED.get(name, name), path)
    return path


def _download(url: str, path: Path) -> None:
    # Some servers reject Python's own name.
    request = Request(url, headers={"User-Agent": "xcit_mm"})
    with urlopen(request, timeout=60) as answer, atomic_write(path) as file:
        announced = answer.headers.get("Content-Length")
        size = None if announced is None else int(announced)
        with torch.hub.tqdm(total=size, unit="B", unit_scale=True, unit_divisor=1024) as bar:
            while chunk := answer.read(2**17):
                file.write(chunk)
                bar.update(len(chunk))
        if size is not None and file.tell() != size:
            raise OSError(f"only {file.tell()} of {size} bytes came")


def download(url: str, path: Path) -> None:
    """Download a file that is not there yet, with a progress bar.

    It takes its name only when complete. Of several processes the first one downloads while the others wait.

    Raises:
        ConnectionError: If it cannot be downloaded.
    """
    if dist.get_rank() > 0:
        dist.barrier()
    try:
        if not path.exists():
            _download(url, path)
    except (OSError, HTTPException) as error:
        raise ConnectionError(f"cannot download {url} ({error}): download it elsewhere and put it at {path}") from error
    finally:
        if dist.get_rank() == 0:
            dist.barrier()
