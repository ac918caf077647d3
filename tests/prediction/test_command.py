"""`xcit-mm predict` as a photo's owner types it: its help, and errors of one line before any work."""

import sys

import infer
import pytest
from helpers.runs import model_of


def test_the_help_fits_a_screen(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", ["xcit-mm predict", "--help"])
    with pytest.raises(SystemExit):
        infer.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith(
        "usage: xcit-mm predict INPUT [INPUT ...] --model MODEL [--checkpoint FILE]"
    )


def test_errors_before_the_start_are_one_line(photos, models, refusal, tmp_path):
    config, seg = models["seg"]
    plain, out = photos / "00.png", ("--out", tmp_path / "out")
    untested = tmp_path / "untested.py"
    untested.write_text(
        f"_base_ = '{config}'\ntest_dataloader = test_evaluator = test_cfg = None\n"
    )
    for arguments, message in [
        ((photos / "none.jpg", *model_of((config, seg))), "no images or videos at"),
        ((plain, *model_of((tmp_path / "none.py", seg))), "no config at"),
        ((plain, "--model", config), "has no checkpoint"),
        ((plain, *model_of((untested, seg))), "the config has no test_dataloader"),
        ((plain, *model_of((config, seg)), "--tile", 64, "--overlap", 64), "0 <= overlap < tile"),
        ((plain, *model_of((config, seg)), "--overlap", 64), "give the tile's side too"),
        ((plain, *model_of((config, seg)), "--device", "gpu"), "device gpu cannot be used"),
        ((plain, *model_of((config, seg)), "--root", photos), "only a list has a root"),
        ((plain, *model_of((config, seg)), "--batch-size", 0), "batch_size=0: must be positive"),
        (
            (plain, *model_of((config, seg)), "--min-score", 0.5),
            "min_score=0.5: only detectors have scores",
        ),
        ((plain, *model_of((config, seg)), "--overwrite", "--retry-failed"), "give one of them"),
        ((plain, *model_of((config, models["det"][1]))), "does not fit the model"),
    ]:
        assert message in refusal("infer", *arguments, *out)
        assert not (tmp_path / "out").exists()
