"""NonFiniteHook names the source of a non-finite value, stores it for replay, and protects the weights."""

import copy
import io
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_runs import DEMO, SCORES, cfg_options
from devices import allow_mixed_precision, on_each_device
from mmengine.hooks import Hook
from mmengine.model import BaseDataPreprocessor, BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import MODELS
from mmengine.runner import Runner
from mmengine.structures import InstanceData, PixelData
from paths import CONFIGS
from processes import run_tool
from tiny_recipes import tiny
from torch import nn

from xcit_mm import NonFiniteHook, XCiT
from xcit_mm.training import replay
from xcit_mm.training.snapshots import read_snapshot, write_snapshot

TINY = dict(embed_dim=32, depth=2, num_heads=4, eta=1.0)
BAD = 3  # the iteration with the bad batch
SEG, DET = SCORES


@MODELS.register_module()
class Probe(BaseModel):
    """A backbone whose loss depends on the kind of the batch."""

    def __init__(self, classes: int = 1, **kwargs) -> None:
        super().__init__(**kwargs)
        self.backbone = XCiT(TINY, out_indices=(0, 1), norm_cfg=dict(type="BN"), drop_path_rate=0.1)
        self.head = nn.Conv2d(32, classes, 1)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, inputs, kind, mode="loss"):
        self.calls += 1
        x = self.head(self.backbone(inputs)[1])
        if mode == "tensor":
            return x
        if kind in ("matching", "bug") and (kind == "bug" or not x.isfinite().all()):
            raise ValueError("matrix contains invalid numeric entries")
        loss = x.square().mean() * (1e3 if kind == "large" else 1)
        if kind == "gradient":  # the root's derivative at 0 is infinite
            loss = (loss * 0).sqrt()
        return dict(loss_root=loss, accuracy=torch.tensor(float("nan")))


@MODELS.register_module()
class WithMean(BaseDataPreprocessor):
    """A data preprocessor with a buffer, as those of all libraries have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3), persistent=False)


def batches(kind: str) -> list[dict]:
    torch.manual_seed(1)
    images = [torch.rand(2, 3, 64, 64) for _ in range(6)]
    if kind == "input":
        images[BAD][0, 0, 0, 0] = float("nan")
    elif kind in ("overflow", "matching"):
        images[BAD] *= 1e38
    elif kind == "statistics":  # a fill value: only the variance overflows
        images[BAD][0, 0, 0, 0] = 1e30
    return [dict(inputs=image, kind=kind if number == BAD else "good") for number, image in enumerate(images)]


def train(tmp_path, kind: str, optim_wrapper: dict | None = None, max_iters: int = 6, **hook) -> Runner:
    torch.manual_seed(0)
    optim_wrapper = optim_wrapper or dict(optimizer=dict(type="AdamW", lr=1e-3), clip_grad=dict(max_norm=1.0))
    runner = Runner(
        Probe(),
        work_dir=str(tmp_path),
        cfg=dict(model=dict(type="Probe")),
        train_dataloader=torch.utils.data.DataLoader(batches(kind), collate_fn=lambda batch: batch[0]),
        optim_wrapper=optim_wrapper,
        train_cfg=dict(type="IterBasedTrainLoop", max_iters=max_iters),
        custom_hooks=[dict(type="NonFiniteHook", **hook)],
        experiment_name=f"{kind}{len(list(tmp_path.iterdir()))}",
    )
    runner.states = []

    def remember(optimizer, *_):
        runner.states.append({k: v.clone() for k, v in runner.model.state_dict().items()})

    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    runner.optim_wrapper.optimizer.register_step_post_hook(remember)
    return runner


class Pair(Probe):
    """A model with an optimizer for the backbone and an optimizer for the head."""

    def train_step(self, data, optim_wrapper):
        loss, log = self.parse_losses(self(**data))
        loss.backward()
        for wrapper in optim_wrapper.values():
            wrapper.step()
            wrapper.zero_grad()
        return log


class Peek(Hook):
    """Computes features in training mode."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        with torch.no_grad():
            runner.model(data_batch["inputs"], "good", mode="tensor")


