"""StrictLoadHook in mmengine's runs: lenient on request only, and only where training starts."""

import pytest
import torch
from demo_runs import DEMO, SCORES, cfg_options
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from processes import run_tool
from weight_files import MINI

CONFIG = DEMO / f"{next(iter(SCORES))}.py"
LENIENT = """
_base_ = {base!r}
custom_hooks = [dict(type="StrictLoadHook", strict_heads=False)]
"""


@pytest.fixture
def other_classes(tmp_path) -> str:
    """A checkpoint of the demo's segmentor with 3 classes, where the config has 5."""
    cfg = Config.fromfile(CONFIG)
    init_default_scope(cfg.default_scope)
    cfg.model.decode_head.num_classes = 3
    torch.save(dict(meta={}, state_dict=MODELS.build(cfg.model).state_dict()), tmp_path / "three.pth")
    return str(tmp_path / "three.pth")


def test_heads_for_other_classes_only_where_training_starts(other_classes, shapes, tmp_path):
    lenient = tmp_path / "lenient.py"
    lenient.write_text(LENIENT.format(base=str(CONFIG)))
    options = cfg_options(CONFIG.stem, shapes, 1)
    shapes_differ = "decode_head.conv_seg.weight of (3, 128, 1, 1), not (5, 128, 1, 1)"
    misfit = f"HeadMismatch: the checkpoint does not fit the model: it holds {shapes_differ}"

    run = run_tool("test", lenient, other_classes, *options, cwd=tmp_path)
    assert run.returncode == 1
    assert run.stderr.startswith(misfit)
    assert len(run.stderr.strip().splitlines()) == 1
    assert "strict_heads" not in run.stderr

    run = run_tool("train", lenient, *options, f"load_from={other_classes}", cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    assert "left at their initial values: decode_head.conv_seg.weight, decode_head.conv_seg.bias" in run.stdout

    run = run_tool("train", CONFIG, *options, f"load_from={other_classes}", cwd=tmp_path)
    assert run.returncode == 1
    assert shapes_differ in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1
    assert "to fine-tune, StrictLoadHook with strict_heads=False" in run.stderr


@pytest.mark.parametrize("order", [("EMAHook", "StrictLoadHook"), ("StrictLoadHook", "EMAHook")])
def test_averaged_weights_start_from_the_file(order, tmp_path):
    cfg = Config.fromfile(CONFIG)
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.arch = MINI
    cfg.model.neck.update(in_channels=[16] * 4)
    state = MODELS.build(cfg.model).state_dict()
    torch.save(dict(state_dict={f"module.{name}": value for name, value in state.items()}), tmp_path / "ddp.pth")
    runner = Runner(MODELS.build(cfg.model), str(tmp_path), custom_hooks=[dict(type=name) for name in order])
    runner.call_hook("before_run")
    runner.load_checkpoint(str(tmp_path / "ddp.pth"))
    averaged = next(hook for hook in runner.hooks if type(hook).__name__ == "EMAHook").ema_model.module
    for model in (runner.model, averaged):
        torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)
