"""Files that cannot be read, or would do harm, raise an error of one line; they run and change nothing."""

import argparse
import os
import struct
import subprocess
import sys
from collections import OrderedDict, defaultdict, deque
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest
import torch
from hostile_files import (
    ByName,
    Runs,
    archive,
    changed_statistics,
    claiming,
    doubled,
    legacy,
    legacy_with_storages,
    opcodes,
    saved,
    tar,
    tensor_with,
    torchscript,
    with_record,
)
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler
from safetensors.torch import save_file
from weight_files import MINI

from xcit_mm import XCiT
from xcit_mm.weights.matching import load_pretrained
from xcit_mm.weights.reader import load_from_file

ARRAY_OF_OBJECTS = b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(X\x01\x00\x00\x00OI00\nI01\ntRC\x08AAAAAAAAtR."
STATE_OF_A_CLASS = b"cmmengine.logging.history_buffer\nHistoryBuffer\nN}q\x00X\x03\x00\x00\x00minK\x01s\x86b."
CALL = b"c__builtin__\n%s\n\x8a\x05" + (10**11).to_bytes(5, "little") + b"\x85R."
DEEP = b")" + b"\x85" * 300_000  # a tuple whose hash overflows the stack
# Forty lists, each with the one before twice: its text has 10**12 characters.
NESTED = b"](" * 40 + b"K\x01K\x01e" + b"".join(b"q%ch%ce" % (i, i) for i in range(39))
WIDE = torch.ones(1).expand(10**9)  # a copy of which has 4 GB

REJECTED = {
    "truncated": (lambda: saved(XCiT(MINI).state_dict())[:-5000], "cannot read"),
    "empty": (lambda: b"", "it is empty"),
    "web page": (lambda: b"<!DOCTYPE html><html>404</html>", "a web page"),
    "text": (lambda: b"hello", "neither torch nor safetensors"),
    "zip of text": (lambda: archive({"readme.txt": b"hello"}), "no data.pkl"),
    "safetensors of 10 GB": (lambda: struct.pack("<Q", 10 * 2**30) + b'{"w":' + b" " * 100, "cannot read"),
    "TorchScript": (lambda: torchscript(Path("victim")), "a TorchScript archive, which holds code"),
    "tar": (lambda: tar(Path("victim")), "torch did not write it .wrong magic number"),
    # What a pickle calls, makes and changes.
    "os.system": (lambda: saved(Runs(os.system, "touch ran")), "it names posix.system"),
    "import": (lambda: saved(Runs(getattr, os, "system"), pickle_module=ByName), "it names builtins.__import__"),
    "method": (lambda: saved(Runs(getattr, HistoryBuffer, "__init__")), "asks for attribute '__init__' of mmengine"),
    "class method": (
        lambda: saved(Runs(getattr, HistoryBuffer, "register_statistics")),
        "asks for attribute 'register",
    ),
    "scheduler's": (
        lambda: saved(Runs(getattr, OneCycleParamScheduler, "build_iter_from_epoch")),
        "asks for attribute",
    ),
    "scheduler": (lambda: saved(Runs(OneCycleParamScheduler)), "it calls .*OneCycleParamScheduler: do not trust it"),
    "factory": (lambda: saved(Runs(list, (1,))), "it calls builtins.list"),
    "state of a class": (lambda: legacy(STATE_OF_A_CLASS), "changes the state of .*HistoryBuffer"),
    "statistics": (lambda: saved(changed_statistics()), "gives a HistoryBuffer the attribute '_statistics_methods'"),
    "array of objects": (lambda: legacy(ARRAY_OF_OBJECTS), "not of numbers"),
    # What overflows the stack, takes all memory or never ends.
    "deep key": (lambda: legacy(b"}" + DEEP + b"K\x01s."), "a key of type tuple"),
    "set that is copied": (
        lambda: saved([Runs(kind, items) for items in [list(range(5000))] for kind in [set] * 100]),
        "claim more than",
    ),
    "integers of one hash": (lambda: saved({i * (2**61 - 1): 0 for i in range(5000)}), "keys of type int among"),
    "set of tuples": (lambda: saved({(i, 0) for i in range(1001)}), "keys of type tuple among"),
    "dtype of nested lists": (
        lambda: legacy(b"cnumpy\ndtype\n" + NESTED + b"\x85R."),
        "holds a list in place of a str",
    ),
    "deep storage key": (lambda: legacy_with_storages(b"](" + DEEP + b"K\x01e."), "lacks the data"),
    "bytearray": (lambda: legacy(CALL % b"bytearray"), "it names builtins.bytearray"),
    "bytes": (lambda: legacy(CALL % b"bytes"), "it calls builtins.bytes with 1 arguments"),
    "error with content": (lambda: legacy(opcodes(doubled()) + b")R."), "it calls a list"),
    "name with content": (lambda: legacy(opcodes(doubled()) + b"q\xffh\xff\x93."), "it names a list of a list"),
    # What a tensor claims.
    "large storage": (lambda: archive(claiming(2**31 - 1)), "claims 8589934588 bytes for storage 0 and holds 4936"),
    "decoy": (
        lambda: archive({**claiming(2000), "archive/decoy/data/0": bytes(8000)}),
        "claims 8000 bytes for storage 0",
    ),
    "second folder": (lambda: archive({**claiming(2000), "x/decoy/data/0": bytes(8000)}), "in a second folder"),
    "record twice": (lambda: with_record("a/data/0", bytes(4936)), "a record twice"),
    "overlapping records": (lambda: with_record("a/more", b"", claim=10**6), "claim more bytes than the file has"),
    "expanded tensor": (lambda: saved(WIDE), "claim more than"),
    "expanded tensor, old format": (lambda: saved(WIDE, zipped=False), "share places"),
    "overflowing size": (lambda: tensor_with("STORAGE", 0, (np.int64(2**62),), (0,)), "a int64 in place of a int"),
    "object as storage": (
        lambda: tensor_with(argparse.Namespace(dtype=torch.float32, count=10**13), 3 * 10**8, (1,), (1,)),
        "a Namespace in place of a Storage",
    ),
    "missing data, old format": (lambda: legacy_with_storages(b"]X\x01\x00\x00\x000a."), "lacks the data"),
    "float8": (lambda: saved(torch.ones(3).to(torch.float8_e4m3fn)), "float8_e4m3fn, .*: save it as float16"),
    "uint16": (lambda: saved(torch.ones(3).to(torch.uint16)), "uint16, which is not supported: save it as float16"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", REJECTED)
def test_rejected_files_run_and_change_nothing(kind, folder):
    victim, file = folder / "victim", folder / "file.pth"
    victim.write_bytes(b"untouched")
    victim.chmod(0o600)
    content, message = REJECTED[kind]
    file.write_bytes(content())
    with pytest.raises(ValueError, match=message) as error:
        load_from_file("file.pth")
    assert "\n" not in str(error.value)
    assert {path.name for path in folder.iterdir()} == {"file.pth", "victim"}
    assert (victim.read_bytes(), victim.stat().st_mode & 0o777) == (b"untouched", 0o600)
    assert HistoryBuffer([1, 3], [1, 1]).statistics("mean") == 2


ENDLESS = """
import resource
from hostile_files import endless_files
from xcit_mm.weights.reader import load_from_file

resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
for content in endless_files():
    open("file.pth", "wb").write(content)
    try:
        load_from_file("file.pth")
    except ValueError as error:
        assert len(str(error)) < 500
"""


def test_values_that_only_seem_small_take_no_time_and_no_memory():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", ENDLESS], env=environment, timeout=300)
    assert run.returncode == 0


def test_folders_are_rejected(folder):
    with pytest.raises(ValueError, match="is a folder"):
        load_from_file(str(folder))


def test_the_first_bytes_decide_how_a_file_is_read():
    torch.save(dict(a=torch.ones(3)), "file.safetensors")
    assert torch.equal(load_from_file("file.safetensors")["a"], torch.ones(3))


def test_config_in_a_checkpoint_is_not_executed(folder):
    from mmdet.apis import DetInferencer

    text = "open({!r}, 'w')\nmodel = dict()".format("ran")
    hub = dict(runtime_info=OrderedDict(iter=3, cfg=text, config=text), log_scalars={}, resumed_keys={})
    torch.save(dict(meta=dict(epoch=3, config=text, cfg=text), message_hub=hub), "file.pth")
    content = load_from_file("file.pth")
    assert content == dict(meta=dict(epoch=3), message_hub={**hub, "runtime_info": dict(iter=3)})
    with pytest.raises(ValueError, match="Cannot find the config"):
        DetInferencer(weights="file.pth", device="cpu")
    assert not (folder / "ran").exists()


def test_nested_config_dicts_are_not_copied_for_each_reference():
    config = {}
    for _ in range(8):
        config = Runs(ConfigDict, dict(a=config, b=config))
    torch.save(dict(x=config), "file.pth")
    found = load_from_file("file.pth")["x"]
    assert type(found) is ConfigDict
    assert found.a is found.b and found.a.b.a is found.b.a.b


def test_naming_a_module_of_torch_does_not_import_it(folder):
    name = "onnx" if "torch.onnx" not in sys.modules else "_inductor"
    loaded = set(sys.modules)
    (folder / "file.pth").write_bytes(legacy(b"ctorch\n%s\n." % name.encode()))
    with pytest.raises(ValueError, match=f"it names torch.{name}"):
        load_from_file("file.pth")
    assert set(sys.modules) == loaded


def test_objects_of_a_training_become_plain_values():
    seen = defaultdict(list, {"loss": [1.0]})
    args = argparse.Namespace(lr=0.1, out=Path("/runs/one"), data=PureWindowsPath("c:/images"), last=deque([1, 2], 2))
    devices = dict(a=torch.device("cuda"), b=torch.device("cuda", 1), size=torch.Size((1, 2)), z=1j)
    torch.save(dict(seen=seen, args=args, none=defaultdict(int), devices=devices), "file.pth")
    found = load_from_file("file.pth")
    assert type(found["seen"]) is dict and found["seen"] == seen and found["none"] == {}
    assert vars(found["args"]) == dict(lr=0.1, out=str(Path("/runs/one")), data="c:\\images", last=[1, 2])
    assert not isinstance(found["args"], argparse.Namespace)
    assert found["devices"] == devices


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_every_protocol_are_read(protocol, zipped, folder):
    held = dict(w=torch.ones(2), name="a", data=b"abc", kinds={1, 2}, fixed=frozenset("a"), large=2**70, f=1.5)
    (folder / "file.pth").write_bytes(saved(held, zipped, pickle_protocol=protocol))
    found = load_from_file("file.pth")
    assert torch.equal(found.pop("w"), held.pop("w"))
    assert found == held


def test_nan_of_a_small_type_is_found():
    state = XCiT(MINI).state_dict()
    state["blocks.0.norm1.bias"] = torch.full((16,), float("nan")).to(torch.float8_e4m3fn)
    save_file(state, "file.safetensors")
    with pytest.raises(ValueError, match=r"blocks\.0\.norm1\.bias with values that are not finite"):
        load_pretrained(XCiT(MINI), "file.safetensors")


def to_meta(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
    return torch.UntypedStorage(storage.nbytes(), device="meta")


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("where", [{"cpu": "meta"}, "meta", torch.device("meta"), to_meta])
def test_map_location_means_the_same_for_every_kind_of_file(where, suffix):
    state = dict(a=torch.ones(2, 3), b=torch.arange(4))
    (save_file if suffix == "safetensors" else torch.save)(state, f"file.{suffix}")
    for given, device in ((where, "meta"), (None, "cpu"), ({"cuda:0": "meta"}, "cpu"), (lambda *_: None, "cpu")):
        found = load_from_file(f"file.{suffix}", map_location=given)
        assert {key: (v.device.type, v.shape, v.dtype) for key, v in found.items()} == {
            key: (device, v.shape, v.dtype) for key, v in state.items()
        }
    assert all(torch.equal(found[key], value) for key, value in state.items())


def test_safetensors_of_any_header_length():
    for pad in range(0, 256, 8):
        save_file({"w": torch.ones(2)}, "file.bin", metadata={"pad": "x" * pad})
        assert torch.equal(load_from_file("file.bin")["w"], torch.ones(2))


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_mutated_files_load_correctly_or_not_at_all(count):
    script = Path(__file__).with_name("fuzz.py")
    run = subprocess.run([sys.executable, "-W", "ignore", script, str(count)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert lines[-1] == [str(count), "files"]
    counts = {line[0] if line[0] in ("legacy", "safetensors") else "": line for line in lines[:-1]}
    # The numbers of these have no checksum: the test would not notice a change if it never changed a number.
    assert all(int(counts[kind][counts[kind].index("numbers") + 1]) for kind in ("legacy", "safetensors"))
