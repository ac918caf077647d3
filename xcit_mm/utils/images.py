"""Reading of images from files."""

import struct
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import mmcv
import numpy as np
from PIL import ExifTags
from PIL.TiffImagePlugin import ImageFileDirectory_v2

PHOTO_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".tif", ".tiff", ".webp"),
    *(".ppm", ".pgm", ".jp2"),
)
"""Suffixes of the images that training and prediction read."""
# Lengths of the headers of TIFF and BigTIFF, by their first bytes.
_HEADER_LENGTHS = {b"II*\0": 8, b"MM\0*": 8, b"II+\0": 16, b"MM\0+": 16}
# Bands of a TIFF by its PhotometricInterpretation: RGB, CMYK, YCbCr and CIELab. Others have one.
_PHOTO_BANDS = {2: 3, 5: 4, 6: 3, 8: 3}


def read_image(
    path: str | Path, color_type: str = "color", imdecode_backend: str = "cv2"
) -> np.ndarray:
    """Read an image by mmcv, as `LoadImageFromFile` does: (H, W, 3), BGR, the upper 8 bits of 16.
    The arguments, as in `LoadImageFromFile`, may give other shapes and types.

    Raises:
        ValueError: If OpenCV cannot decode the file or ignores its orientation, as of HEIC and
            AVIF, or if it is a TIFF with bands that would be dropped.
    """
    encoded = Path(path).read_bytes()
    if encoded[4:8] == b"ftyp":
        raise ValueError("it is HEIC or AVIF: convert it to JPEG, as docs/recipes.md shows")
    bands = count_raster_bands(BytesIO(encoded))
    if bands and not reads_all_bands(color_type, imdecode_backend):
        fix = "`xcit-mm raster` reads them, or a config as in docs/bands.md"
        raise ValueError(f"it has {bands} bands, which are not those of a photo: {fix}")
    image = mmcv.imfrombytes(encoded, color_type, backend=imdecode_backend)
    if image is None:
        raise ValueError("the file is broken or not an image that OpenCV decodes")
    return np.ascontiguousarray(image)  # Pillow's channels are reversed by a stride


def reads_all_bands(color_type: str, imdecode_backend: str | None) -> bool:
    """Return whether mmcv reads bands of a TIFF as they are, with these arguments."""
    return color_type == "unchanged" or imdecode_backend == "tifffile"


def count_raster_bands(file: BinaryIO) -> int:
    """Return the number of bands of a TIFF of which OpenCV would drop some or take one for alpha,
    or 0 for a photo.
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
