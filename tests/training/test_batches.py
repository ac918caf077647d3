"""The batches of a resumed run are those of the undisturbed run, and the earlier ones are not
loaded.
"""

import itertools
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
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset

from xcit_mm.training.batches import SeededDataset, numbered_loader

ADE20K_IMAGES = 20210
INFINITE = dict(type="InfiniteSampler", shuffle=True)
SHUFFLED = dict(type="DefaultSampler", shuffle=True)


def loader_config(
    photos, workers: int = 0, sampler: dict = SHUFFLED, batch_sampler: bool = True, wrap=lambda d: d
):
    """The training data of Mask R-CNN's recipe, with smaller images."""
    config = read_config_file(CONFIGS / "_base_" / "xcit_amp-ms-crop-3x_coco.py").train_dataloader
    choice = config.dataset.pipeline[3].transforms
    choice[0][0].scales = [(side, 100) for side in (32, 48, 64)]
    choice[1][0].scales, choice[1][1].crop_size, choice[1][2].scales = (
        [(60, 400)],
        (40, 60),
        [(48, 100), (64, 100)],
    )
    config.dataset.update(data_root=str(photos), ann_file="annotations/instances_training.json")
    config.dataset.data_prefix = dict(img="images/training/")
    config.dataset.metainfo = dict(classes=("circle", "square", "triangle", "star"))
    config.update(num_workers=workers, persistent_workers=workers > 0)
    config.sampler, config.dataset = sampler, wrap(config.dataset)  # `update` would merge them
    if not batch_sampler:
        config.pop("batch_sampler")
    return config


def numbered(config: dict | DataLoader, endless: bool) -> DataLoader:
    init_default_scope("mmdet")
    loader = Runner.build_dataloader(config, seed=3)
    if endless:
        next(iter(loader))  # mmengine's loop reads ahead
    return numbered_loader(loader.dataset, config, (3, 0), endless)


def batches(loader: DataLoader, epoch: int, first: int, count: int) -> list:
    loader.batch_sampler.epoch, loader.batch_sampler.first = epoch, first
    read = itertools.islice(loader, count)
    return [
        (
            batch["inputs"],
            [
                (s.img_id, s.img_shape, s.get("flip"), s.gt_instances.bboxes.tensor)
                for s in batch["data_samples"]
            ],
        )
        for batch in read
    ]


WRAPPERS = dict(
    plain=lambda data: data,
    repeated=lambda data: dict(type="RepeatDataset", times=2, dataset=data),
    concatenated=lambda data: dict(type="ConcatDataset", datasets=[data, data]),
    balanced=lambda data: dict(type="ClassBalancedDataset", oversample_thr=0.9, dataset=data),
)


MANY = [
    pytest.param(
        wrapper, sampler, True, marks=[pytest.mark.slow] * (wrapper in ("repeated", "balanced"))
    )
    for wrapper in WRAPPERS
    for sampler in (SHUFFLED, INFINITE)
]


@pytest.mark.parametrize("wrapper, sampler, batch_sampler", [*MANY, ("balanced", SHUFFLED, False)])
def test_resumed_batches_are_those_of_the_whole_run(photos, wrapper, sampler, batch_sampler):
    endless = sampler is INFINITE
    epoch = 0 if endless else 2

    def loader() -> DataLoader:
        return numbered(
            loader_config(photos, 0, sampler, batch_sampler, WRAPPERS[wrapper]), endless
        )

    length = 9 if endless else len(loader())
    whole = batches(loader(), epoch, 0, length)
    assert len(whole) == length
    for first in (length - 2, length):
        rest = batches(loader(), epoch, first, length - first)
        torch.testing.assert_close(rest, whole[first:], rtol=0, atol=0)
    later = batches(loader(), epoch + (not endless), length if endless else 0, 2)
    assert str(later) != str(whole[:2])


def test_number_of_workers_and_persistent_ones_make_no_difference(photos):
    epochs = {}
    for workers in (0, 1, 2):
        loader = numbered(loader_config(photos, workers), endless=False)
        epochs[workers] = [
            batches(loader, epoch, 1, 9) for epoch in range(2)
        ]  # the same workers load both
    torch.testing.assert_close(epochs[1], epochs[0], rtol=0, atol=0)
    torch.testing.assert_close(epochs[2], epochs[0], rtol=0, atol=0)


class Noise(Dataset):
    """Random numbers of each generator, and the indices that were loaded."""

    def __init__(self, length: int) -> None:
        self.length, self.pipeline, self.loaded = length, "noise", []

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


def test_hooks_replace_the_pipeline_of_a_seeded_data_set():
    import copy
    import pickle

    data = Noise(3)
    seeded = SeededDataset(data, (1, 0))
    seeded.pipeline = "other"
    assert data.pipeline == seeded.pipeline == "other"
    for other in (pickle.loads(pickle.dumps(seeded)), copy.deepcopy(seeded)):
        assert other[(0, 1, 2), 1] == seeded[(0, 1, 2), 1] != seeded[(0, 1, 3), 1]
        assert not hasattr(other, "missing")
    assert SeededDataset(data, (1, 1))[(0, 1, 2), 1] != seeded[(0, 1, 2), 1]


def test_data_of_less_than_a_batch_end_an_endless_loader():
    config = dict(dataset=Noise(1), batch_size=2, drop_last=True, num_workers=0, sampler=SHUFFLED)
    assert list(numbered_loader(Noise(1), config, (3, 0), endless=True)) == []
