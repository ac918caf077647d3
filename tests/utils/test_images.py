"""Images of every kind are read as they look, or have a reason why not."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import Base

from xcit_mm.datasets.headers import read_headers
from xcit_mm.utils.images import read_image

RNG = np.random.default_rng(0)
BLOCKS = RNG.integers(0, 256, (6, 9, 3)).astype(np.uint8)
PIXELS = cv2.resize(BLOCKS, (96, 64), interpolation=cv2.INTER_CUBIC)


# An orientation that Pillow heeds and OpenCV does not.
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def encoded(
    file_format: str, mode: str = "RGB", pixels: np.ndarray = PIXELS, **options: object
) -> bytes:
    image = Image.fromarray(pixels[..., ::-1])
    image = image.quantize(64) if mode == "P" else image.convert(mode)
    content = io.BytesIO()
    image.save(content, file_format, **options)
    return content.getvalue()


def turned(file_format: str, **options: object) -> bytes:
    exif = Image.Exif()
    exif[0x112] = 6  # turned by 90 degrees
    return encoded(file_format, pixels=np.rot90(PIXELS), exif=exif, **options)


def opencv(suffix: str, image: np.ndarray) -> bytes:
    return cv2.imencode(suffix, image)[1].tobytes()


def as_grey(content: bytes) -> bytes:
    """Return a TIFF whose bands are colors no longer, as rasterio writes 16 bits."""
    interpretation = struct.pack("<HHII", 262, 3, 1, 2)
    assert interpretation in content
    return content.replace(interpretation, struct.pack("<HHII", 262, 3, 1, 1))


def pages(**second: object) -> bytes:
    """Return a TIFF of two images, the second with these tags."""
    image = Image.fromarray(PIXELS[..., ::-1])
    other = Image.fromarray(BLOCKS)
    other.encoderinfo = dict(tiffinfo={getattr(Base, name): tag for name, tag in second.items()})
    content = io.BytesIO()
    image.save(content, "TIFF", save_all=True, append_images=[other])
    return content.getvalue()


def huge() -> bytes:
    """Return a PNG that says it has 40,000 x 40,000 pixels."""
    header = struct.pack(">2I5B", 40000, 40000, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in parts:
        checksum = struct.pack(">I", zlib.crc32(name + data))
        content += struct.pack(">I", len(data)) + name + data + checksum
    return content


READABLE = {  # and the mean deviation of a pixel
    "cmyk.jpg": (encoded("JPEG", "CMYK", quality=95), 4),
    "turned.jpg": (turned("JPEG", quality=95), 4),
    "turned.tif": (turned("TIFF"), 0),
    "xmp.jpg": (encoded("JPEG", xmp=XMP, quality=95), 4),
    "palette.png": (encoded("PNG", "P"), 16),
    "rgba.png": (encoded("PNG", "RGBA"), 0),
    "16bit.tif": (opencv(".tif", PIXELS.astype(np.uint16) * 257), 0),
    "cmyk.tif": (encoded("TIFF", "CMYK"), 4),
    "palette.tif": (encoded("TIFF", "P"), 16),
    "overview.tif": (pages(NewSubfileType=1), 0),
}
UNREADABLE = {
    "empty.jpg": (b"", "the file is empty"),
    "truncated.tif": (encoded("TIFF")[:9000], "broken or not an image"),
    "float.tif": (encoded("TIFF", "F"), "not an image that OpenCV decodes"),
    "bands.tif": (opencv(".tif", np.dstack([PIXELS, PIXELS[..., 0]])), "4 bands, .*docs/bands"),
    "grey.tif": (as_grey(encoded("TIFF")), "it has 3 bands"),
    "big.tif": (encoded("TIFF", "RGBA", big_tiff=True), "it has 4 bands"),
    "pages.tif": (pages(), "it has several pages, and only the first would be read"),
    "offset.tif": (b"II+\0\x08\0\0\0" + b"\xff" * 8, "broken or not an image"),
    "huge.png": (huge(), "it has more than 2.30 pixels, .* `xcit-mm raster` reads it by rows"),
    "renamed.jpg": (b"\0\0\0\x18ftypheic" + b"\0" * 99, "HEIC, AVIF or a video: .*docs/recipes"),
}


@pytest.mark.parametrize("name", READABLE)
def test_an_image_is_read_as_it_looks(name, tmp_path):
    content, tolerance = READABLE[name]
    (tmp_path / name).write_bytes(content)
    image = read_image(tmp_path / name)
    assert image.shape == PIXELS.shape and image.dtype == np.uint8 and image.flags.c_contiguous
    assert np.abs(image.astype(int) - PIXELS).mean() <= tolerance
    (header,) = read_headers([tmp_path / name])
    assert (header.height, header.width) == PIXELS.shape[:2]


@pytest.mark.parametrize("count, dtype", [(4, np.uint16), (5, np.uint8), (2, np.float32)])
def test_the_size_of_a_tiff_of_other_bands_is_read(count, dtype, tmp_path):
    """Pillow opens none of these."""
    raster_files = pytest.importorskip("helpers.raster_files")
    path = raster_files.save(tmp_path / "bands.tif", np.ones((count, 20, 30), dtype))
    (header,) = read_headers([path])
    assert header[:4] == (30, 20, count, dtype != np.uint8)
    assert header.dropped.startswith(f"{count} bands, which are not those of a photo")


def test_a_header_is_read_up_to_the_size_that_opencv_reads(tmp_path):
    Image.new("1", (14000, 14000)).save(tmp_path / "large.png")
    (header,) = read_headers([tmp_path / "large.png"])
    assert header.width == 14000


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_image_has_a_reason(name, tmp_path):
    content, message = UNREADABLE[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_image(tmp_path / name)
