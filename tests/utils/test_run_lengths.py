"""Masks are coded as by pycocotools, and also in images of more pixels than pycocotools counts."""

import numpy as np
import pytest
from pycocotools.mask import encode, merge, toBbox

from xcit_mm.utils.run_lengths import compress_counts, decode_crop, encode_mask, mask_areas, parse_counts, unite_masks


@pytest.mark.parametrize("density", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("seed", range(10))
def test_codes_equal_those_of_pycocotools(density, seed):
    rng = np.random.default_rng(seed)
    height, width = rng.integers(5, 60, 2)
    h, w = rng.integers(1, height + 1), rng.integers(1, width + 1)
    y, x = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
    mask = rng.random((h, w)) < density
    image = np.zeros((height, width), np.uint8, order="F")
    image[y : y + h, x : x + w] = mask
    code = encode_mask(mask, (y, x), (height, width))
    assert code == encode(image)
    counts = parse_counts(code["counts"])
    assert compress_counts(counts) == code["counts"]
    np.testing.assert_array_equal(counts, parse_counts(code["counts"].decode()))
    np.testing.assert_array_equal((np.arange(len(counts)) % 2).repeat(counts), image.ravel(order="F"))

    crop = decode_crop(code["counts"], height, width)
    decoded = np.zeros_like(image)
    if crop is not None:
        assert (crop.left, crop.top, *crop.mask.shape[::-1]) == tuple(toBbox(code))
        decoded[crop.top :, crop.left :][: crop.mask.shape[0], : crop.mask.shape[1]] = crop.mask
    np.testing.assert_array_equal(decoded, image)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("density", [0, 0.3, 0.9, 1])
def test_unions_equal_those_of_pycocotools(density, count):
    rng = np.random.default_rng(count)
    masks = [np.asfortranarray(rng.random((9, 13)) < density, np.uint8) for _ in range(count)]
    codes = [encode_mask(mask > 0) for mask in masks]
    assert unite_masks(codes) == merge(encode(np.stack(masks, axis=2, out=np.empty((9, 13, count), np.uint8, "F"))))


def test_pixels_that_masks_share_are_counted_in_windows():
    rng = np.random.default_rng(0)
    shape, count = (40, 50), 30
    masks = rng.random((count, *shape)) < rng.choice([0, 0.2, 0.9, 1], (count, 1, 1))
    first, second = rng.integers(0, count, (2, 200))
    corners = np.sort(rng.integers(0, 40, (2, 200, 2)), axis=0)
    windows = np.hstack(corners)
    found = mask_areas([encode_mask(mask) for mask in masks], first, second, windows)
    for one, two, (left, top, right, bottom), areas in zip(first, second, windows, found.T, strict=True):
        pair = masks[[one, two], top:bottom, left:right]
        assert areas.tolist() == [pair.all(axis=0).sum(), *pair.sum(axis=(1, 2))]
    assert mask_areas([], np.zeros(0, int), np.zeros(0, int), np.zeros((0, 4))).shape == (3, 0)


def test_a_mask_in_an_image_of_10_gigapixels_takes_the_memory_of_its_box():
    mask = np.random.default_rng(0).random((20, 30)) < 0.5
    mask[[0, -1], :] = mask[:, [0, -1]] = True
    code = encode_mask(mask, (70_000, 99_000), (100_000, 100_000))
    crop = decode_crop(code["counts"], 100_000, 100_000)
    assert (crop.top, crop.left) == (70_000, 99_000) and np.array_equal(crop.mask, mask)


@pytest.mark.parametrize(
    "counts", ["a b", "0", b"\xff", "PPPPPPPPPPPPPP0", encode_mask(np.ones((5, 5), bool))["counts"][:1]]
)
def test_invalid_codes_raise(counts):
    with pytest.raises(ValueError, match="run-length code"):
        decode_crop(counts, 1000, 1000)
