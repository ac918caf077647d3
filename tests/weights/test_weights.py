"""Any XCiT file loads, whole or not at all, and runs nothing."""

import argparse
import io
import json
import os
import pickle
import random
import struct
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from golden import GOLDEN, deviation, fill, image, parameter
from mmengine.logging import HistoryBuffer
from mmengine.registry import MODELS, init_default_scope
from paths import CONFIGS, SHARED
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from xcit_mm import StrictLoadHook, XCiT
from xcit_mm.weights.layouts import export, recognise
from xcit_mm.weights.matching import load_pretrained
from xcit_mm.weights.published import PUBLISHED, fetch
from xcit_mm.weights.reader import load_from_file, load_from_url

PICO = dict(embed_dim=32, depth=12, num_heads=4, eta=1.0)  # the golden checkpoints' architecture
MINI = dict(embed_dim=16, depth=6, num_heads=2, eta=1.0)
KEYS = json.loads((GOLDEN / "layout_keys.json").read_text())  # of files written by the projects' own code
CHECKPOINTS = SHARED / "golden" / "checkpoints"
needs_shared = pytest.mark.skipif(not CHECKPOINTS.is_dir(), reason="the golden checkpoints are not beside this clone")


def official(patch_size: int) -> dict[str, Tensor]:
    """An ImageNet file's tensors with golden values."""
    return {key: parameter(key, tuple(shape)) for key, shape in KEYS[f"official_p{patch_size}"].items()}


def model_from(file: Path, arch: dict = PICO, patch_size: int = 16, **pretrained) -> XCiT:
    """A backbone with a golden pyramid and other values elsewhere, its trunk loaded from the file."""
    model = fill(XCiT(arch, patch_size, init_cfg=dict(type="Pretrained", checkpoint=str(file), **pretrained)))
    for name, p in model.named_parameters():
        if not name.startswith("fpn"):
            nn.init.normal_(p)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    try:
        model.init_weights()
    except Exception:
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items()), "half loaded"
        raise
    return model


@needs_shared
@pytest.mark.parametrize("file", sorted(p.name for p in CHECKPOINTS.glob("*") if p.suffix != ".npz"))
def test_golden_files_give_their_pyramid(file):
    patch_size = 8 if "_p8" in file else 16
    model = model_from(CHECKPOINTS / file, patch_size=patch_size)
    for height, width in [(64, 96), (75, 101), (224, 160)]:
        with torch.inference_mode():
            maps = model(image(height, width, batch=2).float())
        assert deviation(maps, CHECKPOINTS / f"pyramid_p{patch_size}.npz", f"{height}x{width}") < 1e-4


class TestLayouts:
    @pytest.mark.parametrize("patch_size", [16, 8])
    @pytest.mark.parametrize("layout", ["timm", "mmpretrain"])
    def test_converted_names_and_shapes_are_the_project_s_own(self, layout, patch_size):
        content = export(recognise(dict(model=official(patch_size))), layout)
        state = content.get("state_dict", content)
        assert {key: list(value.shape) for key, value in state.items()} == KEYS[f"{layout}_p{patch_size}"]

    @pytest.mark.parametrize("patch_size", [16, 8])
    @pytest.mark.parametrize("layout", ["official", "timm", "mmpretrain"])
    def test_there_and_back_is_bit_equal(self, layout, patch_size):
        state = official(patch_size)
        found = recognise(export(recognise(dict(model=state)), layout))
        assert (found.layout, found.task) == (layout, "classifier")
        assert found.trunk.keys() == state.keys()
        assert all(torch.equal(found.trunk[key], value) for key, value in state.items())

    def test_dino_gives_the_teacher(self):
        teacher = {f"module.backbone.{key}": value for key, value in official(16).items()}
        student = {key: torch.zeros_like(value) for key, value in teacher.items()}
        found = recognise(dict(student=student, teacher=teacher, epoch=3, optimizer={}))
        assert found.source == "teacher"
        assert torch.equal(found.trunk["norm.weight"], teacher["module.backbone.norm.weight"])

    def test_training_file_gives_model_or_ema_on_request(self):
        content = dict(model=official(16), model_ema={key: 2 * value for key, value in official(16).items()})
        assert torch.equal(recognise(content).trunk["norm.bias"], content["model"]["norm.bias"])
        assert torch.equal(recognise(content, use_ema=True).trunk["norm.bias"], content["model_ema"]["norm.bias"])
        with pytest.raises(ValueError, match="no model_ema"):
            recognise(dict(model=official(16)), use_ema=True)


