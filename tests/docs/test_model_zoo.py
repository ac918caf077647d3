"""The recipes and commands of docs/model-zoo.md are those of the configs."""

import re

import pytest
from paths import CONFIGS, ROOT

from configs import read_config_file

PAGE = (ROOT / "docs" / "model-zoo.md").read_text(encoding="utf-8")
TITLES = {"mask_rcnn": "Mask R-CNN", "semantic_fpn": "Semantic FPN", "upernet": "UperNet"}


@pytest.mark.parametrize("folder", TITLES)
def test_a_recipe_of_the_page_is_that_of_its_configs(folder):
    (line,) = re.findall(rf"^\| {TITLES[folder]} \| (.*) \|$", PAGE, re.MULTILINE)
    rates, warm_up, schedule, images, drop_path = line.split(" | ")
    leaves = [next((CONFIGS / folder).glob(f"*-{arch}-p16_*.py")) for arch in ("t12", "s12", "s24", "m24")]
    configs = [read_config_file(leaf) for leaf in leaves]
    cfg = configs[0]
    optimizer = cfg.optim_wrapper.optimizer
    assert [float(rate) for rate in rates.split(", ")] == [optimizer.lr, optimizer.weight_decay]
    first, second = cfg.param_scheduler
    assert warm_up == f"{first.end - 1} iterations"
    if folder == "mask_rcnn":
        assert schedule.startswith(f"{cfg.train_cfg.max_epochs} epochs, ")
        assert [int(epoch) for epoch in re.findall(r"after (\d+)", schedule)] == second.milestones
        assert second.gamma == 0.1
        assert (cfg.optim_wrapper.type == "AmpOptimWrapper") == ("mixed precision" in schedule)
        sides = [side for side, _ in cfg.scales]
        assert images.startswith(f"short side {min(sides)} to {max(sides)}, long side to {cfg.scales[0][1]};")
    else:
        assert schedule == f"{cfg.train_cfg.max_iters:,} iterations, linear to 0"
        assert (second.power, second.eta_min) == (1.0, 0.0)
        height, width = cfg.crop_size
        assert images == f"crops of {height}x{width}, scale 0.5 to 2"
    assert [float(rate) for rate in drop_path.split(", ")] == [c.model.backbone.drop_path_rate for c in configs]


def test_a_score_is_reproduced_with_a_config_and_its_own_weights():
    found = re.findall(r"^python tools/test.py (\S+) (xcit://\S+) +# published: (.+)$", PAGE, re.MULTILINE)
    assert len(found) == len(TITLES)
    for config, weights, published in found:
        first = (ROOT / config).read_text().partition("\n")[0]
        assert first.endswith(f": {published}. Weights: {weights}")
