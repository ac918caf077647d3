"""The batches of a resumed run are those of the whole run, and earlier batches are not loaded."""

import itertools
import pickle
import random
import time
from pathlib import Path
from typing import Any

import mmdet.datasets  # noqa: F401
import mmseg.datasets  # noqa: F401
import numpy as np
import pytest
import torch
from helpers.configs import read_config_file
from helpers.paths import CONFIGS
from helpers.tiny_recipes import tiny
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from xcit_mm.training.batches import SeededDataset, numbered_loader

MASK_RCNN = CONFIGS / "mask_rcnn" / "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py"
ADE20K_IMAGES = 20210
INFINITE = dict(type="InfiniteSampler", shuffle=True)
SHUFFLED = dict(type="DefaultSampler", shuffle=True)


def loader_config(photos: Path, workers: int = 0, sampler: dict = SHUFFLED) -> Any:
    config = tiny(MASK_RCNN, photos).train_dataloader
    config.update(num_workers=workers, persistent_workers=workers > 0)
    config.sampler = sampler  # which `update` would merge
    return config


def numbered(config: dict | DataLoader, endless: bool) -> DataLoader:
    init_default_scope("mmdet")
    loader = Runner.build_dataloader(config, seed=3)
    if endless:
        next(iter(loader))  # mmengine's loop reads ahead
    return numbered_loader(loader.dataset, config, (3, 0), endless)


def batches(loader: DataLoader, epoch: int, first: int, count: int) -> list:
    """Return inputs, ids, shapes, flips and boxes of batches."""
    loader.batch_sampler.epoch = epoch
    loader.batch_sampler.first = first
    read = []
    for batch in itertools.islice(loader, count):
        samples = [
            (sample.img_id, sample.img_shape, sample.get("flip"), sample.gt_instances.bboxes.tensor)
            for sample in batch["data_samples"]
        ]
        read.append((batch["inputs"], samples))
    return read


def keep(config: Any) -> None:
    pass


def concatenate(config: Any) -> None:
    config.dataset = dict(type="ConcatDataset", datasets=[config.dataset] * 2)


def balance(config: Any) -> None:
    """Repeat images of rare classes, in batches without regard to their shapes."""
    config.dataset = dict(type="ClassBalancedDataset", oversample_thr=0.9, dataset=config.dataset)
    config.pop("batch_sampler")


@pytest.mark.parametrize("sampler", [SHUFFLED, INFINITE], ids=["epochs", "endless"])
@pytest.mark.parametrize("change", [keep, concatenate, balance])
def test_resumed_batches_are_those_of_the_whole_run(photos, change, sampler):
    endless = sampler is INFINITE
    epoch = 0 if endless else 2

    def loader() -> DataLoader:
        config = loader_config(photos, sampler=sampler)
        change(config)
        return numbered(config, endless)

    length = 9 if endless else len(loader())
    whole = batches(loader(), epoch, 0, length)
    assert len(whole) == length
    rest = batches(loader(), epoch, length - 2, 2)
    torch.testing.assert_close(rest, whole[-2:], rtol=0, atol=0)
    if endless:
        later = batches(loader(), epoch, length, 2)
    else:
        later = batches(loader(), epoch + 1, 0, 2)
        assert batches(loader(), epoch, length, 1) == []
    assert str(later) != str(whole[:2])


def read_two_epochs(photos: Path, workers: int) -> list:
    """Batches of two epochs, which the same workers load."""
    loader = numbered(loader_config(photos, workers), endless=False)
    return [batches(loader, epoch, 1, 9) for epoch in range(2)]


@pytest.fixture(scope="module")
def two_epochs(photos) -> list:
    return read_two_epochs(photos, workers=0)


@pytest.mark.parametrize("workers", [1, 2])
def test_number_of_workers_and_persistent_workers_make_no_difference(workers, photos, two_epochs):
    torch.testing.assert_close(read_two_epochs(photos, workers), two_epochs, rtol=0, atol=0)


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


def test_iteration_100000_of_ade20k_is_reached_within_seconds_and_loads_nothing():
    config = read_config_file(CONFIGS / "_base_" / "xcit_80k_ade20k-512x512.py").train_dataloader
    config.update(num_workers=0, persistent_workers=False)
    config.dataset = Noise(ADE20K_IMAGES)
    init_default_scope("mmseg")
    loader = numbered(config, endless=True)
    loader.dataset.loaded.clear()
    loader.batch_sampler.first = 100_000
    start = time.perf_counter()
    next(iter(loader))
    assert time.perf_counter() - start < 5
    assert len(loader.dataset.loaded) == 2


def test_seeded_data_set_is_pickled_and_lets_hooks_replace_its_pipeline():
    data = Noise(3)
    seeded = SeededDataset(data, (1, 0))
    seeded.pipeline = "other"
    assert data.pipeline == seeded.pipeline == "other"
    numbers = seeded[(0, 1, 2), 1]
    assert pickle.loads(pickle.dumps(seeded))[(0, 1, 2), 1] == numbers
    assert seeded[(0, 1, 3), 1] != numbers  # another place
    assert SeededDataset(data, (1, 1))[(0, 1, 2), 1] != numbers  # another process


def test_data_of_less_than_a_batch_end_an_endless_loader():
    config = dict(dataset=Noise(1), batch_size=2, drop_last=True, num_workers=0, sampler=SHUFFLED)
    assert list(numbered_loader(Noise(1), config, (3, 0), endless=True)) == []
