"""Files that users have are read, other files raise an error of one line, and no file runs
anything.
"""

import argparse
import copyreg
import io
import os
import pickle
import sys
import tarfile
import zipfile
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pytest
import torch
from helpers.weight_files import same
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader
from safetensors.torch import save_file

from xcit_mm.utils.compat import TORCH, load_files_by
from xcit_mm.weights.plain_pickle import load_file
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


@pytest.fixture(autouse=True, params=["torch", "plain_pickle"])
def reader(tmp_path, monkeypatch, request) -> str:
    """Who reads files, here in an empty folder. torch has a reader from 2.6 on."""
    if request.param == "plain_pickle":
        monkeypatch.setattr("xcit_mm.weights.reader.TORCH", (2, 1))
    elif TORCH < (2, 6):
        pytest.skip("torch 2.6 or newer")
    monkeypatch.chdir(tmp_path)
    return request.param


def archive(pickled: bytes) -> bytes:
    """A file of torch whose content is `pickled`, by protocol 2."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("archive/version", "3")
        members.writestr("archive/data.pkl", b"\x80\x02" + pickled)
    return file.getvalue()


def old_file(pickled: bytes) -> bytes:
    """A file as before torch 1.6 whose content is `pickled`."""
    whole = saved(0, **OLD)
    return whole[: whole.index(b"\x80\x02K\x00.")] + b"\x80\x02" + pickled


def tar_with_a_link() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as members:
        link = tarfile.TarInfo("storages")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        members.addfile(link)
    return file.getvalue()


BUFFER = b"cmmengine.logging.history_buffer\nHistoryBuffer\n"
NAMESPACE = b"cargparse\nNamespace\n)\x81"
ATTACKS = {
    "call of a result": b"c__builtin__\ngetattr\n(" + BUFFER + b"X\x03\0\0\0mintRK\x01\x85R.",
    "call of a value": b"ctorch\nfloat32\n)R.",
    "call of a storage": b"ctorch\nFloatStorage\nK\x01\x85R.",
    "state of a class": BUFFER + b"}X\x03\0\0\0minK\x01sb.",
    "state of a list": b"](K\x01K\x02e}b.",
    "state of a tensor's type": b"ctorch\nfloat32\n}b.",
    "new object of a result": NAMESPACE + b")\x81.",
    "new object of a type of torch": b"ctorch._C\n_TensorBase\n)\x81.",
    "name with dots": b"cargparse\nNamespace.__init__\n)R.",
    "name of a module that runs": b"cthis\ns\n.",
    "pickle in a pickle": b"ctorch.storage\n_load_from_bytes\nU\x02..\x85R.",
    "function of a subclass": b"ctorch._tensor\n_rebuild_from_type_v2\n)R.",
    "memo that is empty": b"h\x05.",
    "memo of a refused call": b"cposix\nsystem\nq\x000h\x00U\x09touch ran\x85R.",
    "persistent id of text": b"Pstorage\n.",
    "persistent id of a number": b"K\x01Q.",
    "operation INST": b"(U\x09touch ranios\nsystem\n.",
    "operation OBJ": b"(cos\nsystem\nU\x09touch rano.",
    "operation STACK_GLOBAL": b"U\x02osU\x06system\x93U\x09touch ran\x85R.",
    "operation EXT1": b"\x82\xf0U\x09touch ran\x85R.",
    "operation NEWOBJ_EX": b"cargparse\nNamespace\n)}\x92.",
}


@pytest.mark.parametrize("reader", ["plain_pickle"], indirect=True)
@pytest.mark.parametrize("pickled", ATTACKS.values(), ids=ATTACKS)
def test_a_written_pickle_runs_and_imports_nothing(pickled, reader, monkeypatch):
    """In both formats of files."""
    monkeypatch.setitem(copyreg._inverted_registry, 240, ("posix", "system"))
    for content in (archive(pickled), old_file(pickled)):
        Path("file.pth").write_bytes(content)
        sys.modules.pop("this", None)
        with pytest.raises((pickle.UnpicklingError, AssertionError, LookupError, TypeError)):
            load_file(Path("file.pth"), "cpu", content.startswith(b"PK"))
        assert "this" not in sys.modules
        assert os.listdir() == ["file.pth"]
    assert HistoryBuffer([1], [1]).min() == 1


@pytest.mark.parametrize("reader", ["plain_pickle"], indirect=True)
def test_a_state_that_the_file_chooses_is_not_called(reader):
    state = b"}X\x0c\0\0\0__setstate__cargparse\nNamespace\nsb"
    Path("file.pth").write_bytes(archive(NAMESPACE + state + b"}X\x01\0\0\0aK\x01sb."))
    assert load_file(Path("file.pth"), "cpu", is_zip=True).a == 1


REFUSED = {
    "os.system": (lambda: saved(Calls(os.system, "touch ran")), "names posix.system"),
    "getattr": (lambda: saved(Calls(getattr, HistoryBuffer, "__init__")), "attribute __init__"),
    "module": (lambda: saved(torch.nn.ReLU()), r"names .*ReLU, .* save its weights alone"),
    "source of a class": (
        lambda: old_file(b"(U\x06module" + BUFFER + b"X\x01\0\0\0aX\x01\0\0\0btQ."),
        "outside of the file|Only persistent_load of storage",
    ),
    "truncated": (
        lambda: saved(dict(a=torch.ones(3000)), **OLD)[:-5000],
        "damaged, .*unexpected EOF",
    ),
    "tar with a link": (tar_with_a_link, r"tar archive|\.tar format"),
    "TorchScript": (lambda: torch.jit.script(torch.nn.ReLU()).save_to_buffer(), "TorchScript"),
    "web page": (lambda: b"\n<!DOCTYPE html><html>404</html>", "web page, .* download it again"),
    "empty": (lambda: b"", "empty, .* download it again"),
}


@pytest.mark.parametrize("content, message", REFUSED.values(), ids=REFUSED)
def test_a_refused_file_runs_nothing_and_gives_one_line(content, message):
    Path("file.pth").write_bytes(content())
    with pytest.raises(ValueError, match=message) as error:
        load_from_file("file.pth")
    assert "\n" not in str(error.value)
    assert "file.pth" in str(error.value)
    assert not Path("ran").exists()


def test_a_damaged_byte_gives_one_line():
    content = saved(dict(a=torch.ones(3), args=argparse.Namespace(lr=0.1)))
    for place in range(1, len(content), 11):
        damaged = bytearray(content)
        damaged[place] ^= 255
        Path("file.pth").write_bytes(damaged)
        try:
            load_from_file("file.pth")
        except ValueError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("written", [{}, OLD])
def test_what_training_files_hold_is_read_as_it_is(written, reader):
    types = [torch.float32, torch.bfloat16, torch.int8]
    if reader == "torch" and not written:
        types += [torch.uint16, torch.float8_e4m3fn]
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
    args = argparse.Namespace(lr=0.1, out=Path("/runs/one"), data=PureWindowsPath("c:/images"))
    saved(dict(args=args, seen=defaultdict(list, loss=[1.0]), none=defaultdict(int)))
    content = load_from_file("file.pth")
    assert content == dict(args=content["args"], seen=dict(loss=[1.0]), none={})
    paths = dict(out=PurePosixPath("/runs/one"), data=PureWindowsPath("c:/images"))
    assert vars(content["args"]) == dict(lr=0.1, **paths)


def test_safetensors_of_any_name_are_read_and_in_mmengine_too():
    save_file(dict(w=torch.ones(2)), "file.bin")
    assert torch.equal(load_from_file("file.bin")["w"], torch.ones(2))
    path = r"C:\a model.safetensors"  # on Windows
    Path("file.bin").rename(path)
    assert torch.equal(CheckpointLoader.load_checkpoint(path, "cpu")["w"], torch.ones(2))


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


@pytest.mark.parametrize("reader", ["plain_pickle"], indirect=True)
@pytest.mark.parametrize(
    "name", ["file.pth", "https://host/file.pth", "open-mmlab://vgg16_caffe", "mmcls://vgg11"]
)
def test_mmengine_reads_every_file_in_it_too(name, reader, monkeypatch):
    """`load_from`, `resume` and `init_cfg` of a training, which mmengine reads by `torch.load`."""
    monkeypatch.setattr("xcit_mm.utils.compat.TORCH", (2, 1))
    saved(Calls(os.system, "touch ran"))

    def load(path: str, map_location: str) -> object:
        assert "://" not in path or path.startswith("https://")
        return load_from_file("file.pth", map_location)

    with load_files_by(load), pytest.raises(ValueError, match="names posix"):
        CheckpointLoader.load_checkpoint(name, "cpu")
    assert not Path("ran").exists()
