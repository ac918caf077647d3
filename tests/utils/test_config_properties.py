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
from xcit_mm.utils.configs import (
    backbone_class,
    channel_order,
    image_side,
    normalisation,
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
    """Write a config in mmengine's pure Python style, with classes in place of the names of types."""
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


@pytest.mark.parametrize("name", SCORES)
def test_classes_give_the_findings_and_properties_of_names(name, tmp_path, shapes):
    named, pure, options = (
        DEMO / f"{name}.py",
        tmp_path / f"{name}.py",
        cfg_options(name, shapes, iterations=1),
    )
    write_with_classes(read_config_file(named), pure)
    expected, found = (
        [line for line in map(str, diagnose(str(path), options)) if "GB free" not in line]
        for path in (named, pure)
    )
    assert found == expected
    assert len(found) >= 3 and not [line for line in found if line.startswith("FAIL")]
    expected, found = (read_config(str(path), options) for path in (named, pure))
    assert not isinstance(found.model.type, str) and backbone_class(found) is XCiT
    assert resize_rule(found) == resize_rule(expected)
    for function in (channel_order, image_side, normalisation):
        assert function(found) == function(expected) is not None, function


@pytest.mark.parametrize(
    "swaps, to_rgb, order", [(True, None, "RGB"), (False, True, "RGB"), (True, True, "BGR")]
)
def test_normalize_step_counts_like_the_preprocessor(swaps, to_rgb, order):
    cfg = read_config_file(SHAPES)
    cfg.model.data_preprocessor.update(bgr_to_rgb=swaps)
    assert normalisation(cfg) == (cfg.model.data_preprocessor.mean, cfg.model.data_preprocessor.std)
    if to_rgb:
        cfg.model.data_preprocessor.update(mean=None, std=None)
        step = dict(type="Normalize", mean=[1.5], std=[2.5], to_rgb=to_rgb)
        cfg.test_dataloader.dataset.pipeline.insert(1, step)
        assert normalisation(cfg) == ([1.5], [2.5])
    assert channel_order(cfg) == order


def test_preprocessor_beside_the_model_is_used():
    """mmengine's Runner uses it, and mmpretrain's configs have it there."""
    inside, beside = read_config_file(SHAPES), read_config_file(SHAPES)
    inside.model.data_preprocessor.size = (96, 128)
    beside.model.pop("data_preprocessor")
    beside.data_preprocessor = inside.model.data_preprocessor
    for function in (normalisation, channel_order, image_side):
        assert function(beside) == function(inside) is not None
    assert type(build_model(beside).data_preprocessor).__name__ == "SegDataPreProcessor"
    beside.data_preprocessor.mean = [1.0, 2.0]
    with pytest.raises(ValueError, match=r"^data_preprocessor.mean has 2 values, "):
        check_backbone(beside)
