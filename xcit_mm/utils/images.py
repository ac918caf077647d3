"""Reading of images from files and URLs."""

import importlib.util
import urllib.request
from io import BytesIO
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote, urlsplit, urlunsplit

import mmcv
import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

URL_PREFIXES = ("http://", "https://")


def read_image(
    path: str | Path, color_type: str = "color", imdecode_backend: str = "cv2"
) -> np.ndarray:
    """Read an image, or the first frame of an animation, from a file or URL: (H, W, 3), BGR, 8
    bits.

    `color_type` and `imdecode_backend` are those of `LoadImageFromFile`, which may return other
    shapes and types. What OpenCV does not decode, Pillow does.

    Raises:
        ValueError: If the file cannot be decoded, or uses at most 14 of 16 bits per channel.
        OSError: If the file cannot be read, or the URL not be downloaded.
    """
    content = (
        _download(str(path)) if str(path).startswith(URL_PREFIXES) else Path(path).read_bytes()
    )
    if not content:
        raise ValueError("the file is empty")
    is_heif = content[4:8] == b"ftyp"  # HEIC or AVIF, which not every version of OpenCV reads
    if is_heif and importlib.util.find_spec("pillow_heif"):
        importlib.import_module("pillow_heif").register_heif_opener()
    image = None if is_heif else mmcv.imfrombytes(content, color_type, backend=imdecode_backend)
    if image is None:
        image = _decode_by_pillow(content, color_type, is_heif)
    # OpenCV keeps the upper 8 of 16 bits. No pixel reaches 64 if 14 bits or fewer are in use, as in
    # many cameras.
    elif (
        image.max() < 64
        and getattr(mmcv.imfrombytes(content, "unchanged", backend="cv2"), "itemsize", 1) > 1
    ):
        problem = "the image uses few of its 16 bits and would be nearly black"
        raise ValueError(f"{problem}: `xcit-mm raster` scales it")
    return np.ascontiguousarray(image)  # Pillow's channels are reversed by a stride


def _decode_by_pillow(content: bytes, color_type: str, is_heif: bool) -> np.ndarray:
    try:
        mode = Image.open(BytesIO(content)).mode
        if mode.startswith(("I", "F")):  # which Pillow cuts off at 255
            raise ValueError(f"OpenCV does not decode its more than 8 bits (Pillow's mode {mode})")
        return mmcv.imfrombytes(content, color_type, backend="pillow")
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        if is_heif:
            raise ValueError(
                "Pillow does not read the image; HEIC needs pillow-heif: pip install pillow-heif"
            ) from None
        note = ": a raster is for `xcit-mm raster`" if content[:2] in (b"II", b"MM") else ""
        problem = (
            "the file is broken or not an image"
            if isinstance(error, UnidentifiedImageError)
            else str(error)
        )
        raise ValueError(f"{problem}{note}") from None


def image_size(path: Path) -> tuple[int, int]:
    """Return width and height of an image file after it is turned as EXIF says, as mmcv turns it.

    Raises:
        ValueError: If the file is not an image. Only its header is read.
    """
    try:
        with Image.open(path) as image:
            return image.size[::-1] if read_orientation(image) >= 5 else image.size
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def read_orientation(image: Image.Image) -> int:
    """Return EXIF's orientation, 1 to 8, from the header of an image. From 5 on EXIF exchanges
    width and height.
    """
    # Pillow decodes a whole PNG to look for EXIF behind the pixels.
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    orientation = image.getexif().get(ExifTags.Base.Orientation)
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(_ascii_url(url), timeout=60) as response:
            return response.read()
    except (URLError, TimeoutError) as error:
        raise OSError(
            f"{url} cannot be downloaded: {getattr(error, 'reason', error)}; check the address"
        ) from None


def _ascii_url(url: str) -> str:
    """Encode spaces and letters beyond ASCII. Encoded characters stay."""
    parts = urlsplit(url)
    netloc = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    return quote(urlunsplit(parts._replace(netloc=netloc)), safe="%/:;?#[]@!$&'()*+,=~")
