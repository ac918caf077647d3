"""What training really writes is read: resumed from, loaded and tested, whatever its data set says of itself."""

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

# What a data set's class may say of it; a config adds dicts, which mmengine makes ConfigDicts.
SAID = dict(
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
    """Builds a short run of Semantic FPN on a data set that says more of itself than classes and palette."""

    def build(iterations: int, resume: bool) -> Runner:
        @DATASETS.register_module(force=True)
        class TalkativeDataset(BaseSegDataset):
            METAINFO = SAID

        cfg = Config.fromfile(DEMO / "fpn_xcit-n12-p16_shapes.py")
        cfg.model.backbone.arch = MINI
        cfg.model.neck.update(in_channels=[16] * 4, out_channels=16)
        cfg.model.decode_head.update(in_channels=[16] * 4, channels=16)
        cfg.train_cfg.update(max_iters=iterations, val_interval=100)
        for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
            loader.update(batch_size=2, num_workers=0, persistent_workers=False)
            loader.dataset.update(type="TalkativeDataset", data_root=str(shapes))
            loader.dataset.metainfo.update(source=dict(camera=dict(name="none", lenses=[dict(f=35), (1, 2)])))
        cfg.default_hooks.checkpoint.interval = 2
        cfg.update(work_dir=str(tmp_path), resume=resume, experiment_name=f"talkative-{tmp_path.name}-{iterations}")
        return Runner.from_cfg(cfg)

    yield build
    DATASETS._module_dict.pop("TalkativeDataset", None)
    init_default_scope("mmengine")


def test_a_run_whose_metainfo_holds_more_than_names_resumes(runner, tmp_path, caplog):
    first = runner(2, resume=False)
    first.train()
    content = load_from_file(str(tmp_path / "iter_2.pth"))
    assert "cfg" not in content["meta"] and "cfg" not in content["message_hub"]["runtime_info"]
    for said in (content["meta"]["dataset_meta"], content["message_hub"]["runtime_info"]["dataset_meta"]):
        np.testing.assert_equal({key: said[key] for key in SAID}, SAID)
        assert said["anchors"].dtype == SAID["anchors"].dtype
        assert type(said["source"]) is type(said["source"].camera.lenses[0]) is ConfigDict
        assert said["source"].camera.lenses == [dict(f=35), (1, 2)]
    with caplog.at_level(logging.WARNING):
        second = runner(4, resume=True)
        second.train()
    assert second.iter == 4
    assert second.message_hub.get_info("cfg") == second.cfg.pretty_text  # and not the file's
    assert torch.load(tmp_path / "iter_4.pth", weights_only=False)["meta"]["iter"] == 4
    assert not [line for line in caplog.messages if "metainfo" in line]  # compared byte by byte, as it was written
