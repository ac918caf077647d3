"""With `ignore_padding`, the output of an image in a padded batch equals its output alone."""

from collections.abc import Sequence

import pytest
import torch
from mmengine.utils import digit_version
from torch import Tensor, nn

from xcit_mm import XCiT
from xcit_mm.archs import ARCHS, PATCH_SIZES
from xcit_mm.models import backbone
from xcit_mm.models.padding import run_jointly, unpad
from xcit_mm.utils.compat import BatchNorm

BN = dict(type="BN")
SIZES = ((96, 128), (61, 75), (128, 33), (61, 75))  # two of one size; most sides are not multiples of a patch


def twin(name: str) -> dict:
    """A narrow architecture of the same depth and heads."""
    arch = ARCHS[name]
    return dict(embed_dim=4 * arch.num_heads, depth=arch.depth, num_heads=arch.num_heads, eta=arch.eta)


def build(arch: str | dict, patch_size: int = 16, **kwargs) -> XCiT:
    torch.manual_seed(0)
    model = XCiT(arch, patch_size, norm_cfg=BN, ignore_padding=True, **kwargs)
    for name, parameter in model.named_parameters():
        if "gamma" in name:
            nn.init.normal_(parameter, 0.5, 0.1)
    for module in model.modules():
        if isinstance(module, BatchNorm):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.bias)
    return model


def images(sizes: Sequence[tuple[int, int]] = SIZES, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(3, *size, generator=generator).to(dtype) for size in sizes]


def pad(items: Sequence[Tensor], size: tuple[int, int] = (130, 140)) -> Tensor:
    batch = items[0].new_zeros(len(items), 3, *size)
    for padded, item in zip(batch, items, strict=True):
        padded[:, : item.shape[1], : item.shape[2]] = item
    return batch


def check(maps: Sequence[Tensor], alone: Sequence[Sequence[Tensor]], tolerance: float) -> None:
    """Check that cells of an image are as alone, and cells of the padding zero."""
    for level, batch in enumerate(maps):
        for index, found in enumerate(batch):
            expected = alone[index][level][0]
            height, width = expected.shape[1:]
            deviation = (found[:, :height, :width] - expected).abs().max() / expected.abs().mean()
            assert deviation <= tolerance, (level, index)
            assert not found[:, height:].any() and not found[:, :, width:].any()


@pytest.mark.parametrize("patch_size", PATCH_SIZES)
@pytest.mark.parametrize("name", ARCHS)
def test_outputs_and_gradients_of_an_image_are_those_alone(name, patch_size):
    model = build(twin(name), patch_size).double().eval()
    items = images()
    alone = [model(item[None]) for item in items]
    shapes = [m.shape[2:] for m in build(twin(name), patch_size).double().eval()(torch.randn(1, 3, 130, 140).double())]
    maps = model(pad(items))
    assert [m.shape[2:] for m in maps] == shapes  # as large as without the option
    check(maps, alone, 1e-10)
    parameters = list(model.parameters())
    together = torch.autograd.grad(sum(m.square().sum() for m in maps), parameters)
    apart = torch.autograd.grad(sum(m.square().sum() for maps in alone for m in maps), parameters)
    for a, b in zip(together, apart, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10 * b.abs().max().item())


@pytest.mark.parametrize("name", ["plain", "gram", "covariance"])
@pytest.mark.parametrize("options", [dict(), dict(with_cp=True), dict(frozen_stages=3), dict(patch_embed="linear")])
def test_training_with_norm_eval_gives_each_image_its_output_alone(name, options):
    model = build(twin("n12"), attn_implementation=name, norm_eval=True, **options).double().train()
    items = images()
    check(model(pad(items)), [model(item[None]) for item in items], 1e-10)


