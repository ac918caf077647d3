"""Reading of images from files."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import cv2
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
# Bits of a TIFF's NewSubfileType that mark an image of less resolution or a mask.
_NO_PAGE = 1 | 4
# Bands of a TIFF by its PhotometricInterpretation: RGB, CMYK, YCbCr and CIELab. Others have one.
_PHOTO_BANDS = {2: 3, 5: 4, 6: 3, 8: 3}


def read_image(
    path: str | Path, color_type: str = "color", imdecode_backend: str = "cv2"
) -> np.ndarray:
    """Read an image with mmcv, as `LoadImageFromFile` does.

    Args:
        color_type, imdecode_backend: As in `LoadImageFromFile`.

    Returns:
        By default (H, W, 3), BGR, uint8. OpenCV keeps the upper 8 of 16 bits, Pillow clips them.

    Raises:
        ValueError: If OpenCV cannot decode the file, if it would ignore its orientation, as in HEIC
            and AVIF, or if bands or pages of a TIFF would be dropped.
    """
    encoded = Path(path).read_bytes()
    if not encoded:
        raise ValueError("the file is empty")
    if encoded[4:8] == b"ftyp":
        raise ValueError("it is HEIC, AVIF or a video: convert it as docs/recipes.md shows")
    problem = find_dropped(
        tiff_pages(BytesIO(encoded)), reads_all_bands(color_type, imdecode_backend)
    )
    if problem:
        raise ValueError(f"it has {problem}")
    try:
        image = mmcv.imfrombytes(encoded, color_type, backend=imdecode_backend)
    except cv2.error as error:
        if "CV_IO_MAX_IMAGE" not in str(error):
            raise
        fix = "`xcit-mm raster` reads it by rows"
        raise ValueError(
            f"it has more than 2^30 pixels, or 2^20 a side, which OpenCV refuses: {fix}"
        ) from None
    if image is None:
        raise ValueError("the file is broken or not an image that OpenCV decodes: convert it")
    return np.ascontiguousarray(image)  # Pillow's channels are reversed by a stride


def reads_all_bands(color_type: str, imdecode_backend: str | None) -> bool:
    """Return whether mmcv reads the bands of a TIFF as they are with these arguments."""
    return color_type == "unchanged" or imdecode_backend == "tifffile"


def tiff_pages(file: BinaryIO) -> list[dict[int, Any]]:
    """Read the tags of the first two pages of a TIFF: [] for other files, and for a broken one.

    Images of lower resolution and masks do not count as pages.
    """
    header = file.read(16)
    if header[:4] not in _HEADER_LENGTHS:
        return []
    pages: list[dict[int, Any]] = []
    try:
        tags = ImageFileDirectory_v2(header[: _HEADER_LENGTHS[header[:4]]])
        positions = {0}  # 0 ends the list, and a broken file may lead back
        while tags.next not in positions and len(pages) < 2:
            positions.add(tags.next)
            file.seek(tags.next)
            tags.load(file)
            if not tags.get(ExifTags.Base.NewSubfileType, 0) & _NO_PAGE:
                pages.append(dict(tags))
    except Exception:  # a broken file makes Pillow raise nearly anything
        return []
    return pages


def find_dropped(pages: Sequence[Mapping[int, Any]], keeps_bands: bool = False) -> str:
    """Describe what OpenCV would drop from a TIFF or take for alpha, and what to do.

    Args:
        pages: What `tiff_pages` returns.
        keeps_bands: Whether the bands are read as they are.

    Returns:
        Text such as '4 bands, ...' or 'several pages, ...', or '' for a photo.
    """
    if len(pages) > 1:
        return "several pages, and only the first would be read: split it, for example by tiffsplit"
    for page in pages:
        bands = page.get(ExifTags.Base.SamplesPerPixel, 1)
        interpretation = page.get(ExifTags.Base.PhotometricInterpretation, 0)
        if bands != _PHOTO_BANDS.get(interpretation, 1) and not keeps_bands:
            fix = "use `xcit-mm raster`, or a config as in docs/bands.md"
            return f"{bands} bands, which are not those of a photo: {fix}"
    return ""
