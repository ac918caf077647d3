"""Files in mmengine's runs: StrictLoadHook is lenient on request only, and runs resume whatever their files hold."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from demo_runs import DEMO, SCORES, cfg_options
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.runner import Runner
from mmseg.datasets import BaseSegDataset
from processes import run_tool
from weight_files import MINI

from xcit_mm.weights.reader import load_from_file

CONFIG = DEMO / f"{next(iter(SCORES))}.py"


def small_config() -> Config:
    cfg = Config.fromfile(CONFIG)
    cfg.model.backbone.arch = MINI
    cfg.model.neck.update(in_channels=[16] * 4, out_channels=16)
    cfg.model.decode_head.update(in_channels=[16] * 4, channels=16)
    return cfg


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
    lenient.write_text(f"_base_ = '{CONFIG}'\ncustom_hooks = [dict(type='StrictLoadHook', strict_heads=False)]\n")
    options = cfg_options(CONFIG.stem, shapes, 1)
    misfit = "CheckpointMismatch: the checkpoint does not fit the model: it holds decode_head.conv_seg.weight of"

    run = run_tool("test", lenient, other_classes, *options, cwd=tmp_path)
    assert run.returncode == 1
    assert run.stderr.startswith(misfit)
    assert len(run.stderr.strip().splitlines()) == 1
    assert "strict_heads" not in run.stderr

    run = run_tool("train", lenient, *options, f"load_from={other_classes}", cwd=tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    assert "left at their initial values: decode_head.conv_seg.weight, decode_head.conv_seg.bias" in run.stdout


@pytest.mark.forks
@pytest.mark.parametrize("order", [("EMAHook", "StrictLoadHook"), ("StrictLoadHook", "EMAHook")])
def test_averaged_weights_start_from_the_file(order, tmp_path):
    cfg = small_config()
    init_default_scope(cfg.default_scope)
    state = MODELS.build(cfg.model).state_dict()
    torch.save(dict(state_dict={f"module.{name}": value for name, value in state.items()}), tmp_path / "ddp.pth")
    runner = Runner(MODELS.build(cfg.model), str(tmp_path), custom_hooks=[dict(type=name) for name in order])
    runner.call_hook("before_run")
    runner.load_checkpoint(str(tmp_path / "ddp.pth"))
    averaged = next(hook for hook in runner.hooks if type(hook).__name__ == "EMAHook").ema_model.module
    for model in (runner.model, averaged):
        torch.testing.assert_close(dict(model.state_dict()), dict(state), rtol=0, atol=0)


# Values that the class of a data set may hold; a config adds dicts, which mmengine makes ConfigDicts.
RICH = dict(anchors=np.zeros((0, 4)), weights=np.ones(5, np.float32), void={"sky"}, pairs={("circle", 1): 0.5}, key=b"")


def rich_run(shapes: Path, work_dir: Path, iterations: int, **options: object) -> Runner:
    """A short run of the demo on a data set whose metainfo holds more than classes and palette."""
    cfg = small_config()
    cfg.train_cfg.update(max_iters=iterations, val_interval=100)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(batch_size=2, num_workers=0, persistent_workers=False)
        loader.dataset.update(type="RichDataset", data_root=str(shapes))
        loader.dataset.metainfo.update(source=dict(camera=dict(name="none", lenses=[dict(f=35), (1, 2)])))
    cfg.default_hooks.checkpoint.interval = 2
    cfg.update(work_dir=str(work_dir), experiment_name=f"rich-{work_dir.name}-{iterations}", **options)
    return Runner.from_cfg(cfg)


@pytest.mark.forks
def test_run_with_rich_metainfo_resumes(shapes, tmp_path, caplog, monkeypatch):
    monkeypatch.setitem(DATASETS.module_dict, "RichDataset", type("Rich", (BaseSegDataset,), dict(METAINFO=RICH)))
    rich_run(shapes, tmp_path, 2).train()
    content = load_from_file(str(tmp_path / "iter_2.pth"))
    for metainfo in (content["meta"]["dataset_meta"], content["message_hub"]["runtime_info"]["dataset_meta"]):
        np.testing.assert_equal({key: metainfo[key] for key in RICH}, RICH)
        assert metainfo["anchors"].dtype == RICH["anchors"].dtype
        assert type(metainfo["source"]) is type(metainfo["source"].camera.lenses[0]) is ConfigDict
        assert metainfo["source"].camera.lenses == [dict(f=35), (1, 2)]
    with caplog.at_level(logging.WARNING):
        second = rich_run(shapes, tmp_path, 4, resume=True)
        second.train()
    init_default_scope("mmengine")
    assert second.iter == 4 and (tmp_path / "iter_4.pth").is_file()
    assert not [line for line in caplog.messages if "metainfo" in line]  # compared byte by byte, as it was written