def test_init_cfg_takes_no_prefix():
    with pytest.raises(ValueError, match=r"init_cfg with checkpoint, prefix: .*recognised"):
        XCiT(MINI, init_cfg=dict(type="Pretrained", checkpoint="file.pth", prefix="backbone."))


def test_other_initialisers_are_mmengine_s():
    model = XCiT(MINI, init_cfg=[dict(type="Constant", layer="Linear", val=0.5)])
    model.init_weights()
    assert (model.blocks[0].mlp.fc1.weight == 0.5).all()


def mutilated(name: str) -> object:
    """Content of a file that must be refused."""
    state = official(16)
    if name == "a third of the blocks missing":
        return {key: value for key, value in state.items() if not key.startswith(("blocks.8", "blocks.9", "blocks.1"))}
    if name == "one block in the middle missing":
        return {key: value for key, value in state.items() if not key.startswith("blocks.5.")}
    if name == "unknown prefix":
        return {f"encoder.{key}": value for key, value in state.items()}
    if name == "integers":
        return {key: value.long() for key, value in state.items()}
    if name == "nan":
        state["blocks.3.mlp.fc1.weight"][0, 0] = float("nan")
    elif name == "unknown key":
        state["blocks.3.extra.weight"] = torch.ones(2)
    elif name == "wrong shape":
        state["blocks.3.norm1.bias"] = torch.ones(33)
    elif name == "no weights":
        return dict(meta=dict(epoch=3))
    elif name == "a list":
        return [1, 2, 3]
    return state


@pytest.mark.parametrize(
    "name, kwargs, message",
    [
        ("", dict(patch_size=8), "the file is 32x12x4/p16, the config asks for 32x12x4/p8"),
        ("", dict(arch=dict(PICO, depth=24)), "the file is 32x12x4/p16, the config asks for 32x24x4/p16"),
        ("", dict(arch=dict(PICO, embed_dim=64)), "the file is 32x12x4/p16, the config asks for 64x12x4/p16"),
        ("a third of the blocks missing", {}, "the file is 32x8x4/p16"),
        ("one block in the middle missing", {}, r"it lacks blocks.5.* and \d+ more"),
        ("unknown prefix", {}, "no XCiT in it: keys such as encoder.cls_token"),
        ("integers", {}, "of torch.int64, not torch.float32"),
        ("nan", {}, "blocks.3.mlp.fc1.weight with values that are not finite"),
        ("unknown key", {}, "it holds the unknown blocks.3.extra.weight"),
        ("wrong shape", {}, r"blocks.3.norm1.bias of \(33,\), not \(32,\)"),
        ("no weights", {}, "its entry 'meta' is a dict, not a tensor"),
        ("a list", {}, "it holds a list"),
    ],
)
def test_misfits_are_refused_and_change_nothing(name, kwargs, message, tmp_path):
    torch.save(mutilated(name), tmp_path / "file.pth")
    with pytest.raises(ValueError, match=message) as error:
        model_from(tmp_path / "file.pth", **kwargs)
    assert "\n" not in str(error.value)
    assert "file.pth" in str(error.value)


class Runs:
    """Pickles as a call."""

    def __init__(self, function, *args) -> None:
        self.call = function, args

    def __reduce__(self):
        return self.call


def claim_more_than_there_is(path: Path) -> None:
    """Rewrite a zip checkpoint so that its pickle claims a storage of 2**31 values, checksums correct."""
    torch.save(dict(w=torch.zeros(1234)), path)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records.items():
            archive.writestr(name, data.replace(b"M" + struct.pack("<H", 1234), b"J" + struct.pack("<i", 2**31 - 1)))


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
        path.write_bytes(pickle_that_builds_a_class())
    elif kind == "claims more":
        claim_more_than_there_is(path)
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
        ("state of a class", "cannot read"),
        ("claims more", "it claims 8589934588 bytes for storage 0 and holds 4936"),
        ("claims 10 GB", "cannot read"),
    ],
)
def test_unreadable_files_are_refused_and_run_nothing(kind, message, tmp_path):
    path = tmp_path / "file.pth"
    write_unreadable(kind, path)
    with pytest.raises(ValueError, match=message) as error:
        model_from(path)
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
        self.refuse(b"\x80\x02" + scalar + b"C\x08AAAAAAAAtR.", tmp_path / "file.pth", "not of numbers")

    def test_deep_keys_do_not_overflow_the_stack(self, tmp_path):
        data = b"\x80\x02})" + b"\x85" * 3_000_000 + b"K\x01s."
        self.refuse(data, tmp_path / "file.pth", "a key of type tuple")

    def test_getattr_reaches_nothing_but_statistics(self, tmp_path):
        torch.save(dict(x=Runs(getattr, HistoryBuffer, "register_statistics")), tmp_path / "file.pth")
        with pytest.raises(ValueError, match=r"asks for attribute 'register_statistics'"):
            load_from_file(str(tmp_path / "file.pth"))

    def test_a_config_in_the_file_is_not_there_to_be_run(self, tmp_path):
        torch.save(dict(meta=dict(epoch=3, config="import os", cfg="import os"), state_dict={}), tmp_path / "file.pth")
        assert load_from_file(str(tmp_path / "file.pth"))["meta"] == dict(epoch=3)

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

    @pytest.mark.parametrize("pad", range(0, 256, 8))
    def test_safetensors_of_any_header_length(self, pad, tmp_path):
        save_file({"w": torch.ones(2)}, tmp_path / "file.bin", metadata={"pad": "x" * pad})
        assert torch.equal(load_from_file(str(tmp_path / "file.bin"))["w"], torch.ones(2))


