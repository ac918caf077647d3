"""Files that users have are read, other files raise an error of one line, and no file runs anything."""

import argparse
import functools
import os
import tarfile
import zipfile
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath, PureWindowsPath
from pickle import UnpicklingError

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim import OneCycleLR
from mmengine.runner import CheckpointLoader
from safetensors.torch import save_file
from weight_files import MINI, same

from xcit_mm import XCiT
from xcit_mm.weights.matching import load_pretrained
from xcit_mm.weights.reader import load_from_file


class Calls:
    """Pickled as a call of a function."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple:
        return self.call


class Runs:
    """Pickled by its own class, which runs code when it is made."""

    def __setstate__(self, state: object) -> None:
        Path("ran").touch()


def saved(content: object, path: str | Path = "file.pth", **options: object) -> bytes:
    torch.save(content, path, **options)
    return Path(path).read_bytes()


def flipped(content: bytes, marker: bytes) -> bytes:
    """A copy of a file with another byte after a marker."""
    place = content.index(marker) + len(marker)
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


def tar() -> bytes:
    with tarfile.open("file.tar", "w") as archive:
        archive.add(__file__)
    return Path("file.tar").read_bytes()


def torchscript() -> bytes:
    torch.jit.script(torch.nn.Linear(2, 2)).save("file.pt")
    return Path("file.pt").read_bytes()


def zip_of_text() -> bytes:
    with zipfile.ZipFile("file.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    return Path("file.zip").read_bytes()


def safetensors() -> bytes:
    save_file(dict(w=torch.ones(1000)), "file.safetensors")
    return Path("file.safetensors").read_bytes()


REFUSED = {
    "os.system": (lambda: saved(Calls(os.system, "touch ran")), "it names posix.system, which might run code"),
    "eval": (lambda: saved(Calls(eval, "open('ran', 'w')")), "it names .*eval, which might"),
    "import": (lambda: saved(Calls(getattr, Calls(__import__, "os"), "system")), "it names .*__import__"),
    "getattr": (lambda: saved(Calls(getattr, HistoryBuffer, "__init__")), "asks for the attribute __init__"),
    "method": (lambda: saved(Calls(getattr, Calls(dict), "update")), "asks for the attribute update of {}"),
    "chain": (
        lambda: saved(Calls(getattr, Calls(getattr, HistoryBuffer, "mean"), "__globals__")),
        "asks for the attribute __globals__",
    ),
    "class": (lambda: saved(Runs()), r"it names test_reader.Runs, which might run code: save its weights alone"),
    "partial": (lambda: saved(functools.partial(os.system, "touch ran")), "it names functools.partial"),
    "os.system, old format": (
        lambda: saved(Calls(os.system, "touch ran"), _use_new_zipfile_serialization=False),
        "it names posix.system",
    ),
    "truncated": (lambda: saved(XCiT(MINI).state_dict())[:-5000], "truncated or damaged, download or copy it again"),
    "truncated, old format": (
        lambda: saved(XCiT(MINI).state_dict(), _use_new_zipfile_serialization=False)[:-5000],
        "truncated or damaged, download or copy it again",
    ),
    "damaged": (lambda: flipped(saved(dict(a=torch.ones(3))), b"collections\nOrdered"), "its record file/data.pkl is"),
    "truncated safetensors": (lambda: safetensors()[:-50], "truncated or damaged, download or copy it again"),
    "TorchScript": (torchscript, "a TorchScript archive, which holds code: save the module's state_dict()"),
    "tar": (tar, "a tar archive: extract it"),
    "zip of text": (zip_of_text, "no data.pkl"),
    "web page": (lambda: b"\n<!DOCTYPE html><html>404</html>", "a web page, probably of a failed download"),
    "empty": (lambda: b"", "it is empty"),
    "text": (lambda: b"hello", "neither torch nor safetensors"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_file_runs_nothing_and_gives_one_line(kind):
    content, message = REFUSED[kind]
    written = content()
    Path("file.pth").write_bytes(written)
    with pytest.raises(ValueError, match=message) as error:
        load_from_file("file.pth")
    assert "\n" not in str(error.value) and "file.pth" in str(error.value)
    assert not Path("ran").exists()


def test_a_damaged_byte_gives_one_line():
    content = saved(dict(a=torch.ones(3), args=argparse.Namespace(lr=0.1)))
    for place in range(0, len(content), 3):
        Path("file.pth").write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        try:
            load_from_file("file.pth")
        except ValueError as error:
            assert "\n" not in str(error)


FORMATS = dict(now={}, before=dict(_use_new_zipfile_serialization=False))  # before torch 1.6


@pytest.mark.parametrize("written", FORMATS)
def test_what_training_files_hold_is_read_as_it_is(written):
    weights = OrderedDict(a=torch.ones(3), b=torch.ones(2, dtype=torch.bfloat16), c=torch.ones(2).char())
    held = dict(
        numbers=[np.float32(1.5), np.int64(3), np.bool_(True), 2**70, 1j, torch.float16, torch.Size((1, 2))],
        arrays=[np.zeros((0, 4)), np.arange(3), np.array(["a", "bc"]), np.array([True])],
        sets=[{1, 2}, frozenset("a"), b"abc", b"", {("circle", 1): 0.5}],
        metainfo=ConfigDict(a=dict(b=[dict(c=1)])),
        device=torch.device("cuda", 1),
    )
    saved({**held, "weights": weights, "log": HistoryBuffer([1, 3], [1, 1])}, **FORMATS[written])
    found = load_from_file("file.pth")
    assert same(found.pop("weights"), weights)
    assert found.pop("log").statistics("mean") == 2
    np.testing.assert_equal(found, held)
    assert type(found["metainfo"].a.b[0]) is ConfigDict


def test_other_objects_of_a_training_become_plain_values():
    args = argparse.Namespace(lr=0.1, out=Path("/runs/one"), data=PureWindowsPath("c:/images"), last=deque([1, 2], 2))
    config = Config(dict(model=dict(type="XCiT")))
    saved(dict(args=args, seen=defaultdict(list, loss=[1.0]), none=defaultdict(int), config=config))
    found = load_from_file("file.pth")
    assert found == dict(args=found["args"], seen=dict(loss=[1.0]), none={}, config=dict(model=dict(type="XCiT")))
    paths = dict(out=PurePosixPath("/runs/one"), data=PureWindowsPath("c:/images"))
    assert vars(found["args"]) == dict(lr=0.1, last=[1, 2], **paths)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16, torch.float16])
def test_tensors_of_small_types_are_read(dtype):
    saved(dict(w=torch.ones(3).to(dtype)))
    assert torch.equal(load_from_file("file.pth")["w"].float(), torch.ones(3))


def test_nan_of_a_small_type_is_found():
    state = XCiT(MINI).state_dict()
    state["blocks.0.norm1.bias"] = torch.full((16,), float("nan")).to(torch.float8_e4m3fn)
    save_file(state, "file.safetensors")
    with pytest.raises(ValueError, match=r"blocks\.0\.norm1\.bias with values that are not finite"):
        load_pretrained(XCiT(MINI), "file.safetensors")


def test_mmengine_s_one_cycle_schedule_is_resumed_from_its_file():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    saved(dict(param_schedulers=[OneCycleLR(optimizer, eta_max=0.1, total_steps=9).state_dict()]))
    for found in (load_from_file("file.pth"), CheckpointLoader.load_checkpoint("file.pth", "cpu")):
        schedule = OneCycleLR(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1), 0.1, total_steps=9)
        schedule.load_state_dict(found["param_schedulers"][0])
        schedule.step()


def test_mmengine_reads_other_models_files_as_without_this_package():
    saved(dict(last=deque([1])))
    with pytest.raises(UnpicklingError, match=r"collections\.deque"):
        CheckpointLoader.load_checkpoint("file.pth", "cpu")
    assert load_from_file("file.pth") == dict(last=[1])
    with torch.serialization.safe_globals([argparse.Namespace]):  # as another library may want
        load_from_file("file.pth")
        assert argparse.Namespace in torch.serialization.get_safe_globals()


def test_mmengine_reads_safetensors_which_it_cannot_without_this_package():
    safetensors()
    found = CheckpointLoader.load_checkpoint("file.safetensors", "cpu")
    assert torch.equal(found["w"], torch.ones(1000))


def test_safetensors_of_any_name_and_length_of_header_are_read():
    for pad in range(0, 256, 24):
        save_file(dict(w=torch.ones(2)), "file.bin", metadata=dict(pad="x" * pad))
        assert torch.equal(load_from_file("file.bin")["w"], torch.ones(2))


def test_only_the_used_tensors_of_a_training_file_are_read():
    saved(dict(model=dict(w=torch.ones(3)), optimizer=torch.zeros(2**25)))
    before = Path("/proc/self/statm").read_text().split()[1]
    found = load_from_file("file.pth")
    assert found["model"]["w"].sum() == 3
    pages = int(Path("/proc/self/statm").read_text().split()[1]) - int(before)
    assert pages * os.sysconf("SC_PAGESIZE") < 2**25 and len(found["optimizer"]) == 2**25


def test_threads_read_at_once():
    saved(dict(a=torch.ones(3), args=argparse.Namespace(lr=0.1), seen=defaultdict(list)))
    with ThreadPoolExecutor(8) as pool:
        assert all(found["args"].lr == 0.1 for found in pool.map(load_from_file, ["file.pth"] * 100))
