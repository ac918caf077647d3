"""`xcit-mm predict` as a photo's owner types it: help, and errors of one line before any work."""

import sys

import infer
import pytest


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


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        (dict(source="none.jpg"), "no images or videos at"),
        (dict(model="none.py"), "no config at"),
        (dict(checkpoint=None), "has no checkpoint"),
        (dict(model="untested.py"), "the config has no test_dataloader"),
        (dict(tile=64, overlap=64), "0 <= overlap < tile"),
        (dict(overlap=64), "give the tile's side too"),
        (dict(device="gpu"), "device gpu cannot be used"),
        (dict(root="photos"), "only a list has a root"),
        (dict(batch_size=0), "batch_size=0: must be positive"),
        (dict(min_score=0.5), "min_score=0.5: only detectors have scores"),
        (dict(overwrite=True, retry_failed=True), "give one of them"),
        (dict(checkpoint="detector"), "does not fit the model"),
    ],
)
def test_an_error_before_the_start_is_one_line(
    replaced, message, photos, models, refusal, tmp_path
):
    config, checkpoint = models["seg"]
    (tmp_path / "untested.py").write_text(
        f"_base_ = '{config}'\ntest_dataloader = test_evaluator = test_cfg = None\n"
    )
    options = dict(source="00.png", model=config, checkpoint=checkpoint) | replaced
    if options["checkpoint"] == "detector":
        options["checkpoint"] = models["det"][1]
    command = [photos / options.pop("source"), "--model", tmp_path / options.pop("model")]
    for name, value in options.items():
        if value is not None:
            command.append(f"--{name.replace('_', '-')}")
            command += [] if value is True else [value]
    assert message in refusal("infer", *command, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
