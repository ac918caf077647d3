"""What this package's Runner does that mmengine's does not."""

import pytest
from mmengine.model import BaseModel
from torch import Tensor, nn
from torch.utils.data import DataLoader

from xcit_mm.launch.runner import AccumulatingRunner


class Line(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, inputs: Tensor, mode: str = "loss") -> dict[str, Tensor]:
        return dict(loss=self.linear(inputs).square().mean())


@pytest.mark.parametrize("accumulated, rate", [(1, 0.25), (4, 1.0)])
def test_gradients_that_accumulate_are_a_part_of_the_batch(accumulated, rate, tmp_path):
    optim_wrapper = dict(optimizer=dict(type="SGD", lr=1.0), accumulative_counts=accumulated)
    runner = AccumulatingRunner(
        Line(),
        work_dir=str(tmp_path),
        train_dataloader=DataLoader([], batch_size=2),
        train_cfg=dict(type="IterBasedTrainLoop", max_iters=1),
        optim_wrapper=optim_wrapper,
        cfg=dict(optim_wrapper=optim_wrapper),
        experiment_name=tmp_path.name,
    )
    wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    runner.scale_lr(wrapper, dict(enable=True, base_batch_size=8))
    assert wrapper.get_lr()["lr"] == [rate]
