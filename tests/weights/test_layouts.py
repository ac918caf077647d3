"""Files of every layout fill backbones and whole models, or change nothing."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from golden import GOLDEN, PICO, deviation, fill, image, keys
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import BaseLoop
from mmengine.runner.checkpoint import _load_checkpoint_to_model
from paths import CONFIGS
from torch import nn
from weight_files import DENSE_KEYS, KEYS, MINI, official, path_of, sources

from xcit_mm import StrictLoadHook, XCiT
from xcit_mm.weights.layouts import parse_checkpoint, to_layout
from xcit_mm.weights.matching import load_pretrained, match_model
from xcit_mm.weights.reader import load_from_file


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


@pytest.mark.parametrize("source", sources())
def test_files_of_every_project_give_the_golden_pyramid(source, tmp_path):
    patch_size = 8 if "_p8" in source else 16
    model = model_from(path_of(source, tmp_path), patch_size=patch_size)
    for height, width in [(64, 96), (75, 101), (224, 160)]:
        with torch.inference_mode():
            maps = model(image(height, width, batch=2).float())
        assert deviation(maps, GOLDEN / f"pyramid_pico_p{patch_size}.npz", f"{height}x{width}") < 1e-4


class TestLayouts:
    @pytest.mark.parametrize("patch_size", [16, 8])
    @pytest.mark.parametrize("layout", ["timm", "mmpretrain"])
    def test_converted_names_and_shapes_are_the_project_s_own(self, layout, patch_size):
        content = to_layout(parse_checkpoint(dict(model=official(patch_size))), layout)
        state = content.get("state_dict", content)
        assert {key: list(value.shape) for key, value in state.items()} == KEYS[f"{layout}_p{patch_size}"]

    @pytest.mark.parametrize("patch_size", [16, 8])
    @pytest.mark.parametrize("layout", ["official", "timm", "mmpretrain"])
    def test_there_and_back_is_bit_equal(self, layout, patch_size):
        state = official(patch_size)
        found = parse_checkpoint(to_layout(parse_checkpoint(dict(model=state)), layout))
        assert (found.layout, found.task) == (layout, "classifier")
        assert found.trunk.keys() == state.keys()
        assert all(torch.equal(found.trunk[key], value) for key, value in state.items())

    def test_dino_gives_the_teacher(self):
        teacher = {f"module.backbone.{key}": value for key, value in official(16).items()}
        student = {key: torch.zeros_like(value) for key, value in teacher.items()}
        found = parse_checkpoint(dict(student=student, teacher=teacher, epoch=3, optimizer={}))
        assert found.source == "teacher"
        assert torch.equal(found.trunk["norm.weight"], teacher["module.backbone.norm.weight"])

    def test_training_file_gives_model_or_ema_on_request(self):
        content = dict(model=official(16), model_ema={key: 2 * value for key, value in official(16).items()})
        assert torch.equal(parse_checkpoint(content).trunk["norm.bias"], content["model"]["norm.bias"])
        assert torch.equal(
            parse_checkpoint(content, use_ema=True).trunk["norm.bias"], content["model_ema"]["norm.bias"]
        )
        timm = dict(state_dict=content["model"], state_dict_ema=content["model_ema"])
        assert torch.equal(parse_checkpoint(timm, use_ema=True).trunk["norm.bias"], content["model_ema"]["norm.bias"])
        with pytest.raises(ValueError, match="no model_ema or state_dict_ema: load it without use_ema"):
            parse_checkpoint(dict(model=official(16)), use_ema=True)


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
            parse_checkpoint(state)

    def test_a_failed_load_can_be_tried_again(self, tmp_path):
        model = XCiT(MINI, init_cfg=dict(type="Pretrained", checkpoint=str(tmp_path / "late.pth")))
        with pytest.raises(FileNotFoundError):
            model.init_weights()
        source = XCiT(MINI).state_dict()
        torch.save(source, tmp_path / "late.pth")
        model.init_weights()
        assert torch.equal(model.blocks[0].attn.qkv.weight, source["blocks.0.attn.qkv.weight"])

    def test_heads_of_any_name_make_a_whole_model(self):
        state = {f"backbone.{key}": value for key, value in XCiT(MINI).state_dict().items()}
        found = parse_checkpoint(dict(state_dict={**state, "panoptic_head.weight": torch.ones(1)}))
        assert (found.task, list(found.heads)) == ("detector", ["panoptic_head.weight"])


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


def build_small(task: str, patch_size: int) -> nn.Module:
    """Today's Mask R-CNN or Semantic FPN, as small as the golden checkpoints'."""
    cfg = Config.fromfile(CONFIGS / f"demo/{task}_xcit-n12-p16_shapes.py")
    cfg.model.backbone.arch = PICO
    backbone = dict(patch_size=patch_size, norm_cfg=dict(type="BN"))
    if task == "fpn":
        heads = dict(decode_head=dict(in_channels=[32] * 4, channels=16, num_classes=150))
        neck = dict(in_channels=[32] * 4, out_channels=32)
    else:
        box = dict(in_channels=16, fc_out_channels=32, num_classes=80)
        mask = dict(in_channels=16, conv_out_channels=16, num_classes=80)
        extractor = dict(out_channels=16)
        heads = dict(
            rpn_head=dict(in_channels=16, feat_channels=16),
            roi_head=dict(bbox_head=box, mask_head=mask, bbox_roi_extractor=extractor, mask_roi_extractor=extractor),
        )
        neck = dict(in_channels=[32] * 4, out_channels=16)
    cfg.merge_from_dict(dict(model=dict(backbone=backbone, neck=neck, **heads)))
    init_default_scope(cfg.default_scope)
    return MODELS.build(cfg.model)


class TestWholeModels:
    def load(self, model: nn.Module, checkpoint: dict, **kwargs) -> None:
        """As mmengine's Runner does it where training begins."""
        runner = SimpleNamespace(model=model, _train_loop=Mock(spec=BaseLoop), _resume=False)
        StrictLoadHook(**kwargs).after_load_checkpoint(runner, checkpoint)
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

    @pytest.mark.parametrize(
        "backbone, found", [(None, "no backbone"), (nn.Conv2d(3, 3, 1), "a Conv2d as its backbone")]
    )
    def test_models_of_other_backbones_are_told_to_leave_the_hook_out(self, backbone, found):
        model = nn.Sequential()
        if backbone:
            model.add_module("backbone", backbone)
        with pytest.raises(ValueError, match=f"^the model has {found}, .*: leave StrictLoadHook out"):
            self.load(model, dict(state_dict=model.state_dict()))

    def test_other_classes_on_request_only(self, caplog):
        state = build_segmentor(7).state_dict()
        with pytest.raises(ValueError, match=r"conv_seg.weight of \(7, 8, 1, 1\), not \(5, 8, 1, 1\).*strict_heads"):
            self.load(build_segmentor(5), dict(state_dict=state))
        # Where a model is used, or resumed, the heads are needed as well.
        with pytest.raises(ValueError, match=r"\(other classes\? take the config that it was trained with\)$"):
            match_model(build_segmentor(5), dict(state_dict=state))
        target = build_segmentor(5)
        before = target.decode_head.conv_seg.weight.clone()
        self.load(target, dict(state_dict=dict(state)), strict_heads=False)
        assert torch.equal(target.decode_head.conv_seg.weight, before)
        key = "decode_head.convs.0.conv.weight"
        assert torch.equal(target.state_dict()[key], state[key])

    @pytest.mark.parametrize(
        "source", sources("official-maskrcnn_p16.pth", "official-maskrcnn_p8.pth", "official-semfpn_p16.pth")
    )
    def test_the_authors_files_fill_todays_models(self, source, tmp_path):
        model = build_small("mask-rcnn" if "maskrcnn" in source else "fpn", 8 if "_p8" in source else 16)
        checkpoint = load_from_file(str(path_of(source, tmp_path)))
        given = dict(checkpoint["state_dict"])
        self.load(model, checkpoint)
        assert all(torch.equal(value, given[key]) for key, value in model.state_dict().items())

    @pytest.mark.parametrize(
        "config, heads",
        [
            ("upernet/upernet_xcit-t12-p16_8xb2-160k_ade20k-512x512.py", "upernet_t12_heads"),
            ("upernet/upernet_xcit-t12-p8_8xb2-160k_ade20k-512x512.py", "upernet_t12_heads"),
            ("semantic_fpn/fpn_xcit-t12-p16_8xb2-80k_ade20k-512x512.py", "semfpn_t12_heads"),
            ("semantic_fpn/fpn_xcit-t12-p8_8xb2-80k_ade20k-512x512.py", "semfpn_t12_heads"),
        ],
    )
    def test_the_authors_segmentors_fill_the_shipped_ones(self, config, heads):
        cfg = Config.fromfile(CONFIGS / config)
        cfg.model.backbone.init_cfg = None
        init_default_scope("mmseg")
        model = MODELS.build(cfg.model)
        trunk = {f"backbone.{key}": shape for key, shape in keys("t12", cfg.model.backbone.patch_size).items()}
        shapes = {**trunk, **DENSE_KEYS[heads]}
        # A value for each tensor, and a whole number where batches are counted.
        given = {key: torch.full(shape, number) for number, (key, shape) in enumerate(shapes.items())}
        given = {key: value if key.endswith("num_batches_tracked") else value.float() for key, value in given.items()}
        self.load(model, dict(meta=dict(mmseg_version="0.11.0"), state_dict=dict(given)))
        assert model.state_dict().keys() == given.keys()
        assert all(torch.equal(value, given[key]) for key, value in model.state_dict().items())