def replay_arguments(message: str) -> tuple[str, str]:
    """Config and snapshot of the command in an error."""
    return re.search(r"; python tools/replay\.py (\S+) (\S+) reproduces it", message).groups()


CASES = dict(
    input="the input holds values that are not finite",
    overflow=r"the loss is (nan|inf), first in the output of backbone\.patch_embed\.proj\.0\.",
    gradient=r"the loss is 0, but gradients are not finite, first that of head\.(weight|bias)",
    matching=r"the forward pass raised ValueError: matrix contains invalid numeric entries after the output of "
    r"backbone\.patch_embed\.proj\.0\.",
    statistics=r"loss and gradients are finite, but the buffer backbone\.patch_embed\.proj\.0\.1\.running_var is not",
)


@pytest.mark.parametrize("kind", CASES)
def test_stop_names_the_module_and_keeps_the_weights(kind, tmp_path):
    runner = train(tmp_path, kind)
    with pytest.raises(FloatingPointError, match=rf"iteration {BAD}: {CASES[kind]}") as error:
        runner.train()
    torch.testing.assert_close(dict(runner.model.state_dict()), runner.states[-1], rtol=0, atol=0)
    assert len(runner.states) == BAD
    config, snapshot = replay_arguments(str(error.value))
    assert snapshot == str(tmp_path / f"non_finite_iter_{BAD}.pth")
    assert str(error.value).startswith(replay(config, snapshot))


def test_replay_uses_a_data_preprocessor_beside_the_model(tmp_path):
    runner = train(tmp_path, "input")
    runner.model.data_preprocessor = WithMean()
    with pytest.raises(FloatingPointError) as error:
        runner.train()
    (tmp_path / "beside.py").write_text("model = dict(type='Probe')\ndata_preprocessor = dict(type='WithMean')\n")
    _, snapshot = replay_arguments(str(error.value))
    assert str(error.value).startswith(replay(tmp_path / "beside.py", snapshot))


@pytest.mark.parametrize("kind", CASES)
def test_skip_leaves_out_the_batch_and_continues(kind, tmp_path):
    runner = train(tmp_path, kind, action="skip")
    runner.train()
    assert runner.model.calls == 5  # buffers that are not persistent are restored too
    assert all(value.isfinite().all() for value in runner.model.state_dict().values())
    if kind == "matching":
        assert len(runner.states) == 5  # without the optimizer step of the batch
        return
    parameters = dict(runner.model.named_parameters())
    for name in parameters:
        assert torch.equal(runner.states[BAD - 1][name], runner.states[BAD][name])
    assert any(not torch.equal(runner.states[BAD][name], runner.states[BAD + 1][name]) for name in parameters)


def test_max_skips_stops_training(tmp_path):
    runner = train(tmp_path, "input", action="skip", max_skips=0)
    with pytest.raises(FloatingPointError, match="0 skipped before"):
        runner.train()
    with pytest.raises(ValueError, match="action='ignore': choose 'stop' or 'skip'"):
        NonFiniteHook("ignore")


def test_error_of_the_forward_pass_with_finite_values_is_raised_unchanged(tmp_path):
    with pytest.raises(ValueError, match=r"^matrix contains invalid numeric entries$") as error:
        train(tmp_path, "bug", action="skip").train()
    assert error.value.__cause__ is error.value.__context__ is None
    assert not list(tmp_path.glob("non_finite*"))


def test_gradient_accumulation_names_the_bad_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "BAD", 2)  # the first of two that make a step
    wrapper = dict(optimizer=dict(type="AdamW", lr=1e-3), accumulative_counts=2)
    with pytest.raises(FloatingPointError, match=f"iteration 2: {CASES['gradient']}.* reproduces it") as error:
        train(tmp_path, "gradient", wrapper).train()
    assert str(error.value).startswith(replay(*replay_arguments(str(error.value))))


