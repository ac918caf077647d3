"""Two deterministic runs give the same weights, and a record beside each checkpoint repeats them."""

import json
import shlex

import pytest
import torch
from demo_runs import DEMO, SCORES, cfg_options
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.runner import Runner
from processes import run_tool
from torch import nn

from xcit_mm.training.repeating import NotDeterministic, hash_data

SEG, DET = SCORES


@pytest.fixture
def algorithms():
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


@pytest.mark.slow
@pytest.mark.parametrize("config", [SEG, DET])
def test_deterministic_runs_give_the_same_weights(config, shapes, tmp_path):
    records = []
    for workers in (2, 0):
        options = [
            *cfg_options(config, shapes, 2, workers),
            "randomness.seed=None",
            "default_hooks.checkpoint.interval=1",
        ]
        given = ("--work-dir", tmp_path / str(workers), "--deterministic", *options)
        run = run_tool("train", DEMO / f"{config}.py", *given, cwd=tmp_path)
        assert run.returncode == 0, run.stderr[-2000:]
        records.append(json.loads((tmp_path / str(workers) / "iter_2.json").read_text()))
    for key in ("weights", "data", "seed", "versions", "device"):
        assert records[0][key] == records[1][key]
    record = records[0]
    assert record["deterministic"] and record["iteration"] == 2 and len(record["weights"]) == len(record["data"]) == 64
    assert record["versions"]["torch"] == torch.__version__
    assert shlex.split(record["command"])
    again = Config.fromstring(record["config"], ".py")
    assert again.randomness == dict(seed=0, deterministic=True)
    other = json.loads((tmp_path / "0" / "iter_1.json").read_text())
    assert other["weights"] != record["weights"]


class Scatters(BaseModel):
    """A model with an operator that has no deterministic implementation, on the CPU either."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, inputs, mode="loss"):
        out = self.norm(torch.stack(inputs))
        index = torch.arange(len(inputs))
        return dict(loss=out.sum() + torch.zeros(len(inputs)).put_(index, out.flatten()).sum())


def test_operators_that_are_not_deterministic_are_named_before_training(algorithms, tmp_path):
    model = Scatters()
    runner = Runner(
        model,
        work_dir=str(tmp_path),
        train_dataloader=torch.utils.data.DataLoader(
            [dict(inputs=torch.rand(1))] * 4, batch_size=2, collate_fn=lambda b: dict(inputs=[s["inputs"] for s in b])
        ),
        optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1)),
        train_cfg=dict(type="IterBasedTrainLoop", max_iters=2),
        default_hooks=dict(checkpoint=dict(type="ResumableCheckpointHook", by_epoch=False, interval=1)),
        randomness=dict(seed=0, deterministic=True),
        experiment_name=tmp_path.name,
    )
    with pytest.raises(NotDeterministic, match="without a deterministic implementation: put_; leave --deterministic"):
        runner.train()
    assert model.norm.num_batches_tracked == 0
    assert torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()


def test_record_of_the_data_changes_with_the_data(tmp_path):
    for name in ("images/a.jpg", "images/b/c.jpg", "coco.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    data = dict(data_root=str(tmp_path), ann_file="coco.json", data_prefix=dict(img="images"))
    cfg = Config(dict(train_dataloader=dict(dataset=dict(type="RepeatDataset", times=2, dataset=data))))
    digests = [hash_data(cfg), hash_data(cfg)]
    assert digests[0] == digests[1]
    (tmp_path / "coco.json").write_text("coco_json")
    digests.append(hash_data(cfg))
    (tmp_path / "images/b/c.jpg").write_text("longer than before")
    digests.append(hash_data(cfg))
    (tmp_path / "images/a.jpg").rename(tmp_path / "images/d.jpg")
    digests.append(hash_data(cfg))
    assert len(set(digests)) == 4