class TestWhatUsersDo:
    def test_a_backbone_with_fewer_blocks_loads_its_own_checkpoint(self, tmp_path):
        source = XCiT(MINI, out_indices=(1, 3))
        torch.save(source.state_dict(), tmp_path / "own.pth")
        target = XCiT(MINI, out_indices=(1, 3))
        load_pretrained(target, str(tmp_path / "own.pth"))
        assert all(torch.equal(value, source.state_dict()[key]) for key, value in target.state_dict().items())

    def test_a_backbone_with_fewer_blocks_loads_the_whole_trunk(self, tmp_path):
        torch.save(XCiT(MINI).state_dict(), tmp_path / "whole.pth")
        target = XCiT(MINI, out_indices=(1, 3))
        load_pretrained(target, str(tmp_path / "whole.pth"))
        source = load_from_file(str(tmp_path / "whole.pth"))
        assert all(torch.equal(value, source[key]) for key, value in target.state_dict().items())

    def test_half_a_pyramid_is_refused(self, tmp_path):
        state = XCiT(MINI).state_dict()
        del state["fpn1.3.weight"]
        torch.save(state, tmp_path / "half.pth")
        with pytest.raises(ValueError, match=r"it lacks fpn1.3.weight"):
            load_pretrained(XCiT(MINI), str(tmp_path / "half.pth"))

    def test_a_tensor_given_twice_is_refused(self):
        state = XCiT(MINI).state_dict()
        state |= {f"backbone.{key}": value for key, value in state.items()}
        with pytest.raises(ValueError, match="twice"):
            recognise(state)

    def test_a_failed_load_can_be_tried_again(self, tmp_path):
        model = XCiT(MINI, init_cfg=dict(type="Pretrained", checkpoint=str(tmp_path / "late.pth")))
        with pytest.raises(FileNotFoundError):
            model.init_weights()
        source = XCiT(MINI).state_dict()
        torch.save(source, tmp_path / "late.pth")
        model.init_weights()
        assert torch.equal(model.blocks[0].attn.qkv.weight, source["blocks.0.attn.qkv.weight"])

    def test_files_of_one_name_from_two_places_are_kept_apart(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path / "kept"))
        (tmp_path / "kept").mkdir()
        monkeypatch.setattr("xcit_mm.weights.reader.download", lambda url, path: torch.save(url, path))
        assert load_from_url("https://a.org/model.bin") == "https://a.org/model.bin"
        assert load_from_url("https://b.org/model.bin") == "https://b.org/model.bin"

    def test_heads_of_any_name_make_a_whole_model(self):
        state = {f"backbone.{key}": value for key, value in XCiT(MINI).state_dict().items()}
        found = recognise(dict(state_dict={**state, "panoptic_head.weight": torch.ones(1)}))
        assert (found.task, list(found.heads)) == ("detector", ["panoptic_head.weight"])


