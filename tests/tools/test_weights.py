"""`tools/weights.py` inspects and converts files, and reports errors in one line."""

import argparse
import re
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from helpers.weight_files import KEYS, official, path_of, same

from xcit_mm.weights.classes import learned_classes
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
    assert "fault       none" in printed
    assert "epoch       3" in printed


@pytest.mark.parametrize(
    "layout, out, keys",
    [
        ("timm", "converted.safetensors", "timm_p16"),
        ("safetensors", "converted.safetensors", "official_p16"),
        ("mmpretrain", "converted.pth", "mmpretrain_p16"),
    ],
)
def test_a_converted_file_has_the_tensors_under_the_names_of_the_layout(
    layout, out, keys, weights, file
):
    assert weights("convert", file, out, "--to", layout) == f"{out} ({layout} layout)\n"
    content = load_from_file(out)
    tensors = content.get("state_dict", content)
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == KEYS[keys]
    assert same(parse_checkpoint(content).trunk, official(16))


@pytest.mark.parametrize(
    "source, options, left_out",
    [
        ("mmpretrain_p16.pth", ["out.pth", "--to", "mmpretrain"], ""),
        ("mmpretrain_p16.pth", ["out.pth", "--to", "official"], ""),
        ("mmpretrain_p16.pth", ["out.pth", "--to", "timm"], "the names of the classes"),
        (
            "mmpretrain_p16.pth",
            ["out.safetensors", "--to", "mmpretrain"],
            "the names of the classes",
        ),
        ("official-maskrcnn_p16.pth", ["out.pth", "--backbone", "--to", "official"], ""),
        (
            "official-maskrcnn_p16.pth",
            ["out.pth", "--backbone", "--to", "timm"],
            "the trained pyramid",
        ),
        (
            "official-maskrcnn_p16.pth",
            ["out.pth", "--backbone", "--to", "mmpretrain"],
            "the trained pyramid",
        ),
        ("dino-full_p16.pth", ["out.pth", "--to", "timm"], "the head of DINO"),
    ],
)
def test_convert_keeps_the_names_of_classes_or_says_what_it_leaves_out(
    source, options, left_out, weights, tmp_path
):
    content = load_from_file(path_of(source, tmp_path))
    if source.startswith("mmpretrain"):
        content["meta"] = dict(dataset_meta=dict(classes=("a", "b")))
    torch.save(content, "named.pth")
    _, *lines = weights("convert", "named.pth", *options).splitlines()
    reason = f"left out, because {options[0]} has no place for it: "
    assert lines == ([reason + left_out] if left_out else [])
    names = None if left_out or "--backbone" in options else ("a", "b")
    assert learned_classes(load_from_file(options[0])) == names
    assert "fault       none" in weights("inspect", options[0])


NORM = "blocks.3.norm1.bias"
SAVED = official(16)
DETECTOR = {f"backbone.{key}": value for key, value in SAVED.items()}


def without(*prefixes: str) -> dict:
    return {key: value for key, value in SAVED.items() if not key.startswith(prefixes)}


BROKEN = [
    (without("blocks.5."), "it lacks blocks.5."),
    (without("cls_attn_blocks.1."), "it lacks cls_attn_blocks.1."),
    (without("head.weight"), "it lacks head.weight"),
    (without("cls_token"), "it holds the unknown cls_attn_blocks.0."),
    (SAVED | {"fpn1.0.bias": torch.ones(32)}, "it holds the unknown fpn1.0.bias"),
    (SAVED | {NORM: torch.full((32,), torch.nan)}, f"{NORM} with values that are not finite"),
    (SAVED | {NORM: torch.full((32,), torch.inf)}, f"{NORM} with values that are not finite"),
    (DETECTOR | {"neck.x": torch.tensor(torch.inf)}, "neck.x with values that are not finite"),
]
WITHOUT_SIZES = [  # which inspect refuses
    (dict(list(SAVED.items())[::2]), "it lacks "),
    ({f"module.{key}" if "1" in key else key: SAVED[key] for key in SAVED}, "it lacks "),
    (SAVED | {"blocks.99999999.norm1.bias": SAVED[NORM]}, "it has a block 99999999, but "),
]


@pytest.mark.parametrize("state, fault", BROKEN + WITHOUT_SIZES)
def test_a_file_that_fills_no_model_is_not_converted(state, fault, refusal, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    torch.save(state, "broken.pth")
    error = refusal("weights", "convert", "broken.pth", "out.pth", "--to", "timm")
    assert error.startswith("ValueError: broken.pth fills no model: it ") and fault in error
    assert [path.name for path in tmp_path.iterdir()] == ["broken.pth"]


@pytest.mark.parametrize("state, fault", BROKEN)
def test_inspect_shows_why_a_file_fills_no_model(state, fault, weights):
    torch.save(state, "broken.pth")
    (line,) = re.findall("fault .*", weights("inspect", "broken.pth"))
    assert fault in line


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
    assert len(lines) == 70
    files = [dict(zip(heading, line, strict=True)) for line in lines]
    are_dense = [file["training"].startswith(("COCO", "ADE20k")) for file in files]
    assert are_dense == [True] * 24 + [False] * 46
    (downloaded,) = [file for file in files if file["downloaded"] == "yes"]
    assert downloaded["name"] == "xcit://upernet_xcit_tiny_12_p8"
    assert (downloaded["model"], downloaded["pixels"]) == ("t12/p8", "512")
    assert downloaded["URL"].endswith("/xcit/ade/upernet_xcit_tiny_12_p8.pth")


@pytest.mark.parametrize(
    "arguments",
    [["inspect", "page.pth"], ["inspect", "none.pth"], ["inspect", "nowhere://xcit_huge"]],
)
def test_errors_are_one_line(arguments, refusal, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.pth").write_text("<html>")
    assert arguments[1] in refusal("weights", *arguments)
