"""Configs in mmengine's pure Python style, whose types are classes, equal configs whose types are names."""

import re
from pathlib import Path

import mmengine.registry
import pytest
from demo_runs import DEMO, SCORES, cfg_options
from mmengine.config import Config
from mmengine.registry import init_default_scope

from configs import read_config_file
from xcit_mm import XCiT
from xcit_mm.checks.doctor import diagnose
from xcit_mm.deployment.metadata import resize_rule
from xcit_mm.deployment.supported import check_detector
from xcit_mm.utils.configs import backbone_class, channel_order, image_side, normalisation, part_class, read_config

KINDS = (
    *("MODELS", "TASK_UTILS", "DATASETS", "DATA_SAMPLERS", "TRANSFORMS"),
    *("METRICS", "LOOPS", "HOOKS", "OPTIMIZERS", "OPTIM_WRAPPERS"),
)


def write_pure_python(cfg: Config, path: Path) -> None:
    """Write a config with classes in place of the names of types."""
    imports = set()

    def as_class(match: re.Match) -> str:
        part = dict(type=match[1])
        kinds = (part_class(part, getattr(mmengine.registry, name), cfg.default_scope) for name in KINDS)
        found = next((kind for kind in kinds if isinstance(kind, type)), None)
        if found is None:
            return match[0]
        imports.add(f"from {found.__module__} import {found.__name__}\n")
        return f"type={found.__name__}"

    init_default_scope(cfg.default_scope)
    text = re.sub(r"\btype='([\w.]+)'", as_class, cfg.pretty_text)
    path.write_text("".join(sorted(imports)) + text)
    assert len(imports) > 15


@pytest.mark.parametrize("name", SCORES)
def test_classes_give_the_findings_and_properties_of_names(name, tmp_path, shapes):
    named, pure, options = DEMO / f"{name}.py", tmp_path / f"{name}.py", cfg_options(name, shapes, iterations=1)
    write_pure_python(read_config_file(named), pure)
    expected, found = (
        [line for line in map(str, diagnose(str(path), options)) if "GB free" not in line] for path in (named, pure)
    )
    assert found == expected
    assert len(found) >= 3 and not [line for line in found if line.startswith("FAIL")]

    expected, found = (read_config(str(path), options) for path in (named, pure))
    assert not isinstance(found.model.type, str) and backbone_class(found) is XCiT
    assert resize_rule(found) == resize_rule(expected)
    for function in (channel_order, image_side, normalisation):
        assert function(found) == function(expected) is not None, function
    if found.default_scope == "mmdet":
        check_detector(found)
        found.model.bbox_roi_extractor = dict(type=XCiT)
        with pytest.raises(ValueError, match=r"type='XCiT' cannot be exported: only SingleRoIExtractor"):
            check_detector(found)