def mutate(rng: random.Random, state: dict[str, Tensor], path: Path) -> None:
    """Write a broken variant of a checkpoint: bytes flipped or cut, keys renamed or lost, shapes or types changed."""
    kind = rng.choice(["flip", "cut", "rename", "drop", "shape", "dtype", "legacy", "safetensors"])
    state = dict(state)
    key = rng.choice(list(state))
    if kind == "rename":
        position = rng.randrange(len(key))
        state[key[:position] + "x" + key[position + 1 :]] = state.pop(key)
    elif kind == "drop":
        del state[key]
    elif kind == "shape":
        state[key] = rng.choice([state[key][None], state[key].flatten()[:-1], torch.cat([state[key].flatten()] * 2)])
    elif kind == "dtype":
        state[key] = state[key].bool() if state[key].is_floating_point() else state[key].float()
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(dict(model=state), path, _use_new_zipfile_serialization=kind != "legacy")
    data = bytearray(path.read_bytes())
    if kind == "cut":
        del data[rng.randrange(len(data)) :]
    elif kind in ("flip", "legacy", "safetensors"):
        # Only the zip format has checksums; elsewhere the head, not the numbers, can tell.
        head = len(data) if kind == "flip" else 2000
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(head)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def test_500_mutated_files_load_right_or_not_at_all(tmp_path):
    rng = random.Random(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        state = XCiT(MINI).state_dict()
    model, refused = XCiT(MINI), 0
    for number in range(500):
        path = tmp_path / "mutated.pth"
        mutate(rng, state, path)
        for p in model.parameters():
            nn.init.normal_(p)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        try:
            load_pretrained(model, str(path))
            expected = state
        except ValueError:
            refused += 1
            expected = before
        assert all(torch.equal(value, expected[key]) for key, value in model.state_dict().items()), f"file {number}"
    assert 400 < refused < 500


def build_segmentor(num_classes: int) -> nn.Module:
    init_default_scope("mmseg")
    return MODELS.build(
        dict(
            type="mmseg.EncoderDecoder",
            backbone=dict(type="XCiT", arch=MINI, norm_cfg=dict(type="BN")),
            decode_head=dict(
                type="mmseg.FCNHead", in_channels=16, in_index=0, channels=8, num_convs=1, num_classes=num_classes
            ),
        )
    )


class TestWholeModels:
    def load(self, model: nn.Module, checkpoint: dict, **kwargs) -> None:
        """As mmengine's Runner does it."""
        from mmengine.runner.checkpoint import _load_checkpoint_to_model

        StrictLoadHook(**kwargs).after_load_checkpoint(SimpleNamespace(model=model), checkpoint)
        _load_checkpoint_to_model(model, checkpoint)

    def test_fills_everything(self):
        source, target = build_segmentor(5), build_segmentor(5)
        self.load(target, dict(state_dict=source.state_dict()))
        assert all(torch.equal(value, source.state_dict()[key]) for key, value in target.state_dict().items())

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda state: state.pop("decode_head.convs.0.conv.weight"), "it lacks decode_head.convs.0.conv.weight"),
            (lambda state: state.pop("backbone.fpn1.0.weight"), "it lacks fpn1.0.weight"),
            (lambda state: state.update({"decode_head.x": torch.ones(1)}), "unknown decode_head.x"),
            (lambda state: state.update({"backbone.cls_token": torch.ones(1)}), "unknown cls_token"),
        ],
    )
    def test_refuses_what_is_not_whole(self, change, message):
        state = build_segmentor(5).state_dict()
        change(state)
        with pytest.raises(ValueError, match=message):
            self.load(build_segmentor(5), dict(state_dict=state))

    def test_refuses_a_backbone(self):
        with pytest.raises(ValueError, match="it is a classifier: give it to the backbone's init_cfg"):
            self.load(build_segmentor(5), dict(model=official(16)))

    def test_other_classes_on_request_only(self, caplog):
        state = build_segmentor(7).state_dict()
        with pytest.raises(ValueError, match=r"conv_seg.weight of \(7, 8, 1, 1\), not \(5, 8, 1, 1\).*strict_heads"):
            self.load(build_segmentor(5), dict(state_dict=state))
        target = build_segmentor(5)
        before = target.decode_head.conv_seg.weight.clone()
        self.load(target, dict(state_dict=dict(state)), strict_heads=False)
        assert torch.equal(target.decode_head.conv_seg.weight, before)
        key = "decode_head.convs.0.conv.weight"
        assert torch.equal(target.state_dict()[key], state[key])

    @needs_shared
    @pytest.mark.parametrize("file", ["official-maskrcnn_p16", "official-maskrcnn_p8", "official-semfpn_p16"])
    def test_the_authors_files_fill_todays_models(self, file):
        from mmengine.config import Config

        task = "mask-rcnn" if "maskrcnn" in file else "fpn"
        cfg = Config.fromfile(CONFIGS / f"demo/{task}_xcit-n12-p16_shapes.py")
        cfg.model.backbone.arch = PICO
        backbone = dict(patch_size=int(file.rpartition("_p")[2]), norm_cfg=dict(type="BN"))
        if task == "fpn":
            heads = dict(decode_head=dict(in_channels=[32] * 4, channels=16, num_classes=150))
            neck = dict(in_channels=[32] * 4, out_channels=32)
        else:
            box = dict(in_channels=16, fc_out_channels=32, num_classes=80)
            mask = dict(in_channels=16, conv_out_channels=16, num_classes=80)
            extractor = dict(out_channels=16)
            heads = dict(
                rpn_head=dict(in_channels=16, feat_channels=16),
                roi_head=dict(
                    bbox_head=box, mask_head=mask, bbox_roi_extractor=extractor, mask_roi_extractor=extractor
                ),
            )
            neck = dict(in_channels=[32] * 4, out_channels=16)
        cfg.merge_from_dict(dict(model=dict(backbone=backbone, neck=neck, **heads)))
        init_default_scope(cfg.default_scope)
        model = MODELS.build(cfg.model)
        checkpoint = load_from_file(str(CHECKPOINTS / f"{file}.pth"))
        given = dict(checkpoint["state_dict"])
        self.load(model, checkpoint)
        assert all(torch.equal(value, given[key]) for key, value in model.state_dict().items())


