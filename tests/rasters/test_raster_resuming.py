"""Runs over a raster that are killed, shared, or run into a full disk: the same call ends with the
result of an undisturbed run.
"""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import rasterio.shutil
from helpers.full_disk import room_for
from helpers.processes import arrange_death
from helpers.ranks import run_ranks
from helpers.raster_runs import ROWS, TILES, RasterRun


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_code(function: Callable[[], object]) -> int | None:
    """Run a function in a process of its own, and return its exit code."""
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    process.join(60)
    return process.exitcode


class TestKills:
    def test_a_run_killed_several_times_equals_an_undisturbed_run(self, run):
        for tiles in (0, 3, 3, 3):
            assert exit_code(partial(run.die_after, tiles, kill)) == -signal.SIGKILL
            assert not run.out.exists()
        assert len(run.rows) > 2
        assert 0 < run.predict() < TILES
        run.assert_equals_an_undisturbed_run()

    # The settings, the rows, then the result.
    @pytest.mark.parametrize(
        ("name", "moment", "count"),
        [
            ("objects.gpkg", "before_replace", ROWS + 2),
            ("map.tif", "before_replace", 2),
            ("map.tif", "before_replace", ROWS + 2),
            ("map.tif", "after_replace", 1),
            ("map.tif", "after_replace", ROWS + 1),
        ],
    )
    def test_a_kill_while_a_file_is_written_leaves_nothing_undone(
        self, name, moment, count, tmp_path
    ):
        run = RasterRun(tmp_path, name)

        def predict() -> None:
            arrange_death(moment, count)
            run.predict()

        assert exit_code(predict) == -signal.SIGKILL
        run.predict()
        run.assert_equals_an_undisturbed_run()

    def test_a_kill_while_rows_are_removed_leaves_a_finished_result(self, run, monkeypatch):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(shutil, "rmtree", Mock(side_effect=KeyboardInterrupt))
            run.predict()
        assert run.predict() == 0
        assert run.predict(overwrite=True) == TILES
        run.assert_equals_an_undisturbed_run()


def predict_rank(rank: int, run: RasterRun) -> None:
    assert 0 < run.predict() < TILES


def test_ranks_share_the_rows_and_the_first_writes_the_result(run, tmp_path):
    assert run_ranks(2, predict_rank, run, log=tmp_path / "log") == [0, 0]
    run.assert_equals_an_undisturbed_run()


class TestFullDisk:
    """Afterwards, the same call gives the result of an undisturbed run."""

    @pytest.mark.parametrize(
        ("name", "size", "message"),
        [
            ("t.gpkg", 900, r"File too large: '.*/t\.gpkg\.parts/row-0000000'$"),  # bytes
            ("map.tif", 900, r"^[^\n]+$"),  # all rows together are larger
            ("t.gpkg", 60_000, r"^[^\n]+$"),
        ],
    )
    def test_a_file_that_cannot_be_written_is_one_line(self, name, size, message, tmp_path):
        run = RasterRun(tmp_path, name)
        with room_for(size):
            self.fail(run, message)
        run.predict()
        run.assert_equals_an_undisturbed_run()

    def test_a_map_that_is_written_in_part_is_no_result(self, tmp_path, monkeypatch):
        """On a full disk, GDAL loses blocks in silence."""
        run = RasterRun(tmp_path, "map.tif")
        copy = rasterio.shutil.copy

        def lose_pixels(whole: Path, *args: Any, **options: Any) -> None:
            with rasterio.open(whole, "r+") as file:
                file.write(np.full((9, 9), 255, np.uint8), 1, window=((0, 9), (0, 9)))
            copy(whole, *args, **options)

        with monkeypatch.context() as context:
            context.setattr("rasterio.shutil.copy", lose_pixels)
            self.fail(run, r"^[^\n]* differs from what was written: see if the disk is full$")
        assert run.predict() == 0
        run.assert_equals_an_undisturbed_run()

    def fail(self, run: RasterRun, message: str) -> None:
        with pytest.raises((OSError, RuntimeError), match=message):
            run.predict()
        assert not run.out.exists()
