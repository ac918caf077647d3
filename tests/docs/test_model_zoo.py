"""The recipes that docs/model-zoo.md tells are those of the configs, its commands take each config's own weights."""

import re

import pytest
from mmengine.config import Config
from paths import CONFIGS, ROOT

PAGE = (ROOT / "docs" / "model-zoo.md").read_text(encoding="utf-8")
ROWS = {"mask_rcnn": "Mask R-CNN", "semantic_fpn": "Semantic FPN", "upernet": "UperNet"}


@pytest.mark.parametrize("folder", ROWS)
def test_a_recipe_is_that_of_its_configs(folder):
    (line,) = re.findall(rf"^\| {ROWS[folder]} \| (.*) \|$", PAGE, re.MULTILINE)
    rates, warm_up, schedule, images, drop_path = line.split(" | ")
    configs = [
        Config.fromfile(next((CONFIGS / folder).glob(f"*-{arch}-p16_*.py"))) for arch in ("t12", "s12", "s24", "m24")
    ]
    cfg = configs[0]
    optimizer = cfg.optim_wrapper.optimizer
    assert tuple(map(float, rates.split(", "))) == (optimizer.lr, optimizer.weight_decay)
    first, second = cfg.param_scheduler
    assert warm_up == f"{first.end - 1} iterations"
    if folder == "mask_rcnn":
        assert schedule.startswith(f"{cfg.train_cfg.max_epochs} epochs, ")
        assert (
            second.gamma == 0.1 and [int(one) for one in re.findall(r"(?:after) (\d+)", schedule)] == second.milestones
        )
        assert (cfg.optim_wrapper.type == "AmpOptimWrapper") == ("mixed precision" in schedule)
        sides = [side for side, _ in cfg.scales]
        assert images.startswith(f"short side {min(sides)} to {max(sides)}, long side to {cfg.scales[0][1]};")
    else:
        assert schedule == f"{cfg.train_cfg.max_iters:,} iterations, linear to 0"
        assert (second.power, second.eta_min) == (1.0, 0.0)
        height, width = cfg.crop_size
        assert images == f"crops of {height}x{width}, scale 0.5 to 2"
    assert [float(one) for one in drop_path.split(", ")] == [one.model.backbone.drop_path_rate for one in configs]


def test_a_score_is_reproduced_by_a_config_and_its_own_weights():
    found = re.findall(r"^python tools/test.py (\S+) (xcit://\S+) +# published: (.+)$", PAGE, re.MULTILINE)
    assert len(found) == len(ROWS)
    for config, weights, published in found:
        first = (ROOT / config).read_text().partition("\n")[0]
        assert first.endswith(f": {published}. Weights: {weights}")