class TestPublished:
    def test_names(self):
        assert len(PUBLISHED) == 70
        assert PUBLISHED["maskrcnn_xcit_small_12_p16"].endswith("/coco/maskrcnn_xcit_small_12_p16.pth")
        assert PUBLISHED["xcit_small_12_cp16_dino"].endswith("/xcit/xcit_small_12_cp16_dino.pth")

    def test_kept_file_is_used(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path))
        torch.save(dict(model=official(16)), tmp_path / "xcit_nano_12_p16_224.pth")
        model = model_from("xcit://xcit_nano_12_p16_224")
        key = "blocks.11.mlp.fc2.weight"
        assert torch.equal(model.state_dict()[key], official(16)[key].float())

    def test_unknown_name_and_no_network(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path))
        with pytest.raises(ValueError, match=r"'xcit_huge' is not a published name"):
            fetch("xcit_huge")
        url = (tmp_path / "none.pth").as_uri()
        monkeypatch.setitem(PUBLISHED, "xcit_nano_12_p16_224", url)
        with pytest.raises(ConnectionError, match=rf"cannot download {url}.*put it at {tmp_path}"):
            fetch("xcit_nano_12_p16_224")
        assert list(tmp_path.iterdir()) == []

    def test_download_is_kept_under_its_name(self, tmp_path, monkeypatch):
        (tmp_path / "source.pth").write_bytes(b"weights")
        monkeypatch.setenv("XCIT_MM_WEIGHTS", str(tmp_path / "kept"))
        monkeypatch.setitem(PUBLISHED, "xcit_nano_12_p16_224", (tmp_path / "source.pth").as_uri())
        assert fetch("xcit_nano_12_p16_224").read_bytes() == b"weights"
        assert [path.name for path in (tmp_path / "kept").iterdir()] == ["xcit_nano_12_p16_224.pth"]


class TestTool:
    def test_inspect_and_convert(self, tool, tmp_path):
        torch.save(dict(model=official(16), epoch=3), tmp_path / "file.pth")
        text = tool("weights", "inspect", "file.pth").stdout
        for expected in ("official, under 'model'", "classifier", "32x12x4/p16", "0.197 M", "float64", "epoch       3"):
            assert expected in text
        for layout, out in [("timm", "t.safetensors"), ("mmpretrain", "m.pth"), ("safetensors", "s.safetensors")]:
            run = tool("weights", "convert", "file.pth", out, "--to", layout)
            assert run.returncode == 0, run.stderr
        assert load_file(tmp_path / "t.safetensors").keys() == KEYS["timm_p16"].keys()
        assert load_file(tmp_path / "s.safetensors").keys() == KEYS["official_p16"].keys()
        back = recognise(load_from_file(str(tmp_path / "m.pth"))).trunk
        assert all(torch.equal(back[key], value) for key, value in official(16).items())
        assert "m.pth exists" in tool("weights", "convert", "file.pth", "m.pth", "--to", "timm").stderr

    def test_errors_are_one_line(self, tool, tmp_path):
        (tmp_path / "page.pth").write_text("<html>")
        for arguments in (["inspect", "page.pth"], ["inspect", "none.pth"], ["fetch", "xcit_huge"]):
            run: subprocess.CompletedProcess = tool("weights", *arguments)
            assert run.returncode == 1
            assert len(run.stderr.strip().splitlines()) == 1
