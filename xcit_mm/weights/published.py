"""The published files: their facts, where they are downloaded from and where they are stored."""

import os
import shutil
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch
from mmengine import dist
from tqdm import tqdm

from ..archs import ARCHS, PATCH_SIZES, SIZES
from ..utils.atomic import atomic_write

REMOTE_PREFIXES = ("xcit://", "http://", "https://")
PUBLISHED_ROOT = "https://dl.fbaipublicfiles.com/xcit/"


class PublishedFile(NamedTuple):
    """A file of weights that the paper's authors published.

    Attributes:
        arch: A key of `ARCHS`.
        resolution: Side of the images of the training in pixels, the shorter side for COCO.
        training: Data, and method or model.
    """

    url: str
    arch: str
    patch_size: int
    resolution: int
    training: str
    licence: str = "Apache-2.0"


_DENSE = ("t12", "s12", "s24", "m24")

# By the path of a file: its architectures, resolution and training.
_FAMILIES = {
    "coco/maskrcnn_xcit_{size}_p{patch_size}": (_DENSE, 800, "COCO, Mask R-CNN"),
    "ade/sem_fpn_xcit_{size}_p{patch_size}": (_DENSE, 512, "ADE20k, Semantic FPN"),
    "ade/upernet_xcit_{size}_p{patch_size}": (_DENSE, 512, "ADE20k, UperNet"),
    "xcit_{size}_p{patch_size}_224": (ARCHS, 224, "ImageNet"),
    "xcit_{size}_p{patch_size}_224_dist": (ARCHS, 224, "ImageNet, distilled"),
    "xcit_{size}_p{patch_size}_384_dist": (ARCHS, 384, "ImageNet, distilled"),
    "xcit_{size}_cp{patch_size}_dino": (("s12", "m24"), 224, "ImageNet, DINO"),
}


def _list_files_by_name() -> dict[str, PublishedFile]:
    table = {}
    for path_format, (archs, resolution, training) in _FAMILIES.items():
        for arch in archs:
            size = f"{SIZES[arch[0]]}_{arch[1:]}"  # 'small_12' for 's12'
            for patch_size in PATCH_SIZES:
                path = path_format.format(size=size, patch_size=patch_size)
                name = path.rpartition("/")[2]
                url = f"{PUBLISHED_ROOT}{path}.pth"
                table[name] = PublishedFile(url, arch, patch_size, resolution, training)
    return table


PUBLISHED: dict[str, PublishedFile] = _list_files_by_name()
"""Facts of every published file by its name, as in `xcit://NAME`."""


def local_path(name: str) -> Path:
    """Return where a file from the web is stored, downloaded or not."""
    folder = Path(
        os.environ.get("XCIT_MM_WEIGHTS") or Path(torch.hub.get_dir(), "checkpoints")
    ).expanduser()
    name = name.removeprefix("xcit://")
    if name.startswith(REMOTE_PREFIXES):
        file = Path(urlparse(name).path)  # another server may have a file of this name
        return folder / f"{file.stem}-{sha256(name.encode()).hexdigest()[:8]}{file.suffix}"
    if name not in PUBLISHED:
        raise ValueError(f"{name!r} is not a published name: run xcit-mm weights list")
    return folder / f"{name}.pth"


def ensure_downloaded(name: str) -> Path:
    """Return the local path of a file from the web, after a download if necessary.

    The file takes its name only when it is complete. One of several processes downloads while the
    others wait.

    Args:
        name: A URL, or a published name with or without `xcit://`.

    Raises:
        ValueError: If the name is not a published name.
        ConnectionError: If the file cannot be downloaded.
    """
    path = local_path(name)  # raises if the name is neither
    url = name.removeprefix("xcit://")
    if url in PUBLISHED:
        url = PUBLISHED[url].url
    if dist.get_rank() > 0:
        dist.barrier()
    try:
        if not path.exists():
            # Some servers reject Python's own agent.
            request = Request(url, headers={"User-Agent": "torch.hub"})
            with urlopen(request, timeout=60) as response, atomic_write(path) as file:
                size = int(response.headers.get("Content-Length") or 0)
                with tqdm.wrapattr(file, "write", total=size or None, disable=None) as target:
                    shutil.copyfileobj(response, target)
                if file.tell() < size:
                    raise OSError(f"only {file.tell()} of {size} bytes came")
    except (OSError, HTTPException) as error:
        raise ConnectionError(
            f"cannot download {url} ({error}): download it elsewhere and put it at {path}"
        ) from error
    finally:
        if dist.get_rank() == 0:
            dist.barrier()
    return path
