"""The configs that the pages show pass the doctor, load their data and keep published recipes."""

import pytest
from helpers.pages import blocks
from helpers.paths import CONFIGS, ROOT
from make_shapes import write_dataset
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, init_default_scope

from xcit_mm.checks.doctor import diagnose
from xcit_mm.utils.compat import find_bases_by_package


def codes(page: str, part: str) -> list[str]:
    """Return the code of a page that has a part."""
    return [code for _, code in blocks(ROOT / "docs" / page) if part in code]


DETECTOR, SEGMENTOR = codes("backbone.md", '_base_ = "mm')
(OF_README,) = codes("../README.md", '_base_ = "mm')
(CURVES,) = codes("curves.md", "visualizer = dict(")
(BANDS,) = codes("bands.md", "train_pipeline = [")


@pytest.mark.parametrize(
    "code, base",
    [
        pytest.param(OF_README, "xcit_amp-ms-crop-3x_coco", id="readme"),
        pytest.param(DETECTOR, "xcit_amp-ms-crop-3x_coco", id="detector"),
        pytest.param(SEGMENTOR, "xcit_80k_ade20k-512x512", id="segmentor"),
    ],
)
def test_a_backbone_in_a_library_s_config_trains_with_the_published_optimizer(code, base, tmp_path):
    config = tmp_path / "my_config.py"
    config.write_text(code)
    findings = diagnose(config, cfg_options={"model.backbone.init_cfg": None})
    # Data, which do not exist, and images of a step.
    assert {finding.code for finding in findings if finding.level != "ok"} <= {"D311", "D204"}
    shown = Config.fromfile(config).optim_wrapper
    published = Config.fromfile(CONFIGS / "_base_" / f"{base}.py").optim_wrapper
    published.optimizer.pop("betas")  # AdamW's default
    assert shown.optimizer == published.optimizer
    assert shown.paramwise_cfg == published.paramwise_cfg


def test_curves_keep_the_checkpoints_of_a_fine_tuning(tmp_path):
    (tmp_path / "nuts.py").write_text('_base_ = "xcit_mm::_base_/finetuning.py"')
    (tmp_path / "nuts-curves.py").write_text(CURVES)
    with find_bases_by_package():
        hooks = Config.fromfile(tmp_path / "nuts-curves.py").default_hooks
    assert hooks.checkpoint.type == "ResumableCheckpointHook" and hooks.visualization.draw


@pytest.mark.parametrize("split, folder", [("train", "training"), ("val", "validation")])
def test_a_model_of_four_bands_gets_four_normalised_bands(split, folder, tmp_path):
    pytest.importorskip("rasterio")
    write_dataset(tmp_path / "data", train=1, val=1, size=96, rasters=True)
    config = tmp_path / "my_config.py"
    config.write_text(BANDS)
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.init_cfg = None  # no download
    model = MODELS.build(cfg.model)
    dataset = cfg[f"{split}_dataloader"].dataset
    dataset.data_root = str(tmp_path / "data")
    dataset.data_prefix = dict(img_path=f"rasters/{folder}", seg_map_path=f"annotations/{folder}")
    batch = {key: [value] for key, value in DATASETS.build(dataset)[0].items()}
    inputs = model.data_preprocessor(batch, split == "train")["inputs"]
    assert inputs.shape[1] == model.backbone.patch_embed.proj[0][0].in_channels == 4
