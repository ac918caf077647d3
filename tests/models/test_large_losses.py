"""`WholeImageEncoderDecoder` has losses and gradients of mmseg's EncoderDecoder on the image."""

import csv
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.golden import image
from helpers.gradients import worst_error
from helpers.paths import ROOT
from helpers.processes import in_two_processes
from helpers.small_models import build, semantic_fpn, upernet
from mmengine.config import Config
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from xcit_mm.models import large, large_losses, large_training
from xcit_mm.models.labels import has_plain_labels
from xcit_mm.utils.compat import BatchNorm

WHOLE = "xcit_mm.WholeImageEncoderDecoder"
CROSS_ENTROPY = "mmseg.CrossEntropyLoss"
SIZE = (416, 160)
AUXILIARY = dict(
    type="FCNHead",
    in_channels=48,
    in_index=2,
    channels=8,
    num_convs=1,
    num_classes=5,
    norm_cfg=dict(type="BN"),
    loss_decode=dict(type=CROSS_ENTROPY, loss_weight=0.4),
)
"""A head of stride 16."""


NON_LOCAL = {name: value for name, value in AUXILIARY.items() if name != "num_convs"}
NON_LOCAL |= dict(type="NLHead", reduction=2)


def config(kind: str, window: int = 256, **head: Any) -> Config:
    """Return the config of a small Semantic FPN."""
    cfg = semantic_fpn(type=kind, backbone=dict(norm_eval=True, norm_cfg=dict(type="BN")))
    auxiliary = head.pop("auxiliary", None)
    for name, value in head.items():
        cfg.model.decode_head[name] = value
    if auxiliary:
        cfg.model.auxiliary_head = auxiliary
    if kind == WHOLE:  # which has one option more
        cfg.model.window = window
        cfg.model.backbone.with_cp = "bands"
    return cfg


def build_both(**options: Any) -> list[Any]:
    """Build the model in memory and that by windows, in training mode, with BatchNorm in eval."""
    models = []
    for kind in ("EncoderDecoder", WHOLE):
        model = build(config(kind, **options)).double().train()
        for module in model.modules():
            module.training &= not isinstance(module, BatchNorm)
        models.append(model)
    return models


