"""Files of every layout fill backbones and whole models, or change nothing."""

import re
from pathlib import Path

import pytest
import torch
from helpers import small_models
from helpers.golden import GOLDEN, PICO, deviation, fill, image, keys
from helpers.pages import blocks
from helpers.paths import CONFIGS, ROOT
from helpers.weight_files import (
    DENSE_KEYS,
    FILES,
    load_in_runner,
    official,
    path_of,
    same,
    segmentor,
)
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

import xcit_mm
from xcit_mm import XCiT
from xcit_mm.utils.compat import TORCH
from xcit_mm.weights.layouts import parse_checkpoint
from xcit_mm.weights.matching import match_model
from xcit_mm.weights.reader import load_from_file


def model_from(file: Path, arch: dict = PICO, patch_size: int = 16, **pretrained) -> XCiT:
    """A backbone with a golden pyramid and random values elsewhere, its trunk from the file."""
    init_cfg = dict(type="Pretrained", checkpoint=str(file), **pretrained)
    model = fill(XCiT(arch, patch_size, init_cfg=init_cfg))
    for name, p in model.named_parameters():
        if not name.startswith("fpn"):
            nn.init.normal_(p)
    initial = {key: value.clone() for key, value in model.state_dict().items()}
    try:
        model.init_weights()
    except Exception:
        assert same(model.state_dict(), initial), "half loaded"
        raise
    return model


@pytest.mark.parametrize("source", FILES)
def test_files_of_every_project_give_the_golden_pyramid(source, tmp_path):
    patch_size = 8 if "_p8" in source else 16
    model = model_from(path_of(source, tmp_path), patch_size=patch_size)
    with torch.inference_mode():
        maps = model(image(75, 101, batch=2).float())
    assert deviation(maps, GOLDEN / f"pyramid_pico_p{patch_size}.npz", "75x101") < 1e-4


def test_the_lines_of_the_page_save_the_trunk_of_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = path_of("mmpretrain_p8.pth", tmp_path)
    (code,) = (code for _, code in blocks(ROOT / "docs" / "weights.md") if "save_file" in code)
    exec(code.replace("xcit://xcit_small_12_p16_224", str(file)))
    saved = parse_checkpoint(load_from_file("trunk.safetensors"))
    assert same(saved.trunk, parse_checkpoint(load_from_file(file)).trunk)


SAVED = official(16)
NORM = "blocks.3.norm1.bias"


def without(*prefixes: str) -> dict:
    return {key: value for key, value in SAVED.items() if not key.startswith(prefixes)}


def under(prefix: str, state: dict) -> dict:
    return {f"{prefix}{key}": value for key, value in state.items()}


def doubled(state: dict) -> dict:
    return {key: 2 * value for key, value in state.items()}


def of_fsdp(state: dict) -> dict:
    """As FSDP with activation checkpointing, which wraps the model and each block."""
    block = re.compile(r"(^blocks\.\d+\.)")
    wrapped = r"\1_fsdp_wrapped_module._checkpoint_wrapped_module."
    inner = {block.sub(wrapped, key): value for key, value in state.items()}
    return under("_fsdp_wrapped_module.", inner)


