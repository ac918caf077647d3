"""A training with `with_cp="bands"` is that with `with_cp=True`, to rounding."""

from pathlib import Path

import pytest
from helpers.demo_runs import DEMO
from helpers.small_models import read
from mmengine.runner import Runner

from xcit_mm.models import large, large_training


def train(with_cp: bool | str, shapes: Path, work: Path) -> list[float]:
    """Train the demo's segmentor in float64 for ten iterations, and return their losses."""
    cfg = read(DEMO / "fpn_xcit-n12-p16_shapes.py")
    cfg.model.backbone.update(with_cp=with_cp, norm_eval=True, drop_path_rate=0.2)
    cfg.train_dataloader.update(batch_size=2, num_workers=0, persistent_workers=False)
    cfg.train_dataloader.dataset.data_root = str(shapes)
    for split in ("val", "test"):
        cfg.update({f"{split}_{part}": None for part in ("dataloader", "cfg", "evaluator")})
    cfg.train_cfg = dict(type="IterBasedTrainLoop", max_iters=10)
    cfg.optim_wrapper.accumulative_counts = 2
    cfg.custom_hooks.append(dict(type="EMAHook"))
    cfg.update(work_dir=str(work), experiment_name=str(with_cp))
    runner = Runner.from_cfg(cfg)
    runner.model.double()
    runner.train()
    return runner.message_hub.get_scalar("train/loss").data[0].tolist()


@pytest.mark.slow
def test_a_training_has_the_losses_of_one_in_memory(shapes, tmp_path, monkeypatch):
    """With clipped gradients that accumulate, averaged weights and drop path."""
    expected = train(True, shapes, tmp_path / "memory")
    monkeypatch.setattr(large, "MIN_ROWS", 2)
    monkeypatch.setattr(large_training, "CPU_BAND", 1)
    monkeypatch.setattr(large_training, "CPU_BYTES", 0)
    losses = train("bands", shapes, tmp_path / "bands")
    assert len(losses) == 10
    assert len(set(losses)) == 10
    assert losses == pytest.approx(expected, rel=0, abs=1e-8)
