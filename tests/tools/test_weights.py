"""`xcit-mm weights` lists and inspects files."""

import re
from collections.abc import Callable

import pytest
import torch
from helpers.weight_files import official

SAVED = official(16)


@pytest.fixture
def weights(call, monkeypatch, tmp_path) -> Callable[..., str]:
    """Runs the tool in an empty folder and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: call("weights", *arguments)[1]


@pytest.mark.parametrize("prefixes", [[""], ["student.", "teacher."]])
def test_inspect_shows_layout_and_architecture_of_each_model(prefixes, weights, tmp_path):
    state = {f"{prefix}{key}": SAVED[key] for prefix in prefixes for key in SAVED}
    torch.save(dict(state_dict=state), tmp_path / "file.pth")
    printed = weights("inspect", "file.pth")
    assert re.findall("prefix +(.*)", printed) == [prefix or "none" for prefix in prefixes]
    facts = ("official", "classifier", "32x12x4/p16", "bands       3")
    assert [fact for fact in facts if fact not in printed] == []


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
