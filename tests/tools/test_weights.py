"""`tools/weights.py` inspects files, converts them to other layouts, and reports errors in one
line.
"""

import argparse
import re
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from helpers.weight_files import KEYS, official
from safetensors.torch import load_file

from xcit_mm.weights.layouts import parse_checkpoint
from xcit_mm.weights.reader import load_from_file


@pytest.fixture
def weights(call, monkeypatch, tmp_path) -> Callable[..., str]:
    """Runs the tool in an empty folder and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: call("weights", *arguments)[1]


def test_inspect_and_convert(weights, refusal, tmp_path):
    torch.save(dict(model=official(16), epoch=3), tmp_path / "file.pth")
    text = weights("inspect", "file.pth")
    for expected in (
        "official, under 'model'",
        "classifier",
        "32x12x4/p16",
        "bands       3",
        "0.197 M",
        "epoch       3",
    ):
        assert expected in text
    for layout, out in [
        ("timm", "t.safetensors"),
        ("mmpretrain", "m.pth"),
        ("safetensors", "s.safetensors"),
    ]:
        assert weights("convert", "file.pth", out, "--to", layout) == f"{out} ({layout} layout)\n"
    assert load_file(tmp_path / "t.safetensors").keys() == KEYS["timm_p16"].keys()
    assert load_file(tmp_path / "s.safetensors").keys() == KEYS["official_p16"].keys()
    back = parse_checkpoint(load_from_file(str(tmp_path / "m.pth"))).trunk
    assert all(torch.equal(back[key], value) for key, value in official(16).items())
    assert "m.pth exists" in refusal("weights", "convert", "file.pth", "m.pth", "--to", "timm")


def test_inspect_shows_metadata_of_any_kind_in_one_line_each(weights, tmp_path):
    args, meta = argparse.Namespace(lr=0.5), OrderedDict(mmdet_version="2.11.0")
    nested = []
    for _ in range(60):
        nested = [nested, nested]  # 2**60 brackets
    torch.save(
        dict(meta=meta, state_dict=official(16), args=args, nested=nested, name="a\nb"),
        tmp_path / "file.pth",
    )
    text = weights("inspect", "file.pth")
    assert (
        "meta        {'mmdet_version': '2.11.0'}\nargs        {'lr': 0.5}\nnested      [[[" in text
    )
    assert text.endswith("...\nname        a b\n")


def test_list_has_a_heading_and_begins_with_detectors_and_segmentors(
    weights, monkeypatch, tmp_path
):
    monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path))
    (tmp_path / "upernet_xcit_tiny_12_p8.pth").touch()
    heading, *lines = [re.split(r"  +", line) for line in weights("list").splitlines()]
    facts = ["name", "downloaded", "model", "pixels", "training", "licence", "URL"]
    assert heading == facts and len(lines) == 70
    files = [dict(zip(facts, line, strict=True)) for line in lines]
    are_dense = [file["training"].startswith(("COCO", "ADE20k")) for file in files]
    assert are_dense == [True] * 24 + [False] * 46
    (downloaded,) = [file for file in files if file["downloaded"] == "yes"]
    assert downloaded == dict(
        name="xcit://upernet_xcit_tiny_12_p8",
        downloaded="yes",
        model="t12/p8",
        pixels="512",
        training="ADE20k, UperNet",
        licence="Apache-2.0",
        URL="https://dl.fbaipublicfiles.com/xcit/ade/upernet_xcit_tiny_12_p8.pth",
    )


@pytest.mark.parametrize(
    "arguments",
    [["inspect", "page.pth"], ["inspect", "none.pth"], ["inspect", "nowhere://xcit_huge"]],
)
def test_errors_are_one_line(arguments, refusal, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.pth").write_text("<html>")
    assert arguments[1] in refusal("weights", *arguments)
