"""The place of a run in its data: batches have numbers, so that a resumed run starts at the next one."""

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from mmengine.dist import broadcast_object_list, get_rank, get_world_size
from mmengine.logging import print_log
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler

from ..utils.compat import train_dataloader_config

# Options of a DataLoader besides its data set and its samplers.
_OPTIONS = [
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers"),
]


def seed_generators(*numbers: int) -> None:
    """Seed the generators of Python, numpy and torch by non-negative numbers."""
    words = np.random.SeedSequence(numbers).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)
    seed = int(words.view(np.uint64)[0])
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # else torch.manual_seed, which seeds GPUs as well, takes a hundred times as long
        torch.cuda.manual_seed(seed)


class SeededDataset(Dataset):
    """A data set whose random numbers depend only on a seed and the place of a sample in the run.

    The number of workers and the samples that a worker loaded before make no difference. All attributes are those of
    the original data set.
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
        if name.startswith("__") or name == "_dataset":  # pickle asks for these before the attributes exist
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)  # hooks replace the pipeline


class NumberedBatches(Sampler):
    """Batches of a batch sampler, as lists of ((epoch, batch, position), index).

    They start with the batch `first` of `epoch`, and go on with the next epoch if `endless`. Only the indices of
    earlier batches are read.
    """

    epoch = first = 0

    def __init__(self, batches: Any, endless: bool) -> None:
        self._batches, self._endless = batches, endless
        self.sampler: Any = getattr(batches, "sampler", None)  # whose epoch mmengine's DistSamplerSeedHook sets
        self.batch_size = getattr(batches, "batch_size", None)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list]:
        count = 0
        for epoch in itertools.count(self.epoch) if self._endless else [self.epoch]:
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)
            start = count
            for count, indices in enumerate(self._batches, start + 1):
                if count > self.first:
                    yield [((epoch, count - 1, position), index) for position, index in enumerate(indices)]
            if count == start:  # there are no batches
                return


def numbered_loader(loader: DataLoader, config: dict[str, Any], seed: tuple[int, int], endless: bool) -> DataLoader:
    """Return a loader of the same batches with a `NumberedBatches` and a `SeededDataset`, for a seed and a process.

    Its samplers are built again, because InfiniteSampler keeps its place and mmengine's loop has already read ahead.
    """
    size: Any = config.get("batch_size")
    sampler = DATA_SAMPLERS.build(config["sampler"], default_args=dict(dataset=loader.dataset, seed=seed[0]))
    if config.get("batch_sampler"):
        batches = DATA_SAMPLERS.build(config["batch_sampler"], default_args=dict(sampler=sampler, batch_size=size))
    else:
        batches = BatchSampler(sampler, size, config.get("drop_last", False))
    return DataLoader(
        SeededDataset(loader.dataset, seed),
        batch_sampler=NumberedBatches(batches, endless),
        **{name: getattr(loader, name) for name in _OPTIONS},
    )


class UnequalBatch(ValueError):
    """The images or segmentation maps of a batch do not have one size."""


class _Batches(itertools.chain):
    def skip_iter(self, number: int) -> None:
        """Skip batches. OneDL's mmengine (0.10.12) calls it, mmengine (0.10.7) skips one by one."""
        list(itertools.islice(self, number))


class NumberedLoop:
    """The training loop of a runner, with another loader and random numbers, both by the number of a batch.

    Args:
        former: Position in the checkpoint from which the run resumes. None if it does not resume.
    """

    def __init__(self, runner: Runner, former: dict[str, int] | None) -> None:
        loop: Any = runner.train_loop
        self._loop, self._endless = loop, isinstance(loop, IterBasedTrainLoop)
        seed = [runner.seed]
        broadcast_object_list(seed)  # with diff_rank_seed every process has its own
        self._seed = (seed[0], get_rank())
        loop.dataloader = numbered_loader(loop.dataloader, train_dataloader_config(runner), self._seed, self._endless)
        self._batches: Any = loop.dataloader.batch_sampler
        self._numbering = dict(length=len(loop.dataloader), processes=get_world_size())
        self._first, self._began = 0, (0, 0)
        if former is not None and self._numbering.items() <= former.items():
            self._first = former["batch"]
        elif former is not None:
            self._first = loop.iter if self._endless else 0
            print_log("the checkpoint is of another number of processes or of batches: other batches follow", "current")
        loop.run_iter = functools.partial(self._run_iter, loop.run_iter)

    @staticmethod
    def supports(runner: Runner) -> bool:
        """Return whether batches can have numbers: the data have a config and indices, the loop is mmengine's."""
        loop, given = runner.train_loop, train_dataloader_config(runner)
        sampler = given.get("sampler") if isinstance(given, dict) else None
        known = isinstance(loop, EpochBasedTrainLoop | IterBasedTrainLoop) and isinstance(sampler, dict)
        return known and not isinstance(loop.dataloader.dataset, IterableDataset)

    def start_epoch(self) -> None:
        """Find the first batch of an epoch, or of the whole run in the iteration-based loop."""
        loop = self._loop
        self._batches.epoch, self._batches.first = loop.epoch, self._first
        self._began, self._first = (loop.epoch, loop.iter - self._first), 0
        if self._endless:  # the loop skips the batches before its place
            skipped = 0 if getattr(loop, "fast_forward_on_resume", False) else loop.iter
            loop.dataloader_iterator = _Batches(itertools.repeat(None, skipped), loop.dataloader)

    def position(self, meta: dict[str, Any]) -> dict[str, int]:
        """Return the number of the next batch, for a checkpoint with this `meta`, and the numbering of batches."""
        epoch, iteration = self._began
        batch = meta["iter"] - iteration if self._endless or meta["epoch"] == epoch else 0
        return dict(batch=batch, **self._numbering)

    def _run_iter(self, run_iter: Callable, *given: Any) -> None:
        *number, batch = given  # the epoch-based loop counts from 0 and gives a number
        seed_generators(*self._seed, self._loop.iter)
        try:
            run_iter(*[self._batches.first + each for each in number], batch)
        except RuntimeError as error:
            if "equal size" not in str(error) or "data_samples" not in batch:
                raise
            raise UnequalBatch(f"the images or maps of a batch differ in shape: {_unequal(batch)}") from error


def _unequal(batch: dict[str, Any]) -> str:
    """Describe the images of a batch, or the segmentation maps if the images have one shape."""
    samples = batch["data_samples"]
    found = [(s.get("img_path"), tuple(x.shape)) for x, s in zip(batch["inputs"], samples, strict=True)]
    if len({shape for _, shape in found}) == 1:
        found = [(s.get("seg_map_path"), tuple(s.gt_sem_seg.data.shape)) for s in samples]
    return ", ".join(f"{path} has {shape}" for path, shape in found)