def test_training_continues_after_a_stop(tmp_path):
    runner = train(tmp_path, "input")
    with pytest.raises(FloatingPointError):
        runner.train()
    runner.train_loop.dataloader.dataset[BAD]["inputs"].nan_to_num_()
    runner.train()
    assert len(runner.states) == 6
    assert runner.model.train_step.__func__ is BaseModel.train_step


def test_forward_passes_without_loss_are_ignored(tmp_path):
    runner = train(tmp_path, "gradient", action="skip")
    runner.register_hook(Peek())
    runner.train()
    assert len(list(tmp_path.glob("non_finite*"))) == 1


def load_saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, load_saved])
def test_model_can_be_copied_and_saved_during_training(copied, tmp_path):
    runner = train(tmp_path, "input")
    copies = []
    with pytest.raises(FloatingPointError):
        runner.optim_wrapper.optimizer.register_step_post_hook(lambda *_: copies.append(copied(runner.model)))
        runner.train()
    wrapper = OptimWrapper(torch.optim.SGD(copies[0].parameters(), lr=1e-3))
    loss = copies[0].train_step(batches("input")[BAD], wrapper)["loss"]
    assert loss.isnan()  # the hook does not inspect the copy
    assert len(list(tmp_path.glob("non_finite*"))) == 1


@pytest.mark.parametrize("kind", [*CASES, "good"])
def test_several_optimizers_report_an_iteration_once(kind, tmp_path):
    runner = train(tmp_path, kind, action="skip")
    runner.model.__class__ = Pair
    parts = dict(backbone=runner.model.backbone, head=runner.model.head)
    runner.optim_wrapper = OptimWrapperDict(
        **{name: OptimWrapper(torch.optim.SGD(part.parameters(), lr=1e-3)) for name, part in parts.items()}
    )
    runner.param_schedulers = None
    runner.train()
    assert len(list(tmp_path.glob("non_finite*"))) == (kind != "good")
    assert next(hook for hook in runner._hooks if isinstance(hook, NonFiniteHook)).skips == (kind != "good")
    assert all(value.isfinite().all() for value in runner.model.state_dict().values())


def test_finite_training_is_bit_identical(tmp_path):
    with_hook, without = train(tmp_path, "good"), train(tmp_path, "good")
    without._hooks = [hook for hook in without._hooks if not isinstance(hook, NonFiniteHook)]
    for runner in (with_hook, without):
        torch.manual_seed(0)
        runner.train()
    torch.testing.assert_close(with_hook.states, without.states, rtol=0, atol=0)


@pytest.fixture
def scaled(device, monkeypatch):
    """An optim_wrapper config for mixed precision, which mmengine has for GPUs only, with a loss scaler."""
    allow_mixed_precision(device, monkeypatch)

    def config(scale: float, fused: bool, clip: bool, dtype: str = "bfloat16") -> dict:
        optimizer = dict(type="AdamW", lr=1e-3, fused=fused)
        clip_grad = dict(max_norm=1.0) if clip else None
        scaler = dict(loss_scale=dict(init_scale=scale), dtype=dtype)
        return dict(type="AmpOptimWrapper", optimizer=optimizer, clip_grad=clip_grad, **scaler)

    return config