def test_without_the_option_padding_changes_the_output():
    model = build(twin("n12")).double().eval()
    model.ignore_padding = False
    items = images()
    with torch.no_grad(), pytest.raises(AssertionError):
        check(model(pad(items)), [model(item[None]) for item in items], 1e-2)


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def test_batch_norm_in_training_sees_no_padding():
    """Images of one size have the same outputs, gradients and running statistics with and without padding."""
    items = images([(61, 75)] * 3)
    results = []
    for batch in (torch.stack(items), pad(items)):
        model = build(twin("t12"), 8).double().train()
        maps = [m[:, :, : 64 // s, : 80 // s] for m, s in zip(model(batch), (4, 8, 16, 32), strict=True)]
        gradients = torch.autograd.grad(sum(m.square().sum() for m in maps), list(model.parameters()))
        results.append((maps, gradients, statistics(model)))
    (maps, gradients, kept), (padded_maps, padded_gradients, padded_kept) = results
    for a, b in zip((*maps, *gradients), (*padded_maps, *padded_gradients), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * b.abs().max().item())
    torch.testing.assert_close(kept, padded_kept, rtol=1e-9, atol=1e-9)


def test_statistics_of_several_sizes_cover_all_cells():
    norm = nn.BatchNorm2d(5, momentum=1.0).double().train()
    maps = [torch.randn(b, 5, h, w, dtype=torch.float64) for b, h, w in ((2, 3, 4), (1, 7, 2))]
    found = run_jointly([norm], maps)
    cells = torch.cat([m.transpose(0, 1).flatten(1) for m in maps], dim=1)  # (5, 38)
    mean, deviation = cells.mean(dim=1), cells.std(dim=1, correction=0)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, cells.var(dim=1))
    for m, out in zip(maps, found, strict=True):
        torch.testing.assert_close(out, (m - mean.view(5, 1, 1)) / deviation.view(5, 1, 1), rtol=1e-4, atol=1e-4)
    assert int(norm.num_batches_tracked) == 1


def test_without_running_statistics_all_images_normalise_together():
    """In eval mode as in training: the two modes have the same outputs."""
    norm_cfg = dict(type="BN", track_running_stats=False)
    model = XCiT(twin("n12"), norm_cfg=norm_cfg, ignore_padding=True).double()
    trained, tested = (model.train(mode)(pad(images())) for mode in (True, False))
    torch.testing.assert_close(trained, tested)


def test_checkpointing_counts_a_batch_once():
    results = []
    for with_cp in (False, True):
        model = build(twin("n12"), with_cp=with_cp).double().train()
        sum(m.square().sum() for m in model(pad(images()))).backward()
        results.append((statistics(model), [p.grad for p in model.parameters()]))
    torch.testing.assert_close(*results)


def test_a_full_batch_takes_the_path_without_padding(monkeypatch):
    model = build(twin("n12")).eval()
    batch = torch.randn(2, 3, 64, 96)
    batch[:, :, :40, :50] = 0  # zeros within an image are not padding
    monkeypatch.setattr(backbone, "forward_unpadded", None)
    with torch.no_grad():
        found = model(batch)
        model.ignore_padding = False
        assert all(map(torch.equal, found, model(batch)))


def test_an_uncertain_size_is_rejected():
    batch = pad(images([(96, 128), (61, 75)], torch.float32))
    batch[1, :, 30, 20] = 0
    with pytest.raises(ValueError, match=r"^image 1 of the batch holds zeros in all channels within its 61x75 pixels"):
        unpad(batch, 32)


def test_small_and_empty_images():
    batch = torch.zeros(3, 3, 64, 64)
    batch[0, :, :5, :7] = 1
    batch[1] = 1
    found = unpad(batch, 32)
    assert found.indices == [[0], [1, 2]]  # an image of zeros fills the batch
    assert [tuple(images.shape) for images in found.images] == [(1, 3, 32, 32), (2, 3, 64, 64)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    model = build(twin("n12")).eval()
    items = images(dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        check(model(pad(items)), [model(item[None]) for item in items], 0.1)


@pytest.mark.slow
@pytest.mark.skipif(digit_version(torch.__version__) < (2, 6), reason="torch 2.4 does not trace sizes that are data")
def test_compiled():
    """The graph breaks where sizes are recognised, which are data. A batch of other sizes compiles again."""
    torch._dynamo.reset()  # models of other tests do not count towards the limit of recompilations
    model = build({**twin("n12"), "depth": 1}, out_indices=(0,)).double().train()
    compiled = torch.compile(model, backend="aot_eager")
    for sizes in ([(64, 96), (61, 75)], [(40, 50), (33, 96)]):
        batch = pad(images(sizes))
        results = []
        for run in (compiled, model):
            maps = run(batch)
            gradients = torch.autograd.grad(sum(m.square().mean() for m in maps), tuple(model.parameters()))
            results.append((*maps, *gradients))
        torch.testing.assert_close(*results)


@pytest.mark.slow
def test_s12_at_full_size_in_float32():
    model = build("s12").eval()
    items = images([(800, 1344), (608, 800)], torch.float32)
    with torch.no_grad():
        check(model(pad(items, (800, 1344))), [model(item[None]) for item in items], 1e-5)