def samples(batch: int = 1, ignored: int = 255) -> list[SegDataSample]:
    """Return labels in blocks of 8 pixels, with a corner and some blocks ignored."""
    chance = torch.Generator().manual_seed(3)
    found = []
    for _ in range(batch):
        blocks = torch.randint(0, 5, (1, SIZE[0] // 8, SIZE[1] // 8), generator=chance)
        blocks[:, :12, :9] = ignored
        blocks[:, 32, ::3] = ignored
        labels = blocks.repeat_interleave(8, 1).repeat_interleave(8, 2)
        found.append(SegDataSample(gt_sem_seg=PixelData(data=labels)))
    return found


def total(losses: dict[str, Tensor]) -> Tensor:
    return sum(value for name, value in losses.items() if "loss" in name)


def step(model: Any, images: Tensor, labels: list[SegDataSample]) -> tuple[dict, dict]:
    """Return the losses, and the gradients of their sum."""
    torch.manual_seed(1)  # of dropout
    losses = model.loss(images, labels)
    total(losses).backward()
    return losses, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    "options, batch",
    [
        (dict(), 1),
        (dict(window=128, dropout_ratio=0.0), 1),
        (dict(window=9999, loss_decode=dict(type=CROSS_ENTROPY, avg_non_ignore=True)), 2),
        (
            dict(
                ignore_index=4,  # mmseg takes weights for all labels
                loss_decode=[
                    dict(type=CROSS_ENTROPY, class_weight=[1.0, 2.0, 0.5, 3.0, 1.0]),
                    dict(
                        type=CROSS_ENTROPY,
                        class_weight=[1.0, 0.2, 0.5, 3.0, 1.0],
                        avg_non_ignore=True,
                    ),
                    dict(type=CROSS_ENTROPY, loss_weight=0.3, loss_name="loss_other"),
                ],
            ),
            1,
        ),
        (dict(auxiliary=AUXILIARY), 2),
        (dict(auxiliary=[AUXILIARY, AUXILIARY | dict(in_index=3)]), 1),
    ],
)
def test_losses_and_gradients_are_those_of_the_image(options, batch, monkeypatch):
    """With ignored pixels, and the same dropout of channels."""
    monkeypatch.setattr(large_losses, "BAND_LOGITS", 2**17)
    images = image(*SIZE, batch=batch)
    labels = samples(batch, options.get("ignore_index", 255))
    in_memory, by_windows = build_both(**options)
    assert by_windows.state_dict().keys() == in_memory.state_dict().keys()
    assert has_plain_labels(by_windows)  # it has no methods of its own for predictions
    expected_losses, expected = step(in_memory, images, labels)
    losses, gradients = step(by_windows, images, labels)
    assert losses.keys() == expected_losses.keys()
    for name, value in losses.items():
        torch.testing.assert_close(
            value.double(),
            expected_losses[name].double().squeeze(),
            rtol=1e-6 if "acc" in name else 1e-12,
            atol=0,
        )
    assert worst_error(gradients, expected) < 1e-10


def test_images_without_any_counted_pixel_have_no_loss():
    labels = samples()
    labels[0].gt_sem_seg.data.fill_(255)
    model = build_both(loss_decode=dict(type=CROSS_ENTROPY, avg_non_ignore=True))[1]
    losses, gradients = step(model, image(*SIZE), labels)
    assert losses["decode.loss_ce"] == 0
    assert all(not gradient.any() for gradient in gradients.values())


def test_gradients_accumulate_are_scaled_and_are_not_those_of_a_clone():
    """As by GradScaler, by gradients that accumulate over two images, and in EMA."""
    images = image(*SIZE, batch=2)
    labels = samples(2)
    found = []
    for model in build_both(dropout_ratio=0.0):
        clone = deepcopy(model)
        for number in (0, 1):
            part = slice(number, number + 1)
            (2**16 / 2 * total(model.loss(images[part], labels[part]))).backward()
        found.append({name: p.grad / 2**16 for name, p in model.named_parameters()})
        assert all(parameter.grad is None for parameter in clone.parameters())
    assert worst_error(found[1], found[0]) < 1e-10


def test_half_precision_is_as_exact_as_in_memory():
    """After a call without gradients, which casts the weights."""
    images = image(*SIZE)
    labels = samples()
    exact = step(build_both(dropout_ratio=0.0)[0], images, labels)[1]
    errors = []
    for model in build_both(dropout_ratio=0.0):
        model.float()
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                model.loss(images.float(), labels)
            losses = model.loss(images.float(), labels)
        (64 * total(losses)).backward()
        gradients = {name: p.grad.double() / 64 for name, p in model.named_parameters()}
        errors.append([(gradients[n] - g).norm() / g.norm() for n, g in exact.items()])
    in_memory, ours = (sum(error) / len(error) for error in errors)
    assert ours < 1.2 * in_memory < 0.2


@pytest.mark.parametrize("frozen", ["backbone", "backbone.blocks", "decode_head", "neck"])
def test_frozen_parts_have_no_gradients(frozen):
    found = []
    for model in build_both(auxiliary=AUXILIARY):
        model.get_submodule(frozen).requires_grad_(False)
        found.append(step(model, image(*SIZE), samples())[1])
    assert worst_error(found[1], found[0]) < 1e-10
    assert all(grad is None for name, grad in found[1].items() if name.startswith(frozen))


def test_batch_norm_of_heads_sees_windows_and_still_trains():
    model = build(config(WHOLE)).train()
    before = model.decode_head.scale_heads[0][0].bn.running_mean.clone()
    losses, gradients = step(model, image(*SIZE).float(), samples())
    assert losses["decode.loss_ce"].isfinite()
    assert (model.decode_head.scale_heads[0][0].bn.running_mean != before).any()
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def train_rank(rank: int, folder: Path) -> None:
    """Save the gradients of one of two processes, of an image of its own."""
    torch.set_num_threads(1)
    large.MIN_ROWS, large_training.CPU_BAND = 4, 1
    store = f"file://{folder / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    model = DistributedDataParallel(Losses(build_both(dropout_ratio=0.0)[1]))
    part = slice(rank, rank + 1)
    total(model(image(*SIZE, batch=2)[part], samples(2)[part])).backward()
    gradients = {name: p.grad for name, p in model.module.model.named_parameters()}
    torch.save(gradients, folder / f"{rank}.pth")
    torch.distributed.destroy_process_group()


class Losses(nn.Module):
    """Calls the losses of a model, as mmengine's wrapper does."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: list[SegDataSample]) -> dict[str, Tensor]:
        return self.model.loss(images, labels)


def test_two_processes_have_the_gradients_of_one_with_both_images(tmp_path):
    in_two_processes(train_rank, tmp_path)
    model = build_both(dropout_ratio=0.0)[0]
    expected = step(model, image(*SIZE, batch=2), samples(2))[1]
    for rank in (0, 1):
        assert worst_error(torch.load(tmp_path / f"{rank}.pth"), expected) < 1e-10


@pytest.mark.parametrize(
    "head, problem",
    [
        (dict(loss_decode=dict(type=CROSS_ENTROPY, use_sigmoid=True)), "CrossEntropyLoss in FPN"),
        (dict(loss_decode=dict(type=CROSS_ENTROPY, reduction="sum")), "CrossEntropyLoss in FPN"),
        (dict(sampler=dict(type="OHEMPixelSampler")), "OHEMPixelSampler in FPNHead selects pixels"),
        (dict(align_corners=True), "FPNHead sees more than a window and 128 pixels around it: "),
        (
            dict(auxiliary=AUXILIARY | dict(loss_decode=dict(type="DiceLoss"))),
            "DiceLoss in FCNHead is not a plain mean over pixels: set loss_decode=",
        ),
        (
            dict(auxiliary=AUXILIARY | dict(num_convs=3, dilation=6, in_index=3)),
            "FCNHead sees more than a window and 128 pixels around it: take FPN and FPNHead",
        ),
        (
            dict(auxiliary=AUXILIARY | dict(num_convs=2, concat_input=True, in_index=3)),
            "FCNHead sees more than a window",  # with the neck, and the resizing of logits
        ),
        (
            dict(auxiliary=NON_LOCAL),
            "NLHead sees more than a window",  # though its attention begins as zeros
        ),
    ],
)
def test_what_windows_cannot_train_is_named_when_built(head, problem):
    with pytest.raises(ValueError, match=re.escape(problem)) as error:
        build(config(WHOLE, **head))
    assert "\n" not in str(error.value)


def test_pools_coarser_maps_and_other_backbones_are_refused():
    cfg = upernet()
    cfg.model.update(type=WHOLE)
    cfg.model.backbone.update(with_cp="bands", norm_eval=True)
    with pytest.raises(ValueError, match="UPerHead sees more than a window and 128 pixels"):
        build(cfg)
    cfg = config(WHOLE, auxiliary=AUXILIARY | dict(in_index=4))
    cfg.model.neck.num_outs = 5  # the last of stride 64, at whose cells windows do not start
    with pytest.raises(ValueError, match="FPN sees more than a window"):
        build(cfg)
    cfg = config(WHOLE)
    cfg.model.backbone.with_cp = True
    with pytest.raises(ValueError, match="give an XCiT with with_cp='bands' and norm_eval=True"):
        build(cfg)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, mode, most", [("trunk", "bands", 0.37), ("semantic_fpn", "windows-384", 0.7)]
)
def test_a_step_of_n12_at_4096_pixels_takes_little_memory(model, mode, most, tmp_path):
    """In GB above the resting process, of Semantic FPN with 150 classes."""
    command = [sys.executable, ROOT / "benchmarks" / "large_steps.py", "--models", model]
    command += ["--sizes", "4096", "--modes", mode, "--out", tmp_path / "steps"]
    subprocess.run(list(map(str, command)), check=True, cwd=ROOT)
    with (tmp_path / "steps.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["memory_gb"]) < most


def test_sides_that_windows_cannot_divide_are_named():
    """And labels of another size than the image's."""
    problem = r"labels of \[\(416, 160\)\] pixels must have .*multiples of 32: set data_prep"
    model = build(config(WHOLE))
    for size in ((416, 152), (384, 160)):
        with pytest.raises(ValueError, match=problem):
            model.loss(image(*size), samples())


def test_mmseg_is_imported_when_a_config_names_the_class():
    script = (
        "import sys, xcit_mm; from mmengine.registry import MODELS;"
        "assert 'mmseg' not in sys.modules; assert MODELS.get('xcit_mm.WholeImageEncoderDecoder');"
        "assert 'mmseg' in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
