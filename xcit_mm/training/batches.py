"""Numbered batches, so that a run can resume at any batch of an epoch."""

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from mmengine.dist import broadcast_object_list
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from ..utils.compat import train_dataloader_config
from ..utils.output import log_line
from ..utils.ranks import rank_and_size


def seed_generators(*numbers: int) -> None:
    """Seed the generators of Python, numpy and torch from non-negative numbers."""
    words = np.random.SeedSequence(numbers).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)
    seed = int(words.view(np.uint64)[0])
    torch.default_generator.manual_seed(seed)
    # torch.manual_seed, which seeds GPUs as well, takes a hundred times as long without a GPU.
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


class SeededDataset(Dataset):
    """A data set whose random numbers depend on a seed and the position of a sample in the run.

    The random numbers do not depend on the worker. It has all attributes of the data set.
    """

    def __init__(self, dataset: Any, seed: tuple[int, ...]) -> None:
        vars(self).update(_dataset=dataset, _seed=seed)

    def __getitem__(self, numbered: tuple[tuple[int, ...], Any]) -> Any:
        position, index = numbered
        seed_generators(*self._seed, *position)
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
    """Batches of indices, each with its number: lists of ((epoch, batch, position in it), index).

    They start at batch `first_batch` of `epoch`. If `endless`, the next epoch follows. To
    skip earlier batches, only their indices are drawn.

    Args:
        batches: Config of the batch sampler.
    """

    epoch = 0
    first_batch = 0

    def __init__(self, sampler: Any, batch_size: int, endless: bool, batches: dict) -> None:
        self.sampler = sampler  # mmengine's hooks read it
        self.batch_size = batch_size
        self._endless = endless
        arguments = dict(sampler=sampler, batch_size=batch_size)
        self._batches = DATA_SAMPLERS.build(batches, default_args=arguments)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list]:
        """Yield lists of ((epoch, batch, place in the batch), index), from `first_batch` on.

        Raises:
            ValueError: If the data do not fill a batch.
        """
        batch = 0
        for epoch in itertools.count(self.epoch):
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)
            for indices in self._batches:
                if batch >= self.first_batch:
                    yield [((epoch, batch, place), index) for place, index in enumerate(indices)]
                batch += 1
            if batch == 0:
                problem = f"the data do not fill a batch of {self.batch_size} images"
                raise ValueError(f"{problem}: set a smaller batch_size")
            if not self._endless:
                return


def numbered_loader(
    dataset: Any, config: dict[str, Any], seed: tuple[int, int], endless: bool
) -> DataLoader:
    """Build a loader whose random numbers depend on the batch's number, the seed and the process.

    Its samplers are new, because InfiniteSampler keeps its position, and mmengine's loop has
    already read ahead.
    """
    config = dict(config)
    seeded = SeededDataset(dataset, seed)
    drop_last = config.pop("drop_last", False)
    batches = config.get("batch_sampler") or dict(type=BatchSampler, drop_last=drop_last)
    config["batch_sampler"] = dict(type=NumberedBatches, endless=endless, batches=batches)
    config["dataset"] = dict(type=lambda: seeded)  # mmengine copies a data set, but no function
    return Runner.build_dataloader(config, seed=seed[0])


class _LoopIterator(itertools.chain):
    """The batches of an iteration-based loop, which skips some of them when it resumes.

    mmengine (0.10.7) skips by `next`, OneDL's mmengine (0.10.12) by `skip_iter`.
    """

    def skip_iter(self, number: int) -> None:
        for _ in range(number):
            next(self)


class NumberedEpochLoop(EpochBasedTrainLoop):
    """mmengine's loop over epochs. The number of a batch determines its random numbers."""

    def run(self) -> nn.Module:
        self._seed = _number_batches(self, endless=False)
        return super().run()

    def run_epoch(self) -> None:
        batches: Any = self.dataloader.batch_sampler
        length = max(1, len(batches))
        # A checkpoint of the last iteration of an epoch, which has no batch left, is saved before
        # the epoch ends.
        is_complete = self.iter == (self.epoch + 1) * length
        batches.epoch = self.epoch
        batches.first_batch = length if is_complete else self.iter % length
        super().run_epoch()

    def run_iter(self, idx: int, data_batch: Any) -> None:
        seed_generators(*self._seed, self.iter)
        batches: Any = self.dataloader.batch_sampler
        super().run_iter(batches.first_batch + idx, data_batch)


class NumberedIterLoop(IterBasedTrainLoop):
    """mmengine's loop over iterations. The number of a batch determines its random numbers."""

    def run(self) -> nn.Module:
        self._seed = _number_batches(self, endless=True)
        batches: Any = self.dataloader.batch_sampler
        batches.first_batch = self.iter
        # mmengine takes the trained batches from the iterator and drops them. The loader leaves
        # them out, so None takes their place.
        self.fast_forward_on_resume = False  # by which OneDL's would drop nothing
        self.dataloader_iterator = _LoopIterator(itertools.repeat(None, self.iter), self.dataloader)
        return super().run()

    def run_iter(self, data_batch: Any) -> None:
        seed_generators(*self._seed, self.iter)
        super().run_iter(data_batch)


def _number_batches(loop: Any, endless: bool) -> tuple[int, int]:
    """Give a loop a loader of numbered batches, and return the run's seed and the rank."""
    seeds = [loop.runner.seed]  # after a resume the checkpoint's
    broadcast_object_list(seeds)  # with diff_rank_seed every process has its own
    seed = (seeds[0], rank_and_size()[0])
    config = train_dataloader_config(loop.runner)
    loop.dataloader = numbered_loader(loop.dataloader.dataset, config, seed, endless)
    return seed


_NUMBERED_LOOPS = {EpochBasedTrainLoop: NumberedEpochLoop, IterBasedTrainLoop: NumberedIterLoop}


def use_numbered_loop(runner: Runner) -> None:
    """Let the training loop of a runner number its batches.

    This must come before the loop runs. It is not possible if the loop has a class of its own, or
    if the loader is not built from a config. A message then says so.
    """
    loop = runner.train_loop
    if isinstance(train_dataloader_config(runner), Mapping) and type(loop) in _NUMBERED_LOOPS:
        loop.__class__ = _NUMBERED_LOOPS[type(loop)]  # it keeps its state
    else:
        log_line("the batches have no numbers: a resumed run starts with other batches")
