"""`tools/weights.py` inspects and converts files, and reports errors in one line."""

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


@pytest.fixture
def file(tmp_path) -> str:
    torch.save(dict(model=official(16), epoch=3), tmp_path / "file.pth")
    return "file.pth"


def test_inspect_shows_layout_task_architecture_and_metadata(weights, file):
    printed = weights("inspect", file)
    facts = ("official, under 'model'", "classifier", "32x12x4/p16", "0.197 M")
    assert [fact for fact in facts if fact not in printed] == []
    assert "bands       3" in printed
    assert "epoch       3" in printed


@pytest.mark.parametrize(
    "layout, out, keys",
    [
        ("timm", "converted.safetensors", "timm_p16"),
        ("safetensors", "converted.safetensors", "official_p16"),
    ],
)
def test_converted_safetensors_have_the_names_of_the_layout(layout, out, keys, weights, file):
    assert weights("convert", file, out, "--to", layout) == f"{out} ({layout} layout)\n"
    assert load_file(out).keys() == KEYS[keys].keys()


def test_a_converted_file_of_mmpretrain_has_the_same_tensors(weights, file):
    weights("convert", file, "converted.pth", "--to", "mmpretrain")
    tensors = parse_checkpoint(load_from_file("converted.pth")).trunk
    assert all(torch.equal(tensors[key], value) for key, value in official(16).items())


def test_convert_does_not_overwrite(weights, refusal, file):
    assert f"{file} exists" in refusal("weights", "convert", file, file, "--to", "timm")


def test_inspect_shows_metadata_of_any_type_in_one_line_each(weights, tmp_path):
    nested = []
    for _ in range(60):
        nested = [nested, nested]  # 2**60 brackets
    metadata = dict(
        meta=OrderedDict(mmdet_version="2.11.0"),
        args=argparse.Namespace(lr=0.5),
        nested=nested,
        name="a\nb",
    )
    torch.save(dict(metadata, state_dict=official(16)), tmp_path / "file.pth")
    printed = weights("inspect", "file.pth")
    expected = [
        "meta        {'mmdet_version': '2.11.0'}",
        "args        {'lr': 0.5}",
        "nested      [[[",
    ]
    assert "\n".join(expected) in printed
    assert printed.endswith("...\nname        a b\n")


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
