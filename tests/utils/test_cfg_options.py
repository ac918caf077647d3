"""`--cfg-options`: a key that nothing reads is refused, and a key that is new is named."""

from pathlib import Path

import pytest
from helpers.paths import CONFIGS

from xcit_mm import read_config

DET = CONFIGS / "demo" / "mask-rcnn_xcit-n12-p16_shapes-quick.py"


@pytest.mark.parametrize("key", ["lr", "optim_wraper.optimizer.lr", "max_iters"])
def test_a_first_name_that_no_run_reads_is_refused(key):
    """Also that of a variable, whose value the parts of the config have copied."""
    with pytest.raises(ValueError, match=f"cfg_options: a config has no setting {key}: "):
        read_config(DET, {key: 3})


@pytest.mark.parametrize(
    "options, line",
    [
        ({"train_cfg.max_iters": 3}, None),
        ({"param_scheduler.1.end": 9}, None),
        ({"efficient_conv_bn_eval": ["backbone"]}, None),  # read by the runner
        ({"train_cfg.max_iter": 3}, "train_cfg.max_iter"),
        ({"train_cfg._delete_": True, "train_cfg.epochs": 3}, "train_cfg.epochs"),
    ],
    ids=str,
)
def test_a_new_key_is_applied_and_named(options, line, capsys):
    cfg = read_config(DET, options)
    assert capsys.readouterr().err == (f"new key in the config: {line}\n" if line else "")
    key, value = list(options.items())[-1]
    changed = cfg
    for name in key.split("."):
        changed = changed[int(name) if isinstance(changed, list) else name]
    assert changed == value


def test_a_path_from_python_is_a_text_in_the_config_of_a_run():
    cfg = read_config(DET, {"load_from": Path("runs/one.pth")})
    assert "load_from = 'runs/one.pth'" in cfg.pretty_text
