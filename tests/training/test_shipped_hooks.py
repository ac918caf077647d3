"""Every shipped config has what docs/training.md promises for long runs."""

import functools
import runpy
from pathlib import Path

import pytest
import yaml
from mmengine.config import Config
from mmengine.config import utils as config_utils
from paths import CONFIGS, ROOT

SHIPPED = sorted(path for path in CONFIGS.glob("*/*.py") if path.parent.name != "_base_")


@pytest.fixture(scope="module", autouse=True)
def metafiles_read_once():
    """mmengine reads all metafiles of a library for every base of a config, which takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config_utils, "load", functools.cache(config_utils.load))
        yield


def hooks_of(path: Path) -> tuple[list[dict], dict]:
    if "mmpretrain::" in path.read_text():  # an extra, which may not be installed
        content = runpy.run_path(str(path))
        return content["custom_hooks"], content["default_hooks"]
    cfg = Config.fromfile(path)
    return cfg.custom_hooks, cfg.default_hooks


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_config_loads_strictly_resumes_and_catches_what_is_not_finite(path):
    custom, default = hooks_of(path)
    assert {"StrictLoadHook", "NonFiniteHook"} <= {hook["type"] for hook in custom}
    assert default["checkpoint"]["type"] == "ResumableCheckpointHook"


def test_every_config_of_the_model_index_is_here():
    index = yaml.safe_load((ROOT / "model-index.yml").read_text())["Import"]
    models = [model for file in index for model in yaml.safe_load((ROOT / file).read_text())["Models"]]
    assert models
    assert {ROOT / model["Config"] for model in models} <= set(SHIPPED)
