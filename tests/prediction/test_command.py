"""`xcit-mm predict` as a photo's owner types it: errors of one line before any work."""

import pytest


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        (dict(source="none.jpg"), "none.jpg"),
        (dict(model="none.py"), "no config at"),
        (dict(checkpoint=None), "has no checkpoint"),
        (dict(checkpoint="detector"), "does not fit the model"),
        (dict(model="untested.py"), "the config has no test_dataloader"),
        (dict(tile=64, overlap=64), "0 <= overlap < tile"),
        (dict(overlap=64), "overlap=64"),
        (dict(device="gpu"), "device gpu"),
        (dict(root="photos"), "root photos"),
        (dict(batch_size=0), "batch_size=0"),
        (dict(min_score=0.5), "min_score=0.5"),
        (dict(overwrite=True, retry_failed=True), "overwrite and retry_failed"),
    ],
)
def test_an_error_before_the_start_is_one_line(
    replaced, message, photos, models, refusal, tmp_path, out
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
    assert message in refusal("infer", *command, "--out", out)
    assert not out.exists()
