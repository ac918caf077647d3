"""Weights files of every project, with golden values in its names and wrapping; small models.

The names, and the published parameter that each stands for, come from files that the projects' own
code wrote (`layout_names.json`, `layout_keys.json`, `dense_keys.json`; the heads of whole models
from the code of mmseg 0.11).
"""

import argparse
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import xcit_mm  # noqa: F401  # registers the hook
from helpers.golden import parameter
from helpers.paths import GOLDEN

MINI = dict(embed_dim=16, depth=6, num_heads=2, eta=1.0)
KEYS = json.loads((GOLDEN / "layout_keys.json").read_text())
DENSE_KEYS = json.loads((GOLDEN / "dense_keys.json").read_text())
_NAMES = json.loads((GOLDEN / "layout_names.json").read_text())


def _golden(shapes: dict[str, list[int]]) -> dict[str, Tensor]:
    """Golden values in float32 of tensors by name, with or without the prefix of a backbone."""
    state = {}
    for key, shape in shapes.items():
        tensor = parameter(key.removeprefix("backbone."), tuple(shape))
        state[key] = tensor.float() if tensor.is_floating_point() else tensor
    return state


def official(patch_size: int) -> dict[str, Tensor]:
    """Return the tensors of an ImageNet file of 10 classes."""
    return _golden(KEYS[f"official_p{patch_size}"])


def _named_as(project: str, patch_size: int) -> dict[str, Tensor]:
    """The same tensors under another project's names.

    A third of a published tensor NAME is NAME/0, NAME/1 or NAME/2.
    """
    published = official(patch_size)
    state = OrderedDict()
    for key, shape in KEYS[f"{project}_p{patch_size}"].items():
        name, _, third = _NAMES[project][key].partition("/")
        tensor = published[name].chunk(3)[int(third)] if third else published[name]
        assert list(tensor.shape) == shape
        state[key] = tensor.clone()
    return state


def _without_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.startswith("head.")}


def _training_file() -> dict:
    args = argparse.Namespace(model="xcit_pico", lr=5e-4)
    schedule = dict(optimizer=dict(state={}, param_groups=[]), lr_scheduler=dict(epoch=3), epoch=3)
    return dict(model=official(16), **schedule, model_ema=official(16), args=args)


def _dense(heads: str, **meta: object) -> dict:
    optimizer = dict(state={}, param_groups=[])
    meta |= dict(config="model = dict()", epoch=36, iter=263880)
    return dict(meta=meta, state_dict=_golden(DENSE_KEYS[heads]), optimizer=optimizer)


def _dino_training_file() -> dict:
    head = {"head.mlp.0.weight": torch.ones(8, 32), "head.last_layer.weight_g": torch.ones(4, 1)}
    backbone = _without_head(official(16))
    teacher = {f"backbone.{key}": value for key, value in backbone.items()} | head
    student = {f"module.{key}": torch.zeros_like(value) for key, value in teacher.items()}
    training = dict(optimizer={}, epoch=100, args=argparse.Namespace(arch="xcit"))
    return dict(student=student, teacher=teacher, **training)


COCO = dict(mmdet_version="2.11.0", CLASSES=("person", "car"))
ADE20K = dict(mmseg_version="0.11.0", CLASSES=("wall",), PALETTE=[[120, 120, 120]])
# Content by the name of the file; a .safetensors file holds tensors only.
FILES: dict[str, Callable[[], dict]] = {
    "official-imagenet_p16.pth": lambda: dict(model=official(16)),
    "official-imagenet-training_p16.pth": _training_file,
    "timm_p16.safetensors": lambda: _named_as("timm", 16),
    "timm_p8.safetensors": lambda: _named_as("timm", 8),
    "mmpretrain_p16.pth": lambda: dict(meta={}, state_dict=_named_as("mmpretrain", 16)),
    "mmpretrain_p8.pth": lambda: dict(meta={}, state_dict=_named_as("mmpretrain", 8)),
    "official-maskrcnn_p16.pth": lambda: _dense("maskrcnn_p16", **COCO),
    "official-maskrcnn_p8.pth": lambda: _dense("maskrcnn_p8", **COCO),
    "official-semfpn_p16.pth": lambda: _dense("semfpn_p16", **ADE20K),
    "dino-backbone_p16.pth": lambda: _without_head(official(16)),
    "dino-full_p16.pth": _dino_training_file,
}
CLASSIFIERS = [
    name for name in FILES if name.startswith(("official-imagenet", "timm", "mmpretrain"))
]


def path_of(name: str, folder: Path) -> Path:
    """Write one of `FILES` to a folder, and return its path."""
    path = folder / name
    save = save_file if path.suffix == ".safetensors" else torch.save
    save(FILES[name](), path)
    return path


def same(state: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return state.keys() == other.keys() and all(
        torch.equal(value, other[key]) for key, value in state.items()
    )


def segmentor(bands: int = 3) -> nn.Module:
    init_default_scope("mmseg")
    head = dict(type="mmseg.FCNHead", in_channels=16, channels=8, num_convs=1)
    backbone = dict(type="XCiT", arch=MINI, in_channels=bands, norm_cfg=dict(type="BN"))
    head["num_classes"] = 5
    return MODELS.build(dict(type="mmseg.EncoderDecoder", backbone=backbone, decode_head=head))


def load_in_runner(
    model: nn.Module,
    checkpoint: dict,
    train: bool = True,
    resume: bool = False,
    classes: Sequence[str] | None = None,
    **hook: object,
) -> None:
    """Load a checkpoint by mmengine's Runner with StrictLoadHook, by default for training on
    classes.
    """
    data = TensorDataset(torch.zeros(1))
    data.metainfo = dict(classes=classes)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pth"
        torch.save(checkpoint, path)
        runner = Runner(
            model,
            work_dir=folder,
            train_dataloader=DataLoader(data),
            train_cfg=dict(type="IterBasedTrainLoop", max_iters=1),
            optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1)),
            resume=resume,
            custom_hooks=[dict(type="StrictLoadHook", **hook)],
            experiment_name=folder,
        )
        if train:
            assert runner.train_loop  # which a runner builds on use
            runner.call_hook("before_run")
        runner.load_checkpoint(str(path))
