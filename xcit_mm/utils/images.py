"""Reading of images from files and URLs."""

import importlib.util
import urllib.request
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import mmcv
import numpy as np
from PIL import UnidentifiedImageError

from .image_headers import has_more_than_8_bits

HEIF_NEEDS = "HEIC needs pillow-heif: pip install xcit_mm[heif]"
URL_PREFIXES = ("http://", "https://", "/vsi")  # and the file systems of GDAL


def read_image(path: str | Path, color_type: str = "color", imdecode_backend: str = "cv2") -> np.ndarray:
    """Read an image, or the first frame of an animation, from a file or URL: (H, W, 3), BGR, 8 bits.

    `color_type` and `imdecode_backend` are those of `LoadImageFromFile`, which may return other shapes and types.

    Raises:
        ValueError: If the file cannot be decoded, or uses at most 14 of 16 bits per channel.
        OSError: If the file cannot be read.
    """
    if str(path).startswith(URL_PREFIXES):
        with urllib.request.urlopen(_ascii_url(str(path)), timeout=60) as response:
            content = response.read()
    else:
        content = Path(path).read_bytes()
    if content[4:8] == b"ftyp":  # HEIC or AVIF, which not every version of OpenCV reads
        if importlib.util.find_spec("pillow_heif"):
            importlib.import_module("pillow_heif").register_heif_opener()
        imdecode_backend = "pillow"
    try:
        image = mmcv.imfrombytes(content, color_type, backend=imdecode_backend) if content else None
    except UnidentifiedImageError:
        raise ValueError(f"Pillow does not read the image; {HEIF_NEEDS}") from None
    if image is None:
        raise ValueError("the file is empty, broken or not an image")
    # OpenCV keeps the upper 8 of 16 bits. No pixel reaches 64 if 14 bits or fewer are in use, as in many cameras.
    if image.max() < 64 and has_more_than_8_bits(content):
        raise ValueError("the image uses few of its 16 bits and would be nearly black: scale it, or convert it to TIFF")
    return np.ascontiguousarray(image)  # Pillow's channels are reversed by a stride


def _ascii_url(url: str) -> str:
    """Encode spaces and letters beyond ASCII. Encoded characters stay."""
    parts = urlsplit(url)
    netloc = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    return quote(urlunsplit(parts._replace(netloc=netloc)), safe="%/:;?#[]@!$&'()*+,=~")
