"""Every shipped config has the hooks of docs/training.md."""

import runpy
from pathlib import Path

import pytest
import yaml
from mmengine.config import Config
from paths import CONFIGS, ROOT

SHIPPED = sorted(path for path in CONFIGS.glob("*/*.py") if path.parent.name != "_base_")


def hooks_of(path: Path) -> tuple[list[dict], dict]:
    if "mmpretrain::" in path.read_text():  # mmpretrain is optional
        content = runpy.run_path(str(path))
        return content["custom_hooks"], content["default_hooks"]
    cfg = Config.fromfile(path)
    return cfg.custom_hooks, cfg.default_hooks


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_config_has_the_hooks_for_long_runs(path):
    custom, default = hooks_of(path)
    assert {"StrictLoadHook", "NonFiniteHook"} <= {hook["type"] for hook in custom}
    assert default["checkpoint"]["type"] == "ResumableCheckpointHook"


def test_every_config_of_the_model_index_exists():
    index = yaml.safe_load((ROOT / "model-index.yml").read_text())["Import"]
    models = [model for file in index for model in yaml.safe_load((ROOT / file).read_text())["Models"]]
    assert models
    assert {ROOT / model["Config"] for model in models} <= set(SHIPPED)
