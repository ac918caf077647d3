"""The trunk over an image in several processes has the results of one process."""

import os
import signal
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from helpers.golden import fill, image
from helpers.processes import CONTEXT, end_with_the_parent
from helpers.small_models import TRUNK
from torch import Tensor

from xcit_mm.models import XCiT, large
from xcit_mm.models.large import large_taps

ALL = slice(None)
SIZE = (330, 120)  # 22 rows of tokens: two processes take 12 and 10, three 8, 8 and 6
SHORT = (60, 120)  # 4 rows, which one process takes


def see(size: tuple[int, int] = SIZE, device: str = "cpu", **options: Any) -> list[Tensor]:
    """Return the maps of an image with gaps, by bands of 8 rows of tokens, and what has data."""
    height, width = size
    pixels = image(height, width)[0].float()
    valid = torch.ones(height, width, dtype=torch.bool)
    valid[: height // 2, : width // 3] = False
    valid[height // 2 : height // 2 + 20] = False
    pixels[:, ~valid] = torch.nan
    trunk = fill(XCiT(TRUNK, 16, out_indices=(0, 1, 3), norm_cfg=dict(type="BN"))).to(device)
    tokens = large.CPU_TOKENS, large.GPU_TOKENS
    large.CPU_TOKENS = large.GPU_TOKENS = 1
    try:
        taps = large_taps(
            trunk, lambda *rows: (pixels[:, slice(*rows)], valid[slice(*rows)]), *size, **options
        )
    finally:
        large.CPU_TOKENS, large.GPU_TOKENS = tokens
    maps, valid = taps.crop(ALL, ALL)
    return [x.float().cpu() for x in (*maps, valid)]


class Run(NamedTuple):
    """Processes that see an image, each with a folder, and what becomes of them."""

    folders: list[Path | None]
    device: str = "cpu"
    backend: str = "gloo"
    size: tuple[int, int] = SIZE
    death: tuple[int, int] | None = None  # the process that dies, and after which pass

    def start(self, store: Path) -> list[Any]:
        """Return the maps of each process, or its exit code, or its error."""
        store.unlink(missing_ok=True)
        # CUDA works in no fork of the server.
        context: Any = CONTEXT if self.device == "cpu" else get_context("spawn")
        processes = [
            context.Process(target=self.run_rank, args=(rank, store))
            for rank in range(len(self.folders))
        ]
        for process in processes:
            process.start()
        results = []
        for rank, process in enumerate(processes):
            process.join(60)
            result = store.with_name(f"rank{rank}.pt")
            results.append(torch.load(result) if result.exists() else process.exitcode)
            result.unlink(missing_ok=True)
            process.kill()
        return results

    def run_rank(self, rank: int, store: Path) -> None:
        end_with_the_parent()
        torch.set_num_threads(1)
        if self.device == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
            torch.backends.cudnn.allow_tf32 = False
        count = len(self.folders)
        dist.init_process_group(
            self.backend,
            store=dist.FileStore(str(store), count),
            rank=rank,
            world_size=count,
            timeout=timedelta(days=100),
        )

        def die(done: int, passes: int) -> None:
            if (rank, done) == self.death:
                os.kill(os.getpid(), signal.SIGKILL)

        result: Any
        try:
            result = see(
                self.size,
                self.device,
                folder=self.folders[rank],
                memory=2**30,
                progress=die,
                group=dist.group.WORLD,
            )
        except (OSError, ValueError) as error:
            result = f"{type(error).__name__}: {error}"
        torch.save(result, store.with_name(f"rank{rank}.pt"))


def assert_close(maps: list[Tensor], expected: list[Tensor]) -> None:
    for own, other in zip(maps, expected, strict=True):
        assert (own - other).norm() <= 1e-6 * other.norm()


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "taps").mkdir()
    return tmp_path


@pytest.mark.parametrize("size", [SIZE, SHORT])
@pytest.mark.parametrize("count", [2, 3])
def test_processes_have_the_taps_of_one(count, size, folder):
    """Also those that get no rows of a short image. Two runs are equal to the bit."""
    expected = see(size)
    results = Run([folder / "taps"] * count, size=size).start(folder / "store")
    (folder / "other").mkdir()
    again = Run([folder / "other"] * count, size=size).start(folder / "store")
    assert len(results) == count
    for maps, others in zip(results, again, strict=True):
        assert_close(maps, expected)
        assert all(map(torch.equal, maps, others))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_processes_on_gpus_have_the_taps_of_one_on_the_cpu(backend, folder):
    if backend == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("nccl needs a GPU for each process")
    run = Run([folder / "taps"] * 2, device="cuda", backend=backend)
    for maps in run.start(folder / "store"):
        for own, other in zip(maps, see(), strict=True):
            assert (own - other).norm() <= 1e-5 * other.norm()


@pytest.mark.parametrize("later", [1, 2, 3])
@pytest.mark.parametrize("death", [(1, 1), (0, 3)])  # before and after a finished tap
def test_a_process_that_dies_ends_the_others_and_a_later_run_resumes(death, later, folder):
    """Also with another number of processes."""
    killed, after = death
    results = Run([folder / "taps"] * 2, death=death).start(folder / "store")
    assert results[killed] == -signal.SIGKILL
    assert results[1 - killed].startswith("ConnectionError: another process of this run has ended")
    finished = {path.name for path in (folder / "taps").glob("tap*")}
    assert finished == ({"tap0", "tap1"} if after == 3 else set())
    if later == 1:
        results = [see(folder=folder / "taps", memory=0)]
    else:
        results = Run([folder / "taps"] * later).start(folder / "store")
    for maps in results:
        assert_close(maps, see())


def test_processes_need_a_folder_that_all_see(folder):
    (folder / "other").mkdir()
    results = Run([folder / "taps", folder / "other"]).start(folder / "store")
    line = "FileNotFoundError: process 1 does not see what process 0 writes into"
    assert all(result.startswith(line) for result in results)
    assert not [*folder.glob("*/*")]
    results = Run([None, None]).start(folder / "store")
    assert all(result.endswith("give a folder") for result in results)
