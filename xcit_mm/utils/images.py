"""Reading of images from files."""

import importlib.util
import struct
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import mmcv
import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.TiffImagePlugin import ImageFileDirectory_v2

TIFF_SUFFIXES = (".tif", ".tiff")
PHOTO_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", *TIFF_SUFFIXES, ".webp"),
    *(".ppm", ".pgm", ".jp2"),
)
"""Suffixes of the images that a training reads."""
IMAGE_SUFFIXES = (*PHOTO_SUFFIXES, ".gif", ".avif", ".heic", ".heif")
"""Suffixes of the images that prediction reads."""
# Length of the header of a TIFF or BigTIFF, by its first bytes.
_HEADER_LENGTHS = {b"II*\0": 8, b"MM\0*": 8, b"II+\0": 16, b"MM\0+": 16}
# Bands of a TIFF by its PhotometricInterpretation: RGB, CMYK, YCbCr and CIELab. Others have one.
_PHOTO_BANDS = {2: 3, 5: 4, 6: 3, 8: 3}


def read_image(
    path: str | Path, color_type: str = "color", imdecode_backend: str = "cv2"
) -> np.ndarray:
    """Read an image, or the first frame of an animation: (H, W, 3), BGR, 8 bits.

    `color_type` and `imdecode_backend`, as in `LoadImageFromFile`, may give other shapes and types.
    Pillow decodes what OpenCV does not.

    Raises:
        ValueError: If the file cannot be decoded, uses at most 14 of 16 bits per channel, or is a
            TIFF with bands that would be dropped.
        OSError: If the file cannot be read.
    """
    encoded = Path(path).read_bytes()
    if not encoded:
        raise ValueError("the file is empty")
    bands = count_raster_bands(BytesIO(encoded))
    if bands and not reads_all_bands(color_type, imdecode_backend):
        fix = "`xcit-mm raster` reads them, or a config as in docs/bands.md"
        raise ValueError(f"it has {bands} bands, which are not those of a photo: {fix}")
    is_heif = encoded[4:8] == b"ftyp"  # HEIC or AVIF, which not every version of OpenCV reads
    if is_heif and importlib.util.find_spec("pillow_heif"):
        importlib.import_module("pillow_heif").register_heif_opener()
    image = None if is_heif else mmcv.imfrombytes(encoded, color_type, backend=imdecode_backend)
    if image is None:
        image = _decode_by_pillow(encoded, color_type, is_heif)
    elif image.max() < 64:
        stored = mmcv.imfrombytes(encoded, "unchanged", backend="cv2")
        # OpenCV keeps the upper 8 of 16 bits: below 64 if a camera uses 14 bits or fewer.
        if stored is not None and stored.itemsize > 1:
            problem = "the image uses few of its 16 bits and would be nearly black"
            raise ValueError(f"{problem}: `xcit-mm raster` scales it")
    return np.ascontiguousarray(image)  # Pillow's channels are reversed by a stride


def reads_all_bands(color_type: str, imdecode_backend: str | None) -> bool:
    """Return whether mmcv reads bands of a TIFF as they are, with these arguments."""
    return color_type == "unchanged" or imdecode_backend == "tifffile"


def count_raster_bands(file: BinaryIO) -> int:
    """Return the number of bands of a TIFF of which OpenCV would drop some, or multiply three by a
    fourth, as by an alpha channel. Return 0 for a TIFF of a photo and for other formats.
    """
    header = file.read(16)
    if header[:4] not in _HEADER_LENGTHS:
        return 0
    try:
        tags = ImageFileDirectory_v2(header[: _HEADER_LENGTHS[header[:4]]])
        file.seek(tags.next)
        tags.load(file)
    except (SyntaxError, struct.error, OSError):  # a broken file, which the decoder reports
        return 0
    bands = tags.get(ExifTags.Base.SamplesPerPixel, 1)
    interpretation = tags.get(ExifTags.Base.PhotometricInterpretation, 0)
    return 0 if bands == _PHOTO_BANDS.get(interpretation, 1) else bands


def _decode_by_pillow(encoded: bytes, color_type: str, is_heif: bool) -> np.ndarray:
    """Decode an image in BGR, or raise ValueError, which says what is wrong with the file."""
    try:
        mode = Image.open(BytesIO(encoded)).mode
        if mode.startswith(("I", "F")):  # which Pillow cuts off at 255
            raise ValueError(f"OpenCV does not decode its more than 8 bits (Pillow's mode {mode})")
        return mmcv.imfrombytes(encoded, color_type, backend="pillow")
    except (OSError, ValueError, SyntaxError) as error:
        problem = str(error)
        if isinstance(error, UnidentifiedImageError):
            problem = "the file is broken or not an image"
        if encoded[:2] in (b"II", b"MM"):
            problem += ": a raster is for `xcit-mm raster`"
        if is_heif:
            fix = "HEIC needs pillow-heif: pip install pillow-heif"
            problem = f"Pillow does not read the image; {fix}"
        raise ValueError(problem) from None


def read_orientation(image: Image.Image) -> int:
    """Return EXIF's orientation, 1 to 8, of an image. From 5 on, width and height are exchanged."""
    # Pillow decodes a whole PNG to look for EXIF behind the pixels.
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    orientation = image.getexif().get(ExifTags.Base.Orientation)
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1
