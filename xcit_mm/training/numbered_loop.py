"""The place of a run in its data, in mmengine's training loops of epochs and of iterations."""

from typing import Any

from mmengine.dist import broadcast_object_list, get_world_size
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import IterableDataset

from ..utils.compat import set_iteration, train_dataloader_config
from .batches import EndlessBatches, numbered_loader

__all__ = ["NumberedLoop"]


class NumberedLoop:
    """The training loop of a runner, changed so that its batches have numbers.

    Args:
        runner: Runner before the first iteration. The loader of its loop is replaced.
        resumed: Content of the checkpoint from which the run resumes.
    """

    def __init__(self, runner: Runner, resumed: dict[str, Any] | None) -> None:
        loop: Any = runner.train_loop
        self._loop, self._endless = loop, isinstance(loop, IterBasedTrainLoop)
        seed = [runner.seed]
        broadcast_object_list(seed)  # with diff_rank_seed every process has its own
        loop.dataloader = numbered_loader(loop.dataloader, train_dataloader_config(runner), seed[0], self._endless)
        self._batches: Any = loop.dataloader.batch_sampler
        self._first = self._next_batch(runner, resumed) if resumed else 0
        self._began = (0, 0)
        if not self._endless:
            run_iter = loop.run_iter
            loop.run_iter = lambda index, batch: run_iter(self._batches.first + index, batch)  # the loop counts from 0

    @staticmethod
    def supports(runner: Runner) -> bool:
        """Return whether the batches of a runner can have numbers: it has one of mmengine's loops, and indices."""
        loop: Any = runner.train_loop
        loader: Any = getattr(loop, "dataloader", None)
        return (
            isinstance(loop, EpochBasedTrainLoop | IterBasedTrainLoop)
            and loader.batch_sampler is not None
            and not isinstance(loader.dataset, IterableDataset)
        )

    def start_epoch(self) -> None:
        """Find the first batch of an epoch, or of the whole run in the iteration-based loop."""
        loop = self._loop
        self._batches.epoch, self._batches.first = loop.epoch, self._first
        self._began = (loop.epoch, loop.iter - self._first)
        self._first = 0
        if self._endless:
            skips = not getattr(loop, "fast_forward_on_resume", False)  # an option of OneDL's mmengine
            loop.dataloader_iterator = EndlessBatches(loop.dataloader, loop.iter if skips else 0)

    def position(self, meta: dict[str, Any]) -> dict[str, int]:
        """Return the number of the next batch and the batches per epoch, for a checkpoint.

        Args:
            meta: Epoch and iteration at which a run resumes from the checkpoint.
        """
        epoch, iteration = self._began
        batch = meta["iter"] - iteration if self._endless or meta["epoch"] == epoch else 0
        return dict(batch=batch, length=len(self._loop.dataloader))

    def _next_batch(self, runner: Runner, resumed: dict[str, Any]) -> int:
        loop, length, processes = self._loop, len(self._loop.dataloader), get_world_size()
        done = loop.iter if self._endless else loop.iter - loop.epoch * length
        former = resumed.get("position") or dict(batch=max(done, 0), length=length)
        number = len(resumed.get("random_state") or [None] * processes)
        batch = former["batch"] * number // processes
        if (former["length"], number) == (length, processes):
            return batch
        batch = batch if self._endless else min(batch, length)
        print_log(
            f"the checkpoint is of {number} processes with {former['length']} batches per epoch, and {processes} with "
            f"{length} resume: the run continues with batch {batch + 1}, and the random numbers will differ",
            logger="current",
        )
        if not self._endless:
            set_iteration(loop, loop.epoch * length + batch)
            runner.optim_wrapper.initialize_count_status(runner.model, loop.iter, loop.max_iters)
        return batch
