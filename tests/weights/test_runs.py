"""Files in runs of mmengine."""

import pytest
import torch
from helpers.weight_files import same, segmentor
from mmengine.runner import Runner


@pytest.mark.forks
@pytest.mark.parametrize("order", [("EMAHook", "StrictLoadHook"), ("StrictLoadHook", "EMAHook")])
def test_averaged_weights_start_from_the_file(order, tmp_path):
    state = segmentor().state_dict()
    wrapped = {f"module.{name}": value for name, value in state.items()}
    torch.save(dict(state_dict=wrapped), tmp_path / "ddp.pth")
    hooks = [dict(type=name) for name in order]
    runner = Runner(segmentor(), str(tmp_path), custom_hooks=hooks, experiment_name="ema")
    runner.call_hook("before_run")
    runner.load_checkpoint(str(tmp_path / "ddp.pth"))
    (ema,) = (hook for hook in runner.hooks if type(hook).__name__ == "EMAHook")
    assert same(runner.model.state_dict(), state)
    assert same(ema.ema_model.module.state_dict(), state)
