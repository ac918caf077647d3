"""Properties of a config depend neither on its style, nor on the place of its preprocessor or of
the normalisation.
"""

import re
from pathlib import Path

import pytest
from helpers.configs import read_config_file
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
from xcit_mm.checks.doctor import diagnose
from xcit_mm.deployment.metadata import find_unsupported, normalisation
from xcit_mm.utils.cli import parse_cfg_options
from xcit_mm.utils.configs import ModelInput, backbone_class, part_class, read_config

REGISTRIES = (MODELS, TASK_UTILS, DATASETS, DATA_SAMPLERS, TRANSFORMS, METRICS, LOOPS, HOOKS)
SHAPES = DEMO / "fpn_xcit-n12-p16_shapes.py"


def write_with_classes(cfg: Config, path: Path) -> None:
    """Write a config in mmengine's pure Python style, with classes in place of type names."""
    imports = set()

    def as_class(match: re.Match) -> str:
        part = dict(type=match[1])
        classes = (part_class(part, registry, cfg.default_scope) for registry in REGISTRIES)
        registered = next((found for found in classes if isinstance(found, type)), None)
        if registered is None:
            return match[0]
        imports.add(f"from {registered.__module__} import {registered.__name__}\n")
        return f"type={registered.__name__}"

    init_default_scope(cfg.default_scope)
    source = re.sub(r"\btype='([\w.]+)'", as_class, cfg.pretty_text)
    path.write_text("".join(sorted(imports)) + source)


def properties(cfg: Config) -> tuple:
    """Return the properties of the model's input, all of which the config states."""
    inputs = ModelInput(cfg)
    stated = inputs.channel_order, inputs.side, normalisation(inputs)
    assert None not in stated
    return stated


@pytest.mark.parametrize("name", SCORES)
def test_classes_give_the_findings_and_properties_of_names(name, tmp_path, shapes):
    named = DEMO / f"{name}.py"
    pure = tmp_path / f"{name}.py"
    _, *options = cfg_options(name, shapes, iterations=1)
    write_with_classes(read_config_file(named), pure)
    findings, expected_findings = (
        [line for line in map(str, diagnose(str(path), options)) if "GB free" not in line]
        for path in (pure, named)
    )
    assert findings == expected_findings
    assert findings
    assert not [line for line in findings if line.startswith("FAIL")]
    cfg, expected = (read_config(path, parse_cfg_options(options)) for path in (pure, named))
    assert not isinstance(cfg.model.type, str)
    assert backbone_class(cfg) is XCiT
    assert find_unsupported(cfg) is None
    assert properties(cfg) == properties(expected)


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
    assert normalisation(inputs) == ([1.5], [2.5])
