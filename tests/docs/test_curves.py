"""The page about curves: TensorBoard has losses, scores and drawings of a training."""

from pathlib import Path

import pytest
from helpers.demo_runs import DEMO, SCORES, cfg_options
from helpers.pages import blocks
from helpers.paths import ROOT


def test_tensorboard_shows_losses_scores_and_drawings(shapes, tmp_path, call, monkeypatch):
    pytest.importorskip("tensorboard", reason="needs requirements/dev.txt: make setup")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    (shown,) = (code for lang, code in blocks(ROOT / "docs" / "curves.md") if lang == "python")
    config, score = next(iter(SCORES.items()))
    shown = shown.replace("interval=10", "interval=1")  # a batch of four images
    Path("own.py").write_text(f"_base_ = {str(DEMO / config) + '.py'!r}\n{shown}")
    code, *_ = call("train", "own.py", "--work-dir", "w", *cfg_options(config, shapes, 2))
    assert code == 0
    events = EventAccumulator(str(next(tmp_path.glob("w/*/vis_data"))))
    tags = events.Reload().Tags()
    assert {"loss", "lr", score} <= set(tags["scalars"])
    assert any(tag.startswith("val") for tag in tags["images"]), tags["images"]