@on_each_device
@pytest.mark.parametrize("fused, clip", [(False, True), (True, False)])
class TestLossScaling:
    def test_overflow_is_left_to_the_scaler(self, fused, clip, device, scaled, tmp_path):
        runner = train(tmp_path, "large", scaled(2.0**127, fused, clip))
        runner.train()
        assert next(runner.model.parameters()).device.type == device
        assert runner.optim_wrapper.loss_scaler.get_scale() == 2.0**126  # it has overflowed once
        assert all(value.isfinite().all() for value in runner.model.state_dict().values())
        assert not list(tmp_path.glob("non_finite*"))

    def test_small_scale_without_overflow_is_not_reported(self, fused, clip, device, scaled, tmp_path):
        train(tmp_path, "good", dict(scaled(0.5, fused, clip), accumulative_counts=2)).train()
        assert not list(tmp_path.glob("non_finite*"))

    @pytest.mark.parametrize("kind", ["input", "gradient"])
    def test_nan_at_scale_1_stops_training(self, kind, fused, clip, device, scaled, tmp_path):
        runner = train(tmp_path, kind, scaled(1.0, fused, clip))
        with pytest.raises(FloatingPointError, match=rf"iteration {BAD}: {CASES[kind]}"):
            runner.train()
        assert all(value.isfinite().all() for value in runner.model.state_dict().values())


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda"])
@pytest.mark.parametrize("fused", [False, True])
def test_float16_training_passes_overflows_until_the_scale_fits(fused, device, scaled, tmp_path):
    """mmengine computes in float16 on GPUs only."""
    runner = train(tmp_path, "good", scaled(2.0**40, fused, True, "float16"), max_iters=60)
    runner.train()
    assert runner.optim_wrapper.loss_scaler.get_scale() < 2.0**40
    assert any(not torch.equal(runner.states[-1][name], value) for name, value in runner.states[0].items())
    assert all(value.isfinite().all() for value in runner.model.state_dict().values())
    assert not list(tmp_path.glob("non_finite*"))


@pytest.mark.parametrize("config", [SEG, pytest.param(DET, marks=pytest.mark.slow)])
def test_replay_command_names_the_module_of_a_stopped_run(config, shapes, tmp_path, monkeypatch, capsys):
    options = [*cfg_options(config, shapes, 4), "optim_wrapper.optimizer.lr=1e30", "param_scheduler=None"]
    run = run_tool("train", DEMO / f"{config}.py", "--work-dir", tmp_path / "work", *options, cwd=tmp_path)
    assert run.returncode == 1
    message = run.stderr.splitlines()[-1].removeprefix("FloatingPointError: ")
    found = re.fullmatch(r"(iteration 1: the loss is nan, first in the output of [a-z][\w.]+ \(\w+\)); .*", message)
    assert found, message

    import replay as tool

    monkeypatch.setattr(sys, "argv", ["replay.py", *replay_arguments(message)])
    tool.main()
    assert capsys.readouterr().out.strip().splitlines()[-1] == found[1]


@pytest.mark.slow
def test_mask2former_stops_where_its_matching_raises(shapes, tmp_path):
    cfg = tiny(CONFIGS / "mask2former" / "mask2former_xcit-s12-p16_8xb2-lsj-50e_coco.py", shapes)
    cfg.model.backbone.norm_cfg = dict(type="BN")
    cfg.optim_wrapper.update(optimizer=dict(type="AdamW", lr=1e30), clip_grad=None)
    cfg.train_cfg = dict(type="IterBasedTrainLoop", max_iters=4)
    for part in ("dataloader", "evaluator", "cfg"):
        cfg[f"val_{part}"] = cfg[f"test_{part}"] = None
    cfg.update(param_scheduler=None, work_dir=str(tmp_path), experiment_name=tmp_path.name)
    cfg.default_hooks.pop("visualization")
    pattern = r"iteration 1: the forward pass raised ValueError: matrix contains .* after the output of [a-z][\w.]+ \("
    with pytest.raises(FloatingPointError, match=pattern) as error:
        Runner.from_cfg(cfg).train()
    assert str(error.value).startswith(replay(*replay_arguments(str(error.value))))


