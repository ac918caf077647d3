"""`xcit-mm predict` as a photo's owner types it: errors of one line before any work."""

import pytest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--checkpoint {detector}", "does not fit the model"),
        ("--model {untested}", "the config has no test_dataloader"),
        ("--model {unloaded}", "LoadImageFromFile is not found"),
        ("--tile 64 --overlap 64", "0 <= overlap < tile"),
        ("--device gpu", "device string: gpu"),
        ("--batch-size 0", "batch_size=0"),
        ("--min-score 0.5", "min_score=0.5"),
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
    assert message in refusal(*command(photos / "00.png"), *options.format(**files).split())
    assert not out.exists()


def test_a_config_without_a_checkpoint_is_one_line(photos, models, refusal, out):
    line = refusal("predict", photos / "00.png", "--model", models["seg"][0], "--out", out)
    assert "has no checkpoint" in line and not out.exists()
