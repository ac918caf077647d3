"""Files of every layout fill backbones and whole models, or change nothing."""

from pathlib import Path

import pytest
import torch
from helpers import small_models
from helpers.golden import GOLDEN, PICO, deviation, fill, image, keys
from helpers.pages import blocks
from helpers.paths import CONFIGS, ROOT
from helpers.weight_files import (
    DENSE_KEYS,
    load_in_runner,
    official,
    path_of,
    same,
    segmentor,
    sources,
)
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from xcit_mm import XCiT
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


@pytest.mark.parametrize("source", sources())
def test_files_of_every_project_give_the_golden_pyramid(source, tmp_path):
    patch_size = 8 if "_p8" in source else 16
    model = model_from(path_of(source, tmp_path), patch_size=patch_size)
    with torch.inference_mode():
        maps = model(image(75, 101, batch=2).float())
    assert deviation(maps, GOLDEN / f"pyramid_pico_p{patch_size}.npz", "75x101") < 1e-4


@pytest.mark.parametrize("source", sources())
def test_the_lines_of_the_page_save_the_trunk_of_every_file(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = path_of(source, tmp_path)
    (code,) = (code for _, code in blocks(ROOT / "docs" / "weights.md") if "save_file" in code)
    exec(code.replace("xcit://xcit_small_12_p16_224", str(file)))
    saved = parse_checkpoint(load_from_file("trunk.safetensors"))
    assert same(saved.trunk, parse_checkpoint(load_from_file(file)).trunk)


@pytest.mark.parametrize(
    "prefix", ["", "module.", "module._orig_mod.", "_orig_mod.module.", "_orig_mod._orig_mod."]
)
def test_a_compiled_and_wrapped_segmentor_fills_the_whole_model(prefix):
    source = segmentor()
    expected = {key: value.clone() for key, value in source.state_dict().items()}
    source.backbone = torch.compile(source.backbone)
    source.decode_head.convs[0] = torch.compile(source.decode_head.convs[0])
    state = {f"{prefix}{key}": value for key, value in source.state_dict().items()}
    model = segmentor()
    load_in_runner(model, dict(state_dict=state))
    assert same(model.state_dict(), expected)


@pytest.mark.parametrize("names", [("model", "model_ema"), ("state_dict", "state_dict_ema")])
def test_training_file_gives_the_average_on_request(names):
    state = official(16)
    averaged = {key: 2 * value for key, value in state.items()}
    file = dict(zip(names, (state, averaged), strict=True))
    assert same(parse_checkpoint(file).trunk, state)
    assert same(parse_checkpoint(file, use_ema=True).trunk, averaged)
    with pytest.raises(ValueError, match="no model_ema or state_dict_ema"):
        parse_checkpoint(dict(model=state), use_ema=True)


NORM = "blocks.3.norm1.bias"
SAVED = official(16)
NAN = torch.full((32,), torch.nan)


def without(*prefixes: str) -> dict:
    return {key: value for key, value in SAVED.items() if not key.startswith(prefixes)}


@pytest.mark.parametrize(
    "saved, options, named",
    [
        (SAVED, dict(patch_size=8), "32x12x4/p16, the config asks for 32x12x4/p8"),
        (SAVED, dict(arch=dict(PICO, embed_dim=64)), "the config asks for 64x12x4/p16"),
        (without("blocks.8", "blocks.9", "blocks.1"), {}, "the file is 32x8x4/p16"),
        (without("blocks.5."), {}, r"it lacks blocks.5.* and \d+ more"),
        ({f"encoder.{key}": value for key, value in SAVED.items()}, {}, "encoder.cls"),
        ({key: value.long() for key, value in SAVED.items()}, {}, "of torch.int64, not"),
        (SAVED | {NORM: NAN.to(torch.float8_e4m3fn)}, {}, f"{NORM} with values .* not finite"),
        (SAVED | {f"_orig_mod.{NORM}": SAVED[NORM]}, {}, "with and without _orig_mod"),
        (SAVED | {"blocks.3.extra": torch.ones(2)}, {}, "unknown blocks.3.extra"),
        (SAVED | {NORM: torch.ones(33)}, {}, rf"{NORM} of \(33,\), not \(32,\)"),
        (SAVED | {"fpn1.0.bias": torch.ones(32)}, {}, "it lacks fpn1.0.weight"),
        (dict(meta=dict(epoch=3)), {}, "'meta' is a dict"),
        ([1, 2, 3], {}, "a list"),
    ],
)
def test_mismatch_raises_and_changes_nothing(saved, options, named, tmp_path):
    torch.save(saved, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=named) as error:
        model_from(tmp_path / "file.pth", **options)
    assert "\n" not in str(error.value)
    assert "file.pth" in str(error.value)


@pytest.mark.parametrize(
    "key, named",
    [
        ("decode_head.convs.0.conv.weight", "lacks decode_head.convs.0.conv.weight"),
        ("backbone.fpn1.0.weight", "lacks fpn1.0.weight"),
        ("decode_head.x", "unknown decode_head.x"),
        ("backbone.cls_token", "unknown cls_token"),
    ],
)
def test_a_missing_or_unknown_tensor_of_a_model_raises_and_changes_nothing(key, named):
    state = segmentor().state_dict()
    if state.pop(key, None) is None:
        state[key] = torch.ones(1)
    model = segmentor()
    initial = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=named):
        load_in_runner(model, dict(state_dict=state))
    assert same(model.state_dict(), initial)


def test_the_file_of_a_classifier_is_for_the_backbone():
    with pytest.raises(ValueError, match=r"a classifier: .* init_cfg"):
        load_in_runner(segmentor(), dict(state_dict=official(16)))


@pytest.mark.parametrize("parts", [{}, dict(backbone=nn.Conv2d(3, 3, 1))])
def test_another_backbone_raises_with_the_advice_to_leave_the_hook_out(parts):
    model = nn.ModuleDict(parts)
    with pytest.raises(ValueError, match=r"backbone, \w+, .*leave StrictLoadHook out"):
        load_in_runner(model, dict(state_dict=model.state_dict()))


def test_heads_for_other_classes_keep_their_values_on_request_alone():
    state = segmentor(num_classes=7).state_dict()
    model = segmentor()
    initial = model.decode_head.conv_seg.weight.clone()
    message = r"conv_seg.weight of \(7, 8, 1, 1\), not \(5, 8, 1, 1\).*strict_heads=False"
    with pytest.raises(ValueError, match=message):
        load_in_runner(model, dict(state_dict=state))
    load_in_runner(model, dict(state_dict=state), strict_heads=False)
    assert torch.equal(model.decode_head.conv_seg.weight, initial)
    key = "decode_head.convs.0.conv.weight"
    assert torch.equal(model.state_dict()[key], state[key])


@pytest.mark.parametrize("source", sources("official-maskrcnn_p16.pth", "official-maskrcnn_p8.pth"))
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