class TestSnapshots:
    """Snapshots hold values only."""

    @pytest.fixture
    def runs(self, tmp_path) -> tuple[str, Path]:
        """Config and snapshot of a run that stopped."""
        with pytest.raises(FloatingPointError) as error:
            train(tmp_path, "input").train()
        config, snapshot = replay_arguments(str(error.value))
        return config, Path(snapshot)

    def test_code_in_a_snapshot_does_not_run(self, runs, refusal):
        config, snapshot = runs
        mark = snapshot.with_name("mark")
        content = torch.load(snapshot, weights_only=False)

        class Code:
            def __reduce__(self):
                return os.system, (f"touch {mark}",)

        torch.save(dict(content, kwargs=Code()), snapshot)
        assert "it names posix.system, which might run code" in refusal("replay", config, snapshot)
        # A config in the file could name any function as a `type`.
        assert not any("config" in key or "model" in key for key in content)
        for place in ("os.system", "system"):
            structure = dict(structure=place, arguments=dict(command=f"touch {mark}"))
            torch.save(dict(content, kwargs=structure), snapshot)
            assert f"{snapshot} is damaged: KeyError: '{place}'" in refusal("replay", config, snapshot)
        assert not mark.exists()

    def test_wrong_snapshot_is_an_error_in_one_line(self, runs, refusal):
        config, snapshot = runs
        none = snapshot.with_name("none.pth")
        assert refusal("replay", config, none) == f"FileNotFoundError: no checkpoint at {none}: check the path"
        torch.save(dict(state_dict={}), none)
        assert f"{none} is not a snapshot of NonFiniteHook: it lacks args" in refusal("replay", config, none)
        other = snapshot.with_name("other.py")
        other.write_text("model = dict(type='Probe', classes=2)\n")
        line = refusal("replay", other, snapshot)
        assert f"is of another model than {other}: they differ in head.bias; give the config of the run" in line

    def test_batches_of_every_library_are_restored(self, tmp_path):
        from mmdet.structures import DetDataSample
        from mmdet.structures.bbox import HorizontalBoxes
        from mmdet.structures.mask import BitmapMasks, PolygonMasks
        from mmseg.structures import SegDataSample

        boxes = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        polygons = [[np.array([0.0, 0.0, 4.0, 0.0, 4.0, 4.0])]]
        det = DetDataSample(metainfo=dict(img_shape=(8, 8), scale_factor=(0.5, 0.5), matrix=np.eye(3), flip=None))
        det.gt_instances = InstanceData(
            bboxes=HorizontalBoxes(boxes), labels=torch.tensor([2]), masks=PolygonMasks(polygons, 8, 8)
        )
        det.ignored_instances = InstanceData(bboxes=boxes, masks=BitmapMasks(np.ones((1, 8, 8), np.uint8), 8, 8))
        seg = SegDataSample(gt_sem_seg=PixelData(data=torch.arange(64).view(1, 8, 8)), metainfo=dict(ori_shape=(8, 8)))
        keys = ("iteration", "parameters", "buffers", "args", "autocast", "random_state")
        content = dict.fromkeys(keys, 0)
        write_snapshot(dict(content, kwargs=dict(data_samples=[det, seg])), tmp_path / "file.pth")
        one, other = read_snapshot(tmp_path / "file.pth")["kwargs"]["data_samples"]
        assert (type(one), type(other)) == (DetDataSample, SegDataSample)
        assert one.metainfo.keys() == det.metainfo.keys()
        assert (one.img_shape, one.flip, other.metainfo) == ((8, 8), None, seg.metainfo)
        assert np.array_equal(one.matrix, np.eye(3))
        assert torch.equal(one.gt_instances.bboxes.tensor, boxes)
        assert torch.equal(one.gt_instances.labels, det.gt_instances.labels)
        assert np.array_equal(one.gt_instances.masks.to_ndarray(), det.gt_instances.masks.to_ndarray())
        assert np.array_equal(one.ignored_instances.masks.masks, det.ignored_instances.masks.masks)
        assert torch.equal(other.gt_sem_seg.data, seg.gt_sem_seg.data)

    def test_batch_that_cannot_be_stored_is_reported_beside_the_module(self, tmp_path):
        runner = train(tmp_path, "input")
        for batch in runner._train_dataloader.dataset:
            batch["kind"] = Path(batch["kind"])
        with pytest.raises(FloatingPointError, match=rf"{CASES['input']}; no snapshot: a batch with .*PosixPath"):
            runner.train()
        assert not list(tmp_path.glob("non_finite*"))
