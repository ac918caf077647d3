"""Wrong arguments and images of a backbone are named in one line; initialisation prints one."""

import pytest
import torch
from mmengine.logging import MMLogger

from xcit_mm import XCiT, XCiTClassifier

TINY = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        (dict(arch="s13"), "'s13'.*n12, t12"),
        (dict(arch=dict(TINY, embed_dim=30)), "num_heads=4.*embed_dim=30"),
        (dict(arch=dict(TINY, embed_dim=36)), "embed_dim=36.*8"),
        (dict(arch=dict(TINY, depth=2)), "depth 2"),
        (dict(arch=dict(TINY, norm=1)), "num_heads, eta"),
        (dict(arch=dict(TINY, tokens_norm=1)), "tokens_norm=1"),
        (dict(patch_size=7), "patch_size=7.*16, 8"),
        (dict(attn_implementation="gram"), "'gram'.* covariance"),
        (dict(out_indices=(3, 5, 7, 12)), r"12\).*0 to 11"),
        (dict(out_indices=(5, 3)), "increasing"),
        (dict(out_indices=(0, 1, 2, 3, 4)), r"\(4, 8, 16, 32\)"),
        (dict(strides=(4, 64)), "64.*4, 8, 16, 32"),
        (dict(frozen_stages=13), "frozen_stages=13.*12"),
        (dict(drop_path_rate=1.0), "drop_path_rate=1.0"),
        (dict(in_channels="3"), "in_channels='3'"),
        (dict(init_cfg=dict(checkpoint="x.pth")), "x.pth.*'Pretrained'"),
        (
            dict(init_cfg=dict(type="Pretrained", checkpoint="x.pth", strict_heads=0)),
            "strict_heads",
        ),
    ],
)
def test_invalid_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message) as error, torch.device("meta"):
        XCiT(**{"arch": "n12", **kwargs})
    assert "\n" not in str(error.value)


def test_an_invalid_number_of_classes_is_named():
    with pytest.raises(ValueError, match="num_classes=-1"), torch.device("meta"):
        XCiTClassifier("n12", num_classes=-1)


@pytest.mark.parametrize(
    "model, kwargs, message",
    [
        (XCiT, dict(depth=50, style="pytorch"), "XCiT has no argument depth, style.*_delete_=True"),
        (XCiTClassifier, dict(strides=(4,)), "XCiTClassifier has no argument strides"),
    ],
)
def test_unknown_arguments_are_named(model, kwargs, message):
    with pytest.raises(TypeError, match=message) as error, torch.device("meta"):
        model(arch="n12", **kwargs)
    assert "\n" not in str(error.value)


def test_initialisation_prints_one_line(tmp_path, capsys, monkeypatch):
    # No run has begun a log file.
    monkeypatch.setattr(MMLogger, "_instance_dict", type(MMLogger._instance_dict)())
    file = tmp_path / "own.pth"
    torch.save(XCiT(TINY).state_dict(), file)
    model = XCiT(TINY, init_cfg=dict(type="Pretrained", checkpoint=str(file)))
    model.init_weights()
    printed = "".join(capsys.readouterr())
    assert f"tensors of 32x6x4/p16 (official layout) from {file}" in printed
    assert len(printed.splitlines()) <= 2  # the second is mmengine's, about the file


@pytest.mark.parametrize(
    "shape, message",
    [
        ((1, 4, 64, 64), r"\(1, 4, 64, 64\).*\(B, 3, H, W\).*in_channels"),
        ((3, 64, 64), r"\(3, 64, 64\).*\(B, 3, H, W\)"),
        ((1, 3, 64, 20), "32 pixels"),
    ],
)
def test_invalid_images_are_rejected(shape, message):
    with torch.device("meta"), pytest.raises(ValueError, match=message):
        XCiT(TINY)(torch.empty(shape))
