"""Batches with numbers, so that a resumed run starts at the next batch without loading the earlier ones."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from mmengine.dist import get_rank
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from .random_state import seeded

__all__ = ["EndlessBatches", "NumberedBatches", "SeededDataset", "numbered_loader"]

# Options of a DataLoader besides its data set, its samplers and its generator.
_OPTIONS = [
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers"),
]


class SeededDataset(Dataset):
    """A data set whose random numbers depend only on the seed, the process and the place of a sample in the run.

    The number of workers and the samples that a worker loaded before make no difference, and loading leaves the
    generators of the process unchanged. All attributes are those of the original data set.

    Args:
        dataset: Data set with indices.
        seed: Non-negative numbers that differ between runs and processes.
    """

    def __init__(self, dataset: Any, seed: tuple[int, ...]) -> None:
        vars(self).update(_dataset=dataset, _seed=seed)

    def __getitem__(self, numbered: tuple[tuple[int, ...], Any]) -> Any:
        """Load a sample, whose place and index `NumberedBatches` gives."""
        place, index = numbered
        with seeded(*self._seed, *place):
            return self._dataset[index]

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_dataset":  # pickle asks for these before the attributes exist
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)  # hooks replace the pipeline


class NumberedBatches(Sampler):
    """Batches of a batch sampler, as lists of ((epoch, batch, position), index).

    Args:
        batches: Batch sampler of a DataLoader, of one epoch or infinite.
        seed: Non-negative number for samplers that draw from the global generators.
        endless: Whether to start the next epoch when an epoch ends.

    Attributes:
        epoch: Epoch with which the iteration starts.
        first: Number of the batch with which it starts. Only the indices of earlier batches are read.
    """

    epoch = first = 0

    def __init__(self, batches: Any, seed: int, endless: bool) -> None:
        self._batches, self._seed, self._endless = batches, seed, endless
        self.sampler: Any = getattr(batches, "sampler", None)  # whose epoch mmengine's DistSamplerSeedHook sets
        self.batch_size = getattr(batches, "batch_size", None)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list]:
        number = 0
        for epoch in itertools.count(self.epoch) if self._endless else [self.epoch]:
            empty = True
            for indices in self._epoch(epoch):
                empty = False
                if number >= self.first:
                    yield [((epoch, number, position), index) for position, index in enumerate(indices)]
                number += 1
            if empty:
                return

    def _epoch(self, epoch: int) -> Iterator[list]:
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        with seeded(self._seed, epoch):  # torch's RandomSampler draws the seed of its generator
            batches = iter(self._batches)
            first = next(batches, None)
        if first is not None:
            yield first
            yield from batches


class EndlessBatches:
    """Iterator of mmengine's iteration-based loop, from a loader that starts at the right batch.

    The loop reads as many batches as it has had iterations to find its place. These reads return None.
    """

    def __init__(self, loader: DataLoader, iterations: int) -> None:
        self._batches, self._skipped = iter(loader), iterations

    def __iter__(self) -> "EndlessBatches":
        return self

    def __next__(self) -> Any:
        if self._skipped == 0:
            return next(self._batches)
        self._skipped -= 1
        return None

    def skip_iter(self, count: int) -> None:
        """Skip batches, as newer versions of mmengine do instead of reading them."""
        self._skipped -= count


def numbered_loader(loader: DataLoader, config: Any, seed: int, endless: bool) -> DataLoader:
    """Return a loader of the same batches with a `NumberedBatches` and a `SeededDataset`.

    Args:
        loader: Loader of a data set with indices.
        config: Config of the loader. Its samplers are built again, because InfiniteSampler keeps its place and
            mmengine's loop has already read ahead. If it is not a config, the samplers of the loader are used.
        seed: Seed of the run, the same in all processes.
        endless: See `NumberedBatches`.
    """
    batches = loader.batch_sampler
    if isinstance(config, dict) and isinstance(config["sampler"], dict):
        size: Any = config.get("batch_size")
        sampler = DATA_SAMPLERS.build(config["sampler"], default_args=dict(dataset=loader.dataset, seed=seed))
        if config.get("batch_sampler"):
            batches = DATA_SAMPLERS.build(config["batch_sampler"], default_args=dict(sampler=sampler, batch_size=size))
        else:
            batches = BatchSampler(sampler, size, config.get("drop_last", False))
    return DataLoader(
        SeededDataset(loader.dataset, (seed, get_rank())),
        batch_sampler=NumberedBatches(batches, seed, endless),
        generator=torch.Generator(),  # otherwise every epoch takes a number from the global generator
        **{name: getattr(loader, name) for name in _OPTIONS},
    )
