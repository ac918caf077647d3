"""Checkpoints of real runs are resumed from, whatever the metainfo of the data set holds."""

import logging

import numpy as np
import pytest
import torch
from demo_runs import DEMO
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import Runner
from mmseg.datasets import BaseSegDataset
from weight_files import MINI

from xcit_mm.weights.reader import load_from_file

# Values that the class of a data set may hold; a config adds dicts, which mmengine makes ConfigDicts.
RICH = dict(
    anchors=np.zeros((0, 4)),
    weights=np.ones(5, np.float32),
    void={"sky", "other"},
    merged=frozenset([3, 4]),
    pairs={("circle", 1): 0.5, 2: None},
    rotation=1j,
    key=b"",
)


@pytest.fixture
def runner(shapes, tmp_path):
    """Builds a short run of Semantic FPN on a data set whose metainfo holds more than classes and palette."""

    def build(iterations: int, resume: bool) -> Runner:
        @DATASETS.register_module(force=True)
        class RichDataset(BaseSegDataset):
            METAINFO = RICH

        cfg = Config.fromfile(DEMO / "fpn_xcit-n12-p16_shapes.py")
        cfg.model.backbone.arch = MINI
        cfg.model.neck.update(in_channels=[16] * 4, out_channels=16)
        cfg.model.decode_head.update(in_channels=[16] * 4, channels=16)
        cfg.train_cfg.update(max_iters=iterations, val_interval=100)
        for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
            loader.update(batch_size=2, num_workers=0, persistent_workers=False)
            loader.dataset.update(type="RichDataset", data_root=str(shapes))
            loader.dataset.metainfo.update(source=dict(camera=dict(name="none", lenses=[dict(f=35), (1, 2)])))
        cfg.default_hooks.checkpoint.interval = 2
        cfg.update(work_dir=str(tmp_path), resume=resume, experiment_name=f"rich-{tmp_path.name}-{iterations}")
        return Runner.from_cfg(cfg)

    yield build
    DATASETS.module_dict.pop("RichDataset", None)
    init_default_scope("mmengine")


def test_run_with_rich_metainfo_resumes(runner, tmp_path, caplog):
    first = runner(2, resume=False)
    first.train()
    content = load_from_file(str(tmp_path / "iter_2.pth"))
    for metainfo in (content["meta"]["dataset_meta"], content["message_hub"]["runtime_info"]["dataset_meta"]):
        np.testing.assert_equal({key: metainfo[key] for key in RICH}, RICH)
        assert metainfo["anchors"].dtype == RICH["anchors"].dtype
        assert type(metainfo["source"]) is type(metainfo["source"].camera.lenses[0]) is ConfigDict
        assert metainfo["source"].camera.lenses == [dict(f=35), (1, 2)]
    with caplog.at_level(logging.WARNING):
        second = runner(4, resume=True)
        second.train()
    assert second.iter == 4
    assert torch.load(tmp_path / "iter_4.pth", weights_only=False)["meta"]["iter"] == 4
    assert not [line for line in caplog.messages if "metainfo" in line]  # compared byte by byte, as it was written