WRAPPED = {
    "Lightning": lambda state: dict(state_dict=under("model.", state), epoch=3),
    "DeepSpeed": lambda state: dict(module=state, optimizer=None, global_steps=3),
    "FSDP": of_fsdp,
    "peft": lambda state: under("base_model.model.", state),
    "AveragedModel": lambda state: under("module.", state) | dict(n_averaged=torch.tensor(3)),
    "a module of one's own": lambda state: dict(model=under("net.encoder.", state)),
    "MoCo of mmpretrain": lambda state: dict(
        state_dict=under("backbone.", state)
        | {"neck.fc0.weight": torch.ones(1), "head.predictor.weight": torch.ones(1)}
        | under("encoder_k.module.0.", doubled(state))
    ),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_a_wrapped_trunk_loads_and_a_missing_tensor_is_named(wrap, tmp_path):
    torch.save(wrap(SAVED), tmp_path / "whole.pth")
    state = model_from(tmp_path / "whole.pth").state_dict()
    loaded = {key: value for key, value in state.items() if not key.startswith("fpn")}
    assert same(loaded, {key: SAVED[key] for key in loaded})
    torch.save(wrap(without(NORM)), tmp_path / "part.pth")
    with pytest.raises(ValueError, match=f"part.pth .*it has no {NORM}"):
        model_from(tmp_path / "part.pth")


@pytest.mark.parametrize(
    "wrapping, name", [("{}.backbone.", "{}."), ("{}_backbone.", "{}_backbone.")]
)
def test_of_several_models_a_line_names_them_and_the_prefix_chooses(wrapping, name, tmp_path):
    student = wrapping.format("student")
    teacher = wrapping.format("teacher")
    content = under(student, doubled(SAVED)) | under(teacher, without("blocks.5."))
    choices = f"prefix='{name.format('student')}' or prefix='{name.format('teacher')}'"
    with pytest.raises(ValueError, match=f"it holds 2 models: give {choices}"):
        parse_checkpoint(content)
    for prefix in (student, student.removesuffix("."), name.format("student")):
        assert torch.equal(parse_checkpoint(content, prefix=prefix).trunk[NORM], 2 * SAVED[NORM])
    with pytest.raises(ValueError, match=r"no XCiT under prefix='momentum\.'"):
        parse_checkpoint(content, prefix="momentum")
    torch.save(content, tmp_path / "file.pth")
    backbone = xcit_mm.backbone(tmp_path / "file.pth", prefix=student)
    assert torch.equal(backbone.state_dict()[NORM], 2 * SAVED[NORM])
    with pytest.raises(ValueError, match="it has no blocks"):
        model_from(tmp_path / "file.pth", prefix=teacher)


def test_a_bare_model_is_taken_beside_its_teacher():
    content = SAVED | under("teacher.", doubled(SAVED))
    assert same(parse_checkpoint(content).trunk, SAVED)
    assert same(parse_checkpoint(content, prefix="teacher").trunk, doubled(SAVED))


@pytest.mark.skipif(TORCH < (2, 3), reason="compile switches off hooks of later optimizers")
def test_a_segmentor_starts_from_a_compiled_teacher_by_a_prefix():
    source = segmentor()
    expected = {key: value.clone() for key, value in source.state_dict().items()}
    source.backbone = torch.compile(source.backbone)
    source.decode_head.convs[0] = torch.compile(source.decode_head.convs[0])
    teacher = under("_orig_mod.teacher.", source.state_dict())
    model = segmentor()
    load_in_runner(
        model, dict(state_dict=under("student.", doubled(expected)) | teacher), prefix="teacher."
    )
    assert same(model.state_dict(), expected)


@pytest.mark.parametrize(
    "name, average", [("model", "model_ema"), ("state_dict", "state_dict_ema")]
)
def test_training_file_gives_the_average_on_request(name, average):
    content = {name: SAVED, average: doubled(SAVED)}
    assert same(parse_checkpoint(content).trunk, SAVED)
    assert same(parse_checkpoint(content, use_ema=True).trunk, doubled(SAVED))
    with pytest.raises(ValueError, match="no model_ema or state_dict_ema"):
        parse_checkpoint({name: SAVED}, use_ema=True)


@pytest.mark.parametrize(
    "saved, options, named",
    [
        (SAVED, dict(patch_size=8), "32x12x4/p16, but the config asks for 32x12x4/p8"),
        (without("blocks.8", "blocks.9", "blocks.1"), {}, "the file is 32x8x4/p16"),
        ({"encoder.layer1.weight": torch.ones(1)}, {}, "such as encoder.layer1.weight"),
        (SAVED | {NORM: torch.full((32,), torch.nan)}, {}, f"{NORM} with values .* not finite"),
        (SAVED | {NORM: torch.ones(32).char()}, {}, f"{NORM} with torch.int8, not torch.float32"),
        (SAVED | {"blocks.3.extra": torch.ones(2)}, {}, "it holds blocks.3.extra"),
        (SAVED | {NORM: torch.ones(33)}, {}, rf"{NORM} with shape \(33,\), not \(32,\)"),
        (SAVED | {"fpn1.0.bias": torch.ones(32)}, {}, "it has no fpn1.0.weight"),
    ],
)
def test_mismatch_raises_and_changes_nothing(saved, options, named, tmp_path):
    torch.save(saved, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=named) as error:
        model_from(tmp_path / "file.pth", **options)
    assert "\n" not in str(error.value)
    assert "file.pth" in str(error.value)


CLASSIFIER = "decode_head.conv_seg.weight"
OTHER_CLASSES = r"conv_seg.weight with shape \(7, 8, 1, 1\), not \(5, 8, 1, 1\).*strict_heads=False"


@pytest.mark.parametrize(
    "left_out, added, named",
    [
        ("decode_head.convs.0.conv.weight", {}, "has no decode_head.convs.0.conv.weight"),
        ("backbone.fpn", {}, "has no fpn1.0.weight"),
        ("none", {"decode_head.x": torch.ones(1)}, "it holds decode_head.x"),
        ("none", {"backbone.x": torch.ones(1)}, "it holds x"),
        ("none", {CLASSIFIER: torch.ones(7, 8, 1, 1)}, OTHER_CLASSES),
        ("", SAVED, "a classifier: .* init_cfg"),
    ],
)
def test_a_file_that_does_not_fit_a_model_raises_and_changes_nothing(left_out, added, named):
    model = segmentor()
    initial = {key: value.clone() for key, value in model.state_dict().items()}
    state = {key: value for key, value in initial.items() if not key.startswith(left_out)}
    with pytest.raises(ValueError, match=named):
        load_in_runner(model, dict(state_dict=state | added))
    assert same(model.state_dict(), initial)


def test_another_backbone_raises_with_the_advice_to_leave_the_hook_out():
    model = nn.ModuleDict(dict(backbone=nn.Conv2d(3, 3, 1)))
    with pytest.raises(ValueError, match=r"backbone, Conv2d, .*give an XCiT, or load the file"):
        load_in_runner(model, dict(state_dict=model.state_dict()))


@pytest.mark.parametrize("source", ["official-maskrcnn_p16.pth", "official-maskrcnn_p8.pth"])
def test_the_authors_detectors_fill_the_models_of_mmdet(source, tmp_path):
    trunk = dict(arch=PICO, out_indices=(3, 5, 7, 11), norm_cfg=dict(type="BN"))
    extractor = dict(out_channels=16)
    cfg = small_models.mask_rcnn(
        backbone=dict(trunk, patch_size=8 if "_p8" in source else 16),
        neck=dict(out_channels=16),
        rpn_head=dict(in_channels=16, feat_channels=16),
        roi_head=dict(
            bbox_head=dict(in_channels=16, num_classes=80),
            mask_head=dict(in_channels=16, num_classes=80, num_convs=4),
            bbox_roi_extractor=extractor,
            mask_roi_extractor=extractor,
        ),
    )
    init_default_scope("mmdet")
    checkpoint = load_from_file(path_of(source, tmp_path))
    state = match_model(MODELS.build(cfg.model), checkpoint)
    assert same(state, checkpoint["state_dict"])


@pytest.mark.parametrize("patch_size", [16, 8])
@pytest.mark.parametrize(
    "config, heads",
    [
        ("upernet/upernet_xcit-t12-p{}_8xb2-160k_ade20k-512x512.py", "upernet_t12_heads"),
        ("semantic_fpn/fpn_xcit-t12-p{}_8xb2-80k_ade20k-512x512.py", "semfpn_t12_heads"),
    ],
)
def test_the_authors_segmentors_fill_the_shipped_configs(config, heads, patch_size):
    cfg = Config.fromfile(CONFIGS / config.format(patch_size))
    cfg.model.backbone.init_cfg = None
    init_default_scope("mmseg")
    with torch.device("meta"):
        model = MODELS.build(cfg.model)
    trunk = {f"backbone.{key}": shape for key, shape in keys("t12", patch_size).items()}
    state = {}
    for number, (key, shape) in enumerate({**trunk, **DENSE_KEYS[heads]}.items()):
        dtype = torch.long if key.endswith("num_batches_tracked") else torch.float
        state[key] = torch.full(shape, number, dtype=dtype)
    assert same(match_model(model, dict(state_dict=state)), state)


def test_an_init_cfg_that_is_set_after_the_model_is_built_counts(tmp_path):
    torch.save({f"teacher.{key}": value for key, value in SAVED.items()}, tmp_path / "file.pth")
    model = XCiT(PICO, 16)
    model.init_cfg = dict(type="Pretrained", checkpoint=str(tmp_path / "file.pth"))
    model.init_weights()
    assert torch.equal(model.state_dict()[NORM], SAVED[NORM])
    other = XCiT(PICO, 16, init_cfg=dict(type="Pretrained", checkpoint="missing.pth"))
    other.init_cfg = None
    other.init_weights()


def test_a_wrong_option_of_init_cfg_ends_the_build():
    with pytest.raises(TypeError, match="map_location"):
        XCiT(PICO, 16, init_cfg=dict(type="Pretrained", checkpoint="x.pth", map_location="cpu"))
