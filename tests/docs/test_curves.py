"""The page about curves: TensorBoard has losses, scores and drawings of a training."""

import re

import pytest
from helpers.demo_runs import DEMO, SCORES, cfg_options
from helpers.pages import blocks
from helpers.paths import ROOT
from helpers.processes import run_tool


def test_tensorboard_shows_losses_scores_and_drawings(shapes, tmp_path):
    pytest.importorskip("tensorboard", reason="needs requirements/dev.txt: make setup")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (shown,) = (code for lang, code in blocks(ROOT / "docs" / "curves.md") if lang == "python")
    config, score = next(iter(SCORES.items()))
    base = f"_base_ = {str(DEMO / config) + '.py'!r}\n"
    shown = re.sub("interval=10", "interval=1", shown)  # a batch of four images
    (tmp_path / "own.py").write_text(base + shown)
    options = cfg_options(config, shapes, 2)
    run = run_tool("train", "own.py", "--work-dir", "w", *options, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    events = EventAccumulator(str(next(tmp_path.glob("w/*/vis_data"))))
    tags = events.Reload().Tags()
    assert {"loss", "lr", score} <= set(tags["scalars"])
    assert any(tag.startswith("val") for tag in tags["images"]), tags["images"]
