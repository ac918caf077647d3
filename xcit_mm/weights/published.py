"""The published files: their names, where they are downloaded from and where they are stored."""

import os
import sys
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch
from mmengine import dist

from ..utils.atomic import atomic_path

REMOTE_PREFIXES = ("xcit://", "http://", "https://")
_ROOT = "https://dl.fbaipublicfiles.com/xcit"
_IMAGENET = ("nano_12", "tiny_12", "tiny_24", "small_12", "small_24", "medium_24", "large_24")
_DENSE = ("tiny_12", "small_12", "small_24", "medium_24")

_PATHS = []
for _patch in ("p16", "p8"):
    for _training in ("224", "224_dist", "384_dist"):
        _PATHS += [f"xcit_{size}_{_patch}_{_training}" for size in _IMAGENET]
    _PATHS += [f"xcit_{size}_c{_patch}_dino" for size in ("small_12", "medium_24")]
    _PATHS += [f"coco/maskrcnn_xcit_{size}_{_patch}" for size in _DENSE]
    _PATHS += [
        f"ade/{head}_xcit_{size}_{_patch}" for head in ("sem_fpn", "upernet") for size in _DENSE
    ]

PUBLISHED: dict[str, str] = {path.rpartition("/")[2]: f"{_ROOT}/{path}.pth" for path in _PATHS}
"""URL of every published file by its name, as in `xcit://NAME`."""


def local_path(name: str) -> Path:
    """Return where a file from the web is stored, downloaded or not. A hash of its URL tells equal
    names apart.
    """
    folder = Path(
        os.environ.get("XCIT_MM_WEIGHTS") or Path(torch.hub.get_dir(), "checkpoints")
    ).expanduser()
    name = name.removeprefix("xcit://")
    if name.startswith(REMOTE_PREFIXES):
        file = Path(urlparse(name).path)
        return folder / f"{file.stem}-{sha256(name.encode()).hexdigest()[:8]}{file.suffix}"
    if name not in PUBLISHED:
        raise ValueError(f"{name!r} is not a published name: run python tools/weights.py list")
    return folder / f"{name}.pth"


def ensure_downloaded(name: str) -> Path:
    """Return the path of a URL or of a published name, with or without `xcit://`, after a download
    if necessary.

    Raises:
        ValueError: If the name is not a published name.
        ConnectionError: If the file cannot be downloaded.
    """
    path, name = local_path(name), name.removeprefix("xcit://")
    download(PUBLISHED.get(name, name), path)
    return path


def download(url: str, path: Path) -> None:
    """Download a file that does not exist yet, with a progress bar.

    The file takes its name only when it is complete. One of several processes downloads while the
    others wait.

    Raises:
        ConnectionError: If the file cannot be downloaded.
    """
    if dist.get_rank() > 0:
        dist.barrier()
    try:
        if not path.exists():
            request = Request(
                url, headers={"User-Agent": "torch.hub"}
            )  # some servers reject Python's own name
            with urlopen(
                request, timeout=60
            ) as response:  # torch does not notice that a connection ends too early
                length = response.headers.get("Content-Length")
            with atomic_path(path) as unfinished:
                torch.hub.download_url_to_file(url, str(unfinished), progress=sys.stderr.isatty())
                if length is not None and unfinished.stat().st_size != int(length):
                    raise OSError(f"only {unfinished.stat().st_size} of {length} bytes came")
    except (OSError, HTTPException) as error:
        raise ConnectionError(
            f"cannot download {url} ({error}): download it elsewhere and put it at {path}"
        ) from error
    finally:
        if dist.get_rank() == 0:
            dist.barrier()
