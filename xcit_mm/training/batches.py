"""The place of a run in its data: batches have numbers, and a resumed run starts at the next."""

import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from mmengine.dist import broadcast_object_list, get_rank
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from ..utils.compat import train_dataloader_config


def seed_generators(*numbers: int) -> None:
    """Seed the generators of Python, numpy and torch by non-negative numbers."""
    words = np.random.SeedSequence(numbers).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)
    seed = int(words.view(np.uint64)[0])
    torch.default_generator.manual_seed(seed)
    # torch.manual_seed, which seeds GPUs as well, takes a hundred times as long without a GPU.
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


class SeededDataset(Dataset):
    """A data set whose random numbers depend only on a seed and the place of a sample in the run.

    The number of workers and the samples that a worker loaded before make no difference. All
    attributes are those of the original data set.
    """

    def __init__(self, dataset: Any, seed: tuple[int, ...]) -> None:
        vars(self).update(_dataset=dataset, _seed=seed)

    def __getitem__(self, numbered: tuple[tuple[int, ...], Any]) -> Any:
        place, index = numbered
        seed_generators(*self._seed, *place)
        return self._dataset[index]

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        # pickle asks for these before the attributes exist.
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)  # hooks replace the pipeline


class NumberedBatches(Sampler):
    """Batches of indices with numbers, as lists of ((epoch, batch, place in the batch), index).

    They start with the batch `first` of `epoch`, and go on with the next epoch if `endless`. Of
    earlier batches only the indices are read.

    Args:
        batch_sampler: Config of the batches, by default those of torch's BatchSampler.
    """

    epoch = 0
    first = 0

    def __init__(
        self,
        sampler: Any,
        batch_size: int,
        endless: bool,
        batch_sampler: dict | None,
        drop_last: bool,
    ) -> None:
        self.sampler = sampler  # mmengine's hooks read it
        self.batch_size = batch_size
        self._endless = endless
        config = batch_sampler or dict(type=BatchSampler, drop_last=drop_last)
        arguments = dict(sampler=sampler, batch_size=batch_size)
        self._batches = DATA_SAMPLERS.build(config, default_args=arguments)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list]:
        epochs: Iterable[int] = [self.epoch]
        if self._endless and len(self) > 0:
            epochs = itertools.count(self.epoch)
        batch = 0
        for epoch in epochs:
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)
            for indices in self._batches:
                if batch >= self.first:
                    yield [((epoch, batch, place), index) for place, index in enumerate(indices)]
                batch += 1


def numbered_loader(
    dataset: Any, config: dict[str, Any], seed: tuple[int, int], endless: bool
) -> DataLoader:
    """Build a loader whose random numbers depend on the batch's number, the seed and the process.

    Its samplers are built again, because InfiniteSampler keeps its place and mmengine's loop has
    already read ahead.
    """
    config = dict(config)
    seeded = SeededDataset(dataset, seed)
    config["batch_sampler"] = dict(
        type=NumberedBatches,
        endless=endless,
        batch_sampler=config.get("batch_sampler"),
        drop_last=config.pop("drop_last", False),
    )
    config["dataset"] = dict(type=lambda: seeded)  # mmengine copies a data set, but no function
    return Runner.build_dataloader(config, seed=seed[0])


class _LoopIterator(itertools.chain):
    """The batches of an iteration-based loop, which skips some when it resumes: mmengine (0.10.7)
    by `next`, OneDL's mmengine (0.10.12) by `skip_iter`.
    """

    def skip_iter(self, number: int) -> None:
        for _ in range(number):
            next(self)


class NumberedLoop:
    """The training loop of a runner, with a loader and random numbers by the number of a batch."""

    def __init__(self, runner: Runner) -> None:
        loop: Any = runner.train_loop
        self._loop = loop
        self._endless = isinstance(loop, IterBasedTrainLoop)
        seeds = [runner.seed]
        broadcast_object_list(seeds)  # with diff_rank_seed every process has its own
        self._seed = (seeds[0], get_rank())
        config = train_dataloader_config(runner)
        loop.dataloader = numbered_loader(
            loop.dataloader.dataset, config, self._seed, self._endless
        )
        self._batches: Any = loop.dataloader.batch_sampler
        loop.run_iter = functools.partial(self._run_iter, loop.run_iter)

    @staticmethod
    def supports(runner: Runner) -> bool:
        """Return whether batches can have numbers: with mmengine's loops and a sampler's config."""
        if not isinstance(runner.train_loop, EpochBasedTrainLoop | IterBasedTrainLoop):
            return False
        config = train_dataloader_config(runner)
        return isinstance(config, dict) and isinstance(config.get("sampler"), dict)

    def start_epoch(self) -> None:
        """Go to the batch of the loop's iteration, in its epoch, or in the whole endless run."""
        loop = self._loop
        self._batches.epoch = loop.epoch
        if not self._endless:
            length = max(1, len(self._batches))
            # A checkpoint of the last iteration of an epoch is saved before the epoch ends.
            is_complete = loop.iter == (loop.epoch + 1) * length
            self._batches.first = length if is_complete else loop.iter % length
            return
        self._batches.first = loop.iter
        # The loop skips the trained batches, for which None stands: the loader leaves them out.
        skipped = 0 if getattr(loop, "fast_forward_on_resume", False) else loop.iter
        loop.dataloader_iterator = _LoopIterator(itertools.repeat(None, skipped), loop.dataloader)

    def _run_iter(self, run_iter: Callable, *number_and_batch: Any) -> None:
        # Only the epoch-based loop passes a number, which it counts from 0.
        *numbers, batch = number_and_batch
        seed_generators(*self._seed, self._loop.iter)
        run_iter(*[self._batches.first + number for number in numbers], batch)
