"""Pixels without data act as what lies beyond the border of an image."""

import pytest
import torch
import torch.nn.functional as F
from helpers.golden import assert_close, fill, image
from helpers.small_models import TRUNK

from xcit_mm import TimmPyramid, XCiT, XCiTClassifier
from xcit_mm.models import Trunk, prepare_for_inference

BN = dict(type="BN")


def build(patch_size: int = 16, prepared: bool = False, **options) -> XCiT:
    """Without a positional encoding, which depends on the size of the whole image."""
    options = dict(out_indices=(0, 1, 2, 3), use_pos=False, norm_cfg=BN) | options
    model = fill(XCiT(TRUNK, patch_size, **options))
    return prepare_for_inference(model) if prepared else model


@pytest.mark.parametrize(
    "patch_size, implementation, prepared, stem",
    [
        (16, "plain", False, "conv"),
        (16, "covariance", True, "linear"),
        (8, "plain", True, "conv"),
        (8, "covariance", False, "conv"),
    ],
)
def test_parts_in_frames_have_the_maps_of_the_parts_alone(
    patch_size, implementation, prepared, stem
):
    """Whatever the frames hold, the maps are zero there."""
    options = dict(attn_implementation=implementation, patch_embed=stem)
    model = build(patch_size, prepared, **options)
    parts = [(slice(32, 150), slice(64, 215)), (slice(96, 192), slice(0, 96))]
    frames = torch.full((2, 3, 192, 224), torch.nan)
    masks = [torch.zeros(192, 224, dtype=torch.bool), torch.zeros(192, 96, dtype=torch.bool)]
    for frame, mask, part in zip(frames, masks, parts, strict=True):
        frame[:, part[0], part[1]] = image(192, 224)[0, :, part[0], part[1]]
        mask[part] = True
    with torch.inference_mode():
        with model.valid(masks):
            maps = [*Trunk.forward(model, frames), *model(frames)]
        for index, (rows, columns) in enumerate(parts):
            alone = frames[index : index + 1, :, rows, columns]
            expected = [*Trunk.forward(model, alone), *model(alone)]
            strides = [*[patch_size] * 4, *model.strides]
            for feature_map, other, stride in zip(maps, expected, strides, strict=True):
                own = feature_map[index : index + 1].clone()
                area = own[..., rows.start // stride :, columns.start // stride :]
                # The maximum of stride 32 drops an odd last row of the part alone.
                area = area[..., : other.shape[2], : other.shape[3]]
                assert_close([area], [other])
                area.zero_()
                assert not own.any() or stride > patch_size


def test_the_maximum_of_a_cell_of_stride_32_is_that_of_its_tokens_with_data():
    model = build(strides=(16, 32), out_indices=(0, 1))
    mask = torch.ones(80, 64, dtype=torch.bool)
    images = image(96, 96).float()
    with torch.inference_mode(), model.valid([mask]):
        _, tap = Trunk.forward(model, images)
        _, coarse = model(images)
    expected = F.max_pool2d(tap[..., :5, :4], 2, ceil_mode=True)
    assert expected.min() < 0
    torch.testing.assert_close(coarse, F.pad(expected, (0, 1)))


def test_an_image_without_data_has_maps_of_zeros_and_a_full_one_those_without_masks():
    model = build(8)
    images = image(75, 101, batch=2).float()
    masks = torch.ones(2, 75, 101, dtype=torch.bool)
    masks[0] = False
    with torch.inference_mode():
        expected = model(images[1:])
        with model.valid(masks):
            maps = model(images)
        with model.valid(masks[1:]):
            assert all(map(torch.equal, model(images[1:]), expected))
    for feature_map, other in zip(maps, expected, strict=True):
        assert not feature_map[0].any()
        assert_close([feature_map[1:]], [other])


@pytest.mark.parametrize("with_cp", [False, True, "bands"])
def test_masks_are_refused_with_gradients(with_cp):
    model = Trunk(TRUNK, out_indices=(3,), norm_cfg=BN, norm_eval=True, with_cp=with_cp)
    with model.valid(torch.zeros(1, 64, 64)), pytest.raises(RuntimeError, match="no_grad"):
        model(image(64, 64).float())


def test_masks_are_refused_by_other_networks():
    classifier = XCiTClassifier(TRUNK, num_classes=2, norm_cfg=BN)
    with (
        pytest.raises(ValueError, match="XCiTClassifier cannot leave out pixels"),
        classifier.valid([]),
    ):
        pass
    # It is built in an environment with timm only.
    assert not TimmPyramid.can_leave_out_pixels
