"""Properties of a config depend neither on its style, nor on the place of its preprocessor or of
the normalisation.
"""

import re
from pathlib import Path

import mmengine.registry
import pytest
from helpers.configs import read_config_file
from helpers.demo_runs import DEMO, SCORES, cfg_options
from mmengine.config import Config
from mmengine.registry import init_default_scope

from xcit_mm import XCiT
from xcit_mm.checks.doctor import diagnose
from xcit_mm.checks.model import build_model
from xcit_mm.deployment.metadata import resize_rule
from xcit_mm.models.build import check_backbone
from xcit_mm.utils.cli import parse_cfg_options
from xcit_mm.utils.configs import (
    ModelInput,
    backbone_class,
    part_class,
    read_config,
)

KINDS = (
    "MODELS",
    "TASK_UTILS",
    "DATASETS",
    "DATA_SAMPLERS",
    "TRANSFORMS",
    "METRICS",
    "LOOPS",
    "HOOKS",
)
SHAPES = DEMO / "fpn_xcit-n12-p16_shapes.py"


def write_with_classes(cfg: Config, path: Path) -> None:
    """Write a config in mmengine's pure Python style, with classes in place of type names."""
    imports = set()

    def as_class(match: re.Match) -> str:
        part = dict(type=match[1])
        kinds = (
            part_class(part, getattr(mmengine.registry, name), cfg.default_scope) for name in KINDS
        )
        found = next((kind for kind in kinds if isinstance(kind, type)), None)
        if found is None:
            return match[0]
        imports.add(f"from {found.__module__} import {found.__name__}\n")
        return f"type={found.__name__}"

    init_default_scope(cfg.default_scope)
    text = re.sub(r"\btype='([\w.]+)'", as_class, cfg.pretty_text)
    path.write_text("".join(sorted(imports)) + text)


def properties(cfg: Config) -> tuple:
    """Return the properties of the model's input, all of which the config states."""
    inputs = ModelInput(cfg)
    found = inputs.channel_order, inputs.side, inputs.normalisation
    assert None not in found
    return found


@pytest.mark.parametrize("name", SCORES)
def test_classes_give_the_findings_and_properties_of_names(name, tmp_path, shapes):
    named = DEMO / f"{name}.py"
    pure = tmp_path / f"{name}.py"
    options = cfg_options(name, shapes, iterations=1)
    write_with_classes(read_config_file(named), pure)
    expected, found = (
        [line for line in map(str, diagnose(str(path), options)) if "GB free" not in line]
        for path in (named, pure)
    )
    assert found == expected
    assert len(found) >= 3 and not [line for line in found if line.startswith("FAIL")]
    expected, found = (read_config(path, parse_cfg_options(options)) for path in (named, pure))
    assert not isinstance(found.model.type, str) and backbone_class(found) is XCiT
    assert resize_rule(ModelInput(found)) == resize_rule(ModelInput(expected))
    assert properties(found) == properties(expected)


@pytest.mark.parametrize("swaps, order", [(True, "RGB"), (False, "BGR")])
def test_the_preprocessor_may_swap_channels(swaps, order):
    cfg = read_config_file(SHAPES)
    cfg.model.data_preprocessor.update(bgr_to_rgb=swaps, mean=[1.5], std=[2.5])
    inputs = ModelInput(cfg)
    assert (inputs.channel_order, inputs.normalisation) == (order, ([1.5], [2.5]))


@pytest.mark.parametrize("swaps, order", [(False, "RGB"), (True, "BGR")])
def test_normalize_step_counts_like_the_preprocessor(swaps, order):
    cfg = read_config_file(SHAPES)
    cfg.model.data_preprocessor.update(bgr_to_rgb=swaps, mean=None, std=None)
    step = dict(type="Normalize", mean=[1.5], std=[2.5], to_rgb=True)
    cfg.test_dataloader.dataset.pipeline.insert(1, step)
    inputs = ModelInput(cfg)
    assert (inputs.channel_order, inputs.normalisation) == (order, ([1.5], [2.5]))


def test_preprocessor_beside_the_model_is_used():
    """mmengine's Runner uses it, and mmpretrain's configs have it there."""
    inside, beside = read_config_file(SHAPES), read_config_file(SHAPES)
    inside.model.data_preprocessor.size = (96, 128)
    beside.model.pop("data_preprocessor")
    beside.data_preprocessor = inside.model.data_preprocessor
    assert properties(beside) == properties(inside)
    assert type(build_model(beside).data_preprocessor).__name__ == "SegDataPreProcessor"
    beside.data_preprocessor.mean = [1.0, 2.0]
    with pytest.raises(ValueError, match=r"^data_preprocessor.mean has 2 values, "):
        check_backbone(beside)
