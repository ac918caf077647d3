"""A resumed run finds its batch without loading the earlier ones."""

import random
import time

import mmdet.datasets  # noqa: F401
import mmseg.datasets  # noqa: F401
import numpy as np
import pytest
import torch
from helpers.configs import read_config_file
from helpers.paths import CONFIGS
from mmengine.registry import init_default_scope
from torch.utils.data import Dataset

from xcit_mm.training.batches import numbered_loader

ADE20K_IMAGES = 20210
SHUFFLED = dict(type="DefaultSampler", shuffle=True)


class Noise(Dataset):
    """Random numbers of each generator, and the indices that were loaded."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.pipeline = "noise"
        self.loaded = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple:
        self.loaded.append(index)
        return index, random.random(), np.random.rand(), torch.rand(()).item()


def test_each_epoch_has_an_order_of_its_own_and_a_resumed_one_goes_on_in_it():
    config = dict(dataset=Noise(8), batch_size=2, num_workers=0, sampler=SHUFFLED)

    def indices(epoch: int, first: int) -> list[int]:
        loader = numbered_loader(Noise(8), config, (3, 0), endless=False)
        loader.batch_sampler.epoch = epoch
        loader.batch_sampler.first_batch = first
        list(loader)
        return loader.dataset.loaded

    assert sorted(indices(0, 0)) == list(range(8))
    assert indices(0, 0) != indices(1, 0)
    assert indices(1, 2) == indices(1, 0)[4:]


def test_iteration_100000_of_ade20k_is_reached_within_seconds_and_loads_nothing():
    config = read_config_file(CONFIGS / "_base_" / "xcit_80k_ade20k-512x512.py").train_dataloader
    config.update(num_workers=0, persistent_workers=False)
    config.dataset = Noise(ADE20K_IMAGES)
    init_default_scope("mmseg")
    loader = numbered_loader(config.dataset, config, (3, 0), endless=True)
    loader.batch_sampler.first_batch = 100_000
    start = time.perf_counter()
    next(iter(loader))
    assert time.perf_counter() - start < 5
    assert len(loader.dataset.loaded) == 2


@pytest.mark.parametrize("endless", [True, False])
def test_data_of_less_than_a_batch_are_named(endless):
    config = dict(dataset=Noise(1), batch_size=2, drop_last=True, num_workers=0, sampler=SHUFFLED)
    with pytest.raises(ValueError, match="the data do not fill a batch of 2 images: set"):
        list(numbered_loader(Noise(1), config, (3, 0), endless=endless))
