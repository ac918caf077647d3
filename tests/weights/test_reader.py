"""Files that users have are read, other files raise an error of one line, and no file runs
anything.
"""

import argparse
import os
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pytest
import torch
from helpers.weight_files import same
from mmengine.config import Config, ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader
from safetensors.torch import save_file

from xcit_mm.weights.reader import load_from_file

pytestmark = pytest.mark.forks

OLD = dict(_use_new_zipfile_serialization=False)  # as before torch 1.6


class Calls:
    """Pickled as a call of a function."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


def saved(content: object, path: str | Path = "file.pth", **options: object) -> bytes:
    torch.save(content, path, **options)
    return Path(path).read_bytes()


def flipped(content: bytes, marker: bytes) -> bytes:
    """A copy of a file with another byte after a marker."""
    place = content.index(marker) + len(marker)
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


REFUSED = {
    "os.system": (lambda: saved(Calls(os.system, "touch ran")), "names posix.system"),
    "getattr": (lambda: saved(Calls(getattr, HistoryBuffer, "__init__")), "attribute __init__"),
    "module": (lambda: saved(torch.nn.ReLU()), r"names .*ReLU, .* save its weights alone"),
    "truncated": (
        lambda: saved(dict(a=torch.ones(3000)), **OLD)[:-5000],
        "damaged, .*unexpected EOF",
    ),
    "damaged": (
        lambda: flipped(saved(dict(a=torch.ones(3))), b"collections\nOrdered"),
        "damaged, .*UnicodeDecodeError",
    ),
    "TorchScript": (lambda: torch.jit.script(torch.nn.ReLU()).save_to_buffer(), "TorchScript"),
    "web page": (lambda: b"\n<!DOCTYPE html><html>404</html>", "web page, .* download it again"),
    "empty": (lambda: b"", "empty, .* download it again"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("content, message", REFUSED.values(), ids=REFUSED)
def test_a_refused_file_runs_nothing_and_gives_one_line(content, message):
    written = content()
    Path("file.pth").write_bytes(written)
    with pytest.raises(ValueError, match=message) as error:
        load_from_file("file.pth")
    assert "\n" not in str(error.value)
    assert "file.pth" in str(error.value)
    assert not Path("ran").exists()


def test_a_damaged_byte_gives_one_line():
    content = saved(dict(a=torch.ones(3), args=argparse.Namespace(lr=0.1)))
    for place in range(1, len(content), 3):
        Path("file.pth").write_bytes(flipped(content, content[:place]))
        try:
            load_from_file("file.pth")
        except ValueError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("written", [{}, OLD])
def test_what_training_files_hold_is_read_as_it_is(written):
    types = [torch.float32, torch.bfloat16, torch.int8]
    types += [torch.uint16, torch.float8_e4m3fn] if not written else []
    weights = OrderedDict((str(dtype), torch.ones(3).to(dtype)) for dtype in types)
    held = dict(
        numbers=[np.float32(1.5), np.int64(3), np.bool_(True), 2**70, 1j],
        types=[torch.float16, torch.Size((1, 2))],
        arrays=[np.zeros((0, 4)), np.arange(3), np.array(["a", "bc"]), np.array([True])],
        sets=[{1, 2}, frozenset("a"), b"abc", b"", {("circle", 1): 0.5}],
        metainfo=ConfigDict(a=dict(b=[dict(c=1)])),
        device=torch.device("cuda", 1),
    )
    saved({**held, "weights": weights, "log": HistoryBuffer([1, 3], [1, 1])}, **written)
    content = load_from_file("file.pth")
    assert same(content.pop("weights"), weights)
    assert content.pop("log").statistics("mean") == 2
    np.testing.assert_equal(content, held)
    assert type(content["metainfo"].a.b[0]) is ConfigDict


def test_other_objects_of_a_training_become_plain_values():
    args = argparse.Namespace(
        lr=0.1, out=Path("/runs/one"), data=PureWindowsPath("c:/images"), last=deque([1, 2], 2)
    )
    config = Config(dict(model=dict(type="XCiT")))
    saved(dict(args=args, seen=defaultdict(list, loss=[1.0]), none=defaultdict(int), config=config))
    content = load_from_file("file.pth")
    assert content == dict(
        args=content["args"], seen=dict(loss=[1.0]), none={}, config=dict(model=dict(type="XCiT"))
    )
    paths = dict(out=PurePosixPath("/runs/one"), data=PureWindowsPath("c:/images"))
    assert vars(content["args"]) == dict(lr=0.1, last=[1, 2], **paths)


def test_safetensors_of_any_name_and_length_of_header_are_read_in_mmengine_too():
    for pad in range(0, 256, 24):
        save_file(dict(w=torch.ones(2)), "file.bin", metadata=dict(pad="x" * pad))
        assert torch.equal(load_from_file("file.bin")["w"], torch.ones(2))
    Path("file.bin").rename("file.safetensors")
    content = CheckpointLoader.load_checkpoint("file.safetensors", "cpu")
    assert torch.equal(content["w"], torch.ones(2))


def test_only_the_used_tensors_of_a_training_file_are_read():
    saved(dict(model=dict(w=torch.ones(3)), optimizer=torch.zeros(2**25)))
    before = Path("/proc/self/statm").read_text().split()[1]
    content = load_from_file("file.pth")
    assert content["model"]["w"].sum() == 3
    pages = int(Path("/proc/self/statm").read_text().split()[1]) - int(before)
    assert pages * os.sysconf("SC_PAGESIZE") < 2**25
    assert len(content["optimizer"]) == 2**25


def test_threads_read_at_once():
    saved(dict(a=torch.ones(3), args=argparse.Namespace(lr=0.1), seen=defaultdict(list)))
    with ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(load_from_file, ["file.pth"] * 100))
    assert {content["args"].lr for content in contents} == {0.1}
