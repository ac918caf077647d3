"""`xcit-mm predict` as a photo's owner types it: errors of one line before any work."""

from types import SimpleNamespace

import cv2
import pytest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model none.py", "no config at"),
        ("--checkpoint {detector}", "does not fit the model"),
        ("--model {untested}", "the config has no test_dataloader"),
        ("--model {unloaded}", "LoadImageFromFile is not found"),
        ("--tile 64 --overlap 64", "0 <= overlap < tile"),
        ("--overlap 64", "overlap=64"),
        ("--device gpu", "device string: gpu"),
        ("--root photos", "root photos"),
        ("--batch-size 0", "batch_size=0"),
        ("--min-score 0.5", "min_score=0.5"),
        ("--overwrite --retry-failed", "overwrite and retry_failed"),
    ],
)
def test_an_error_before_the_start_is_one_line(
    options, message, command, photos, models, refusal, tmp_path, out
):
    base = f"_base_ = '{models['seg'][0]}'\n"
    untested = tmp_path / "untested.py"
    untested.write_text(f"{base}test_dataloader = test_evaluator = test_cfg = None\n")
    unloaded = tmp_path / "unloaded.py"
    pipeline = [dict(type="PackSegInputs")]
    unloaded.write_text(f"{base}test_dataloader = dict(dataset=dict(pipeline={pipeline}))\n")
    files = dict(detector=models["det"][1], untested=untested, unloaded=unloaded)
    options = options.format(**files).split()
    assert message in refusal(*command(photos / "00.png"), *options)
    assert not out.exists()


def test_a_missing_photo_or_checkpoint_is_one_line(command, photos, models, refusal, out):
    assert "none.jpg" in refusal(*command(photos / "none.jpg"))
    infer = ("predict", photos / "00.png", "--model", models["seg"][0], "--out", out)
    assert "has no checkpoint" in refusal(*infer)
    assert not out.exists()


@pytest.mark.parametrize("name", ["setLogLevel", "utils"])
def test_opencv_is_silent_by_the_name_of_each_version(name, command, refusal, monkeypatch):
    """`cv2.setLogLevel` until 4.12, `cv2.utils.logging.setLogLevel` from 4.13 on."""
    levels = []
    functions = dict(
        setLogLevel=levels.append,
        utils=SimpleNamespace(logging=SimpleNamespace(setLogLevel=levels.append)),
    )
    monkeypatch.delattr(cv2, "setLogLevel", raising=False)
    monkeypatch.setattr(cv2, "utils", SimpleNamespace())
    monkeypatch.setattr(cv2, name, functions[name], raising=False)
    assert "none.png" in refusal(*command("none.png"))
    assert levels == [0]
