"""Files that cannot be read, or would do harm, are refused in one line; they run and change nothing."""

import argparse
import io
import os
import pickle
import stat
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict, defaultdict, deque
from pathlib import Path, PureWindowsPath

import pytest
import torch
from fuzz import tar, torchscript
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler
from safetensors.torch import save_file
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION
from weight_files import MINI, official

from xcit_mm import XCiT
from xcit_mm.weights.matching import load_pretrained
from xcit_mm.weights.reader import load_from_file

# How files of torch's older format begin: a number, a version, the machine.
MAGIC = b"".join(pickle.dumps(value, protocol=2) for value in (MAGIC_NUMBER, PROTOCOL_VERSION, {}))


class Runs:
    """Pickles as a call."""

    def __init__(self, function, *args) -> None:
        self.call = function, args

    def __reduce__(self):
        return self.call


def to_meta(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return torch.UntypedStorage(storage.nbytes(), device="meta")


def stored(records: dict[str, bytes], path: Path) -> None:
    """A zip archive as torch writes it, checksums correct."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records.items():
            archive.writestr(name, data)


def records_of(content: object) -> dict[str, bytes]:
    stream = io.BytesIO()
    torch.save(content, stream)
    with zipfile.ZipFile(stream) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def claiming(count: int) -> dict[str, bytes]:
    """Records of a checkpoint with 4936 bytes of data, whose pickle claims a storage of `count` float32 values."""
    before, after = b"M" + struct.pack("<H", 1234), b"J" + struct.pack("<i", count)
    return {name: data.replace(before, after) for name, data in records_of(dict(w=torch.zeros(1234))).items()}


def write_unreadable(kind: str, path: Path) -> None:
    good = io.BytesIO()
    torch.save(dict(model=official(16)), good)
    ran = path.with_name("ran")
    if kind == "folder":
        path.mkdir()
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme.txt", "hello")
    elif kind == "os.system":
        torch.save(dict(model=Runs(os.system, f"touch {ran}")), path)
    elif kind == "getattr on os":
        torch.save(dict(model=Runs(getattr, os, "system")), path, pickle_module=Renamed)
    elif kind == "getattr chain":
        torch.save(dict(model=Runs(getattr, HistoryBuffer, "__init__")), path)
    elif kind == "state of a class":
        path.write_bytes(MAGIC + pickle_that_builds_a_class())
    elif kind == "claims more":
        stored(claiming(2**31 - 1), path)
    elif kind == "claims 10 GB":
        path.write_bytes(struct.pack("<Q", 10 * 2**30) + b'{"w":' + b" " * 100)
    else:
        content = dict(
            truncated=good.getvalue()[:-5000], empty=b"", html=b"<!DOCTYPE html><html>404</html>", text=b"hello"
        )
        path.write_bytes(content[kind])


class Renamed:
    """A pickle module that writes modules by name, as an attacker's bytes may."""

    class Pickler(pickle._Pickler):
        def reducer_override(self, obj):
            return (__import__, (obj.__name__,)) if isinstance(obj, type(os)) else NotImplemented


def pickle_that_builds_a_class() -> bytes:
    """Gives HistoryBuffer, the class, a new attribute."""
    return b"\x80\x02cmmengine.logging.history_buffer\nHistoryBuffer\nN}q\x00X\x03\x00\x00\x00minK\x01s\x86b."


@pytest.mark.parametrize(
    "kind, message",
    [
        ("truncated", "cannot read"),
        ("empty", "it is empty"),
        ("html", "a web page"),
        ("text", "neither torch nor safetensors"),
        ("folder", "is a folder"),
        ("zip", "no data.pkl"),
        ("os.system", "it names posix.system"),
        ("getattr on os", "it names builtins.__import__"),
        ("getattr chain", "asks for attribute '__init__'"),
        ("state of a class", "changes the state of HistoryBuffer"),
        ("claims more", "it claims 8589934588 bytes for storage 0 and holds 4936"),
        ("claims 10 GB", "cannot read"),
    ],
)
def test_unreadable_files_are_refused_and_run_nothing(kind, message, tmp_path):
    path = tmp_path / "file.pth"
    write_unreadable(kind, path)
    with pytest.raises(ValueError, match=message) as error:
        load_pretrained(XCiT(MINI), str(path))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()
    assert callable(HistoryBuffer.min)


class TestHostileFiles:
    """Bytes that a careless reader would obey."""

    def refuse(self, data: bytes, path: Path, message: str) -> None:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=message):
            load_from_file(str(path))

    def test_arrays_of_objects_make_no_pointers(self, tmp_path):
        scalar = b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(X\x01\x00\x00\x00OI00\nI01\ntR"
        self.refuse(MAGIC + b"\x80\x02" + scalar + b"C\x08AAAAAAAAtR.", tmp_path / "file.pth", "not of numbers")

    def test_deep_keys_do_not_overflow_the_stack(self, tmp_path):
        data = MAGIC + b"\x80\x02})" + b"\x85" * 3_000_000 + b"K\x01s."
        self.refuse(data, tmp_path / "file.pth", "a key of type tuple")

    def test_getattr_reaches_nothing_but_statistics(self, tmp_path):
        for owner, name in ((HistoryBuffer, "register_statistics"), (OneCycleParamScheduler, "build_iter_from_epoch")):
            torch.save(dict(x=Runs(getattr, owner, name)), tmp_path / "file.pth")
            with pytest.raises(ValueError, match=f"asks for attribute '{name}' of {owner.__name__}"):
                load_from_file(str(tmp_path / "file.pth"))

    def test_a_scheduler_is_not_made(self, tmp_path):
        torch.save(dict(x=Runs(OneCycleParamScheduler)), tmp_path / "file.pth")
        with pytest.raises(ValueError, match="it calls OneCycleParamScheduler: do not trust it"):
            load_from_file(str(tmp_path / "file.pth"))

    def test_torchscript_runs_nothing(self, tmp_path):
        victim = tmp_path / "victim"
        victim.write_bytes(b"untouched")
        self.refuse(torchscript(victim), tmp_path / "file.pth", "a TorchScript archive, which holds code: save the")
        assert victim.read_bytes() == b"untouched"

    def test_tar_archives_are_not_unpacked(self, tmp_path):
        victim = tmp_path / "victim"
        victim.write_bytes(b"untouched")
        victim.chmod(0o600)
        self.refuse(tar(victim), tmp_path / "file.pth", "torch did not write it .wrong magic number")
        assert stat.S_IMODE(victim.stat().st_mode) == 0o600

    def test_the_name_of_a_file_says_nothing(self, tmp_path):
        torch.save(dict(a=torch.ones(3)), tmp_path / "file.safetensors")
        assert torch.equal(load_from_file(str(tmp_path / "file.safetensors"))["a"], torch.ones(3))

    @pytest.mark.parametrize(
        "decoy, message",
        [
            ("archive/decoy/data/0", "claims 8000 bytes for storage 0 and holds 4936"),
            ("x/decoy/data/0", "in a second folder"),
        ],
    )
    def test_a_storage_has_the_size_of_its_own_record(self, decoy, message, tmp_path):
        stored({**claiming(2000), decoy: bytes(8000)}, tmp_path / "file.pth")
        with pytest.raises(ValueError, match=message):
            load_from_file(str(tmp_path / "file.pth"))

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_a_record_given_twice_is_refused(self, tmp_path):
        torch.save(dict(a=torch.ones(3)), tmp_path / "file.pth")
        with zipfile.ZipFile(tmp_path / "file.pth", "a") as archive:
            archive.writestr("file/data/0", torch.zeros(3).numpy().tobytes())
        with pytest.raises(ValueError, match="a record twice"):
            load_from_file(str(tmp_path / "file.pth"))

    def test_records_that_overlap_take_no_more_than_the_file(self, tmp_path):
        torch.save(dict(a=torch.ones(3)), tmp_path / "file.pth")
        with zipfile.ZipFile(tmp_path / "file.pth", "a") as archive:
            archive.writestr("file/more", b"")
            archive.getinfo("file/data/0").file_size = 10**6
        with pytest.raises(ValueError, match="claim more bytes than the file has"):
            load_from_file(str(tmp_path / "file.pth"))

    @pytest.mark.parametrize("zipped", [True, False])
    def test_tensors_claim_no_more_than_the_file_has(self, zipped, tmp_path):
        wide = torch.ones(1).expand(10**9)  # which a copy would fill with 4 GB
        torch.save(dict(a=wide), tmp_path / "file.pth", _use_new_zipfile_serialization=zipped)
        with pytest.raises(ValueError, match="its tensors claim more than" if zipped else "share places"):
            load_from_file(str(tmp_path / "file.pth"))

    def test_a_call_takes_no_memory(self, tmp_path):
        call = b"\x8a\x05%s\x85R." % (10**11).to_bytes(5, "little")
        for kind, message in ((b"bytearray", "it names builtins.bytearray"), (b"bytes", "no_bytes")):
            data = MAGIC + b"\x80\x02c__builtin__\n%s\n" % kind + call
            self.refuse(data, tmp_path / "file.pth", message)

    def test_a_config_in_the_file_is_not_there_to_be_run(self, tmp_path):
        from mmdet.apis import DetInferencer

        ran, text = tmp_path / "ran", "open({!r}, 'w')\nmodel = dict()"
        text = text.format(str(ran))
        hub = dict(runtime_info=OrderedDict(iter=3, cfg=text, config=text), log_scalars={}, resumed_keys={})
        torch.save(dict(meta=dict(epoch=3, config=text, cfg=text), message_hub=hub), tmp_path / "file.pth")
        content = load_from_file(str(tmp_path / "file.pth"))
        assert content == dict(meta=dict(epoch=3), message_hub={**hub, "runtime_info": dict(iter=3)})
        with pytest.raises(ValueError, match="Cannot find the config"):
            DetInferencer(weights=str(tmp_path / "file.pth"), device="cpu")
        assert not ran.exists()

    def test_statistics_of_all_histories_stay_as_they_are(self, tmp_path):
        changed = HistoryBuffer()
        changed._statistics_methods = {"mean": HistoryBuffer.max}  # mmengine keeps them in the class
        torch.save(dict(x=changed), tmp_path / "file.pth")
        with pytest.raises(ValueError, match="gives a HistoryBuffer the attribute '_statistics_methods'"):
            load_from_file(str(tmp_path / "file.pth"))
        assert HistoryBuffer([1, 3], [1, 1]).statistics("mean") == 2

    def test_dicts_of_a_config_are_not_copied_again_and_again(self, tmp_path):
        config = {}
        for _ in range(8):
            config = Runs(ConfigDict, dict(a=config, b=config))
        torch.save(dict(x=config), tmp_path / "file.pth")
        found = load_from_file(str(tmp_path / "file.pth"))["x"]
        assert type(found) is ConfigDict
        assert found.a is found.b and found.a.b.a is found.b.a.b

    def test_errors_do_not_print_what_a_file_holds(self, tmp_path):
        content = []
        for _ in range(60):
            content = [content, content]  # 2**60 brackets
        data = pickle.dumps(content, protocol=2)[:-1] + b")R."  # called
        self.refuse(MAGIC + data, tmp_path / "file.pth", "it calls a list")

    def test_naming_a_part_of_torch_does_not_load_it(self, tmp_path):
        name = "onnx" if "torch.onnx" not in sys.modules else "_inductor"
        loaded = set(sys.modules)
        self.refuse(MAGIC + b"\x80\x02ctorch\n%s\n." % name.encode(), tmp_path / "file.pth", f"it names torch.{name}")
        assert set(sys.modules) == loaded

    def test_old_format_without_all_its_data(self, tmp_path):
        path = tmp_path / "file.pth"
        torch.save(dict(a=torch.ones(3), b=torch.ones(4)), path, _use_new_zipfile_serialization=False)
        assert torch.equal(load_from_file(str(path))["b"], torch.ones(4))
        data = path.read_bytes()
        end = data.rindex(b"\x80\x02")  # the list of storages: drop one
        stream = io.BytesIO(data[end:])
        keys = pickle.load(stream)
        path.write_bytes(data[:end] + pickle.dumps(keys[:1], protocol=2) + data[end + stream.tell() :])
        with pytest.raises(ValueError, match="lacks the data"):
            load_from_file(str(path))

    def test_namespace_is_inert(self, tmp_path):
        torch.save(dict(args=argparse.Namespace(lr=0.1)), tmp_path / "file.pth")
        args = load_from_file(str(tmp_path / "file.pth"))["args"]
        assert args.lr == 0.1
        assert not isinstance(args, argparse.Namespace)

    def test_what_training_keeps_beside_weights_is_read_as_plain_values(self, tmp_path):
        seen = defaultdict(list, {"loss": [1.0]})
        args = argparse.Namespace(out=Path("/runs/one"), data=PureWindowsPath("c:/images"), last=deque([1, 2], 2))
        torch.save(dict(seen=seen, args=args, none=defaultdict(int)), tmp_path / "file.pth")
        found = load_from_file(str(tmp_path / "file.pth"))
        assert type(found["seen"]) is dict and found["seen"] == seen and found["none"] == {}
        expected = dict(out=str(Path("/runs/one")), data="c:\\images", last=[1, 2])
        assert vars(found["args"]) == expected

    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_pickles_of_every_protocol_are_read(self, protocol, zipped, tmp_path):
        held = dict(w=torch.ones(2), name="a", data=b"abc", kinds={1, 2}, fixed=frozenset("a"), large=2**70)
        options = dict(pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
        torch.save(held, tmp_path / "file.pth", **options)
        found = load_from_file(str(tmp_path / "file.pth"))
        assert torch.equal(found.pop("w"), held.pop("w"))
        assert found == held

    def test_a_factory_of_the_file_is_not_called(self, tmp_path):
        torch.save(dict(x=Runs(list, (1,))), tmp_path / "file.pth")
        with pytest.raises(ValueError, match="it calls a NoneType"):
            load_from_file(str(tmp_path / "file.pth"))

    @pytest.mark.parametrize("name", ["float8_e4m3fn", "uint16"])
    def test_types_that_are_not_read_are_named(self, name, tmp_path):
        torch.save(dict(w=torch.ones(3).to(getattr(torch, name))), tmp_path / "file.pth")
        message = f"holds a tensor of torch.{name}, which is not supported: save it as float16"
        with pytest.raises(ValueError, match=message) as error:
            load_from_file(str(tmp_path / "file.pth"))
        assert "trust" not in str(error.value)

    def test_a_nan_of_a_small_type_is_seen(self, tmp_path):
        state = XCiT(MINI).state_dict()
        state["blocks.0.norm1.bias"] = torch.full((16,), float("nan")).to(torch.float8_e4m3fn)
        save_file(state, tmp_path / "file.safetensors")
        with pytest.raises(ValueError, match=r"blocks\.0\.norm1\.bias with values that are not finite"):
            load_pretrained(XCiT(MINI), str(tmp_path / "file.safetensors"))

    @pytest.mark.parametrize("suffix", ["pth", "safetensors"])
    @pytest.mark.parametrize("where", [{"cpu": "meta"}, "meta", torch.device("meta"), lambda data, at: to_meta(data)])
    def test_map_location_means_the_same_for_every_kind_of_file(self, where, suffix, tmp_path):
        state = dict(a=torch.ones(2, 3), b=torch.arange(4))
        (save_file if suffix == "safetensors" else torch.save)(state, tmp_path / f"file.{suffix}")
        for given, device in ((where, "meta"), (None, "cpu"), ({"cuda:0": "meta"}, "cpu"), (lambda *_: None, "cpu")):
            found = load_from_file(str(tmp_path / f"file.{suffix}"), map_location=given)
            assert {key: (v.device.type, v.shape, v.dtype) for key, v in found.items()} == {
                key: (device, v.shape, v.dtype) for key, v in state.items()
            }
        assert all(torch.equal(found[key], value) for key, value in state.items())

    @pytest.mark.parametrize("pad", range(0, 256, 8))
    def test_safetensors_of_any_header_length(self, pad, tmp_path):
        save_file({"w": torch.ones(2)}, tmp_path / "file.bin", metadata={"pad": "x" * pad})
        assert torch.equal(load_from_file(str(tmp_path / "file.bin"))["w"], torch.ones(2))


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_mutated_files_load_right_or_not_at_all(count):
    script = Path(__file__).with_name("fuzz.py")
    run = subprocess.run([sys.executable, "-W", "ignore", script, str(count)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert lines[-1] == [str(count), "files"]
    counts = {line[0] if line[0] in ("legacy", "safetensors") else "": line for line in lines[:-1]}
    # The numbers of these have no checksum: the test would not see them changed if it never changed one.
    assert all(int(counts[kind][counts[kind].index("numbers") + 1]) for kind in ("legacy", "safetensors"))
