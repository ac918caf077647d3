"""Properties of a config depend neither on its style, nor on the place of its preprocessor or of
the normalisation.
"""

import copy
from typing import Any

import pytest
from helpers.configs import parse_cfg_options, read_config_file
from helpers.demo_runs import DEMO, SCORES, cfg_options
from mmengine.config import Config
from mmengine.registry import (
    DATA_SAMPLERS,
    DATASETS,
    HOOKS,
    LOOPS,
    METRICS,
    MODELS,
    TASK_UTILS,
    TRANSFORMS,
    init_default_scope,
)

from xcit_mm import XCiT
from xcit_mm.checks.doctor import check_training
from xcit_mm.deployment.metadata import find_unsupported
from xcit_mm.utils.config_parts import backbone_class, part_class
from xcit_mm.utils.configs import read_config
from xcit_mm.utils.model_input import ModelInput

REGISTRIES = (MODELS, TASK_UTILS, DATASETS, DATA_SAMPLERS, TRANSFORMS, METRICS, LOOPS, HOOKS)
SHAPES = DEMO / "fpn_xcit-n12-p16_shapes.py"


def put_classes(part: Any, scope: str) -> None:
    """Replace the names of types by classes, as mmengine's pure Python style has them."""
    if isinstance(part, dict):
        classes = (part_class(part, registry, scope) for registry in REGISTRIES)
        registered = next((found for found in classes if isinstance(found, type)), None)
        if registered is not None:
            part["type"] = registered
        part = list(part.values())
    if isinstance(part, list | tuple):
        for inner in part:
            put_classes(inner, scope)


def properties(cfg: Config) -> tuple:
    """Return what the doctor finds in a config, and how it reads images."""
    findings = [str(finding) for finding in check_training(copy.deepcopy(cfg))]
    inputs = ModelInput(cfg)
    return findings, inputs.channel_order, inputs.side, inputs.normalisation


@pytest.mark.parametrize("name", SCORES)
def test_classes_give_the_findings_and_properties_of_names(name, shapes):
    _, *options = cfg_options(name, shapes, iterations=1)
    named = read_config(DEMO / f"{name}.py", parse_cfg_options(options))
    cfg = copy.deepcopy(named)
    init_default_scope(cfg.default_scope)
    put_classes(dict(cfg.items()), cfg.default_scope)
    assert backbone_class(cfg) is cfg.model.backbone.type is XCiT
    assert find_unsupported(cfg) is None
    assert properties(cfg) == properties(named)


def test_a_config_in_the_home_folder_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.py").write_text("model = dict(type='XCiT')")
    assert read_config("~/own.py").model.type == "XCiT"


@pytest.mark.parametrize("is_step", [False, True], ids=["preprocessor", "Normalize"])
@pytest.mark.parametrize("swaps", [True, False])
def test_the_preprocessor_may_swap_channels_and_a_step_too(swaps, is_step):
    cfg = read_config_file(SHAPES)
    statistics = dict(mean=[1.5], std=[2.5])
    preprocessor = cfg.model.data_preprocessor
    preprocessor.update(bgr_to_rgb=swaps, **statistics)
    if is_step:
        preprocessor.update(mean=None, std=None)
        step = dict(type="Normalize", **statistics, to_rgb=True)
        cfg.test_dataloader.dataset.pipeline.insert(1, step)
    inputs = ModelInput(cfg)
    assert inputs.channel_order == ("RGB" if swaps != is_step else "BGR")
    assert inputs.normalisation == ([1.5], [2.5])
