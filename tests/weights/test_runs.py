"""Files in runs of mmengine."""

import pytest
import torch
from helpers.demo_runs import DEMO, SCORES
from helpers.weight_files import MINI
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

CONFIG = DEMO / f"{next(iter(SCORES))}.py"


def small_config() -> Config:
    cfg = Config.fromfile(CONFIG)
    cfg.model.backbone.arch = MINI
    cfg.model.neck.update(in_channels=[16] * 4, out_channels=16)
    cfg.model.decode_head.update(in_channels=[16] * 4, channels=16)
    return cfg


@pytest.mark.forks
@pytest.mark.parametrize("order", [("EMAHook", "StrictLoadHook"), ("StrictLoadHook", "EMAHook")])
def test_averaged_weights_start_from_the_file(order, tmp_path):
    cfg = small_config()
    init_default_scope(cfg.default_scope)
    state = MODELS.build(cfg.model).state_dict()
    torch.save(
        dict(state_dict={f"module.{name}": value for name, value in state.items()}),
        tmp_path / "ddp.pth",
    )
    runner = Runner(
        MODELS.build(cfg.model), str(tmp_path), custom_hooks=[dict(type=name) for name in order]
    )
    runner.call_hook("before_run")
    runner.load_checkpoint(str(tmp_path / "ddp.pth"))
    averaged = next(
        hook for hook in runner.hooks if type(hook).__name__ == "EMAHook"
    ).ema_model.module
    for model in (runner.model, averaged):
        torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)
