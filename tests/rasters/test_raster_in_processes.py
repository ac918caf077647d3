"""A raster that several processes see whole has the result of one process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
from helpers.processes import arrange_death
from helpers.ranks import run_ranks
from helpers.raster_files import read_map, save_image
from helpers.small_models import build, mask_rcnn, semantic_fpn, synthetic_photo, upernet

from xcit_mm import Predictor, predict_raster
from xcit_mm.models import large


def predict(recipe: Any, raster: Path, out: Path, **options: Any) -> Path:
    """Predict a raster in windows of 128 pixels."""
    cfg = recipe()
    if recipe is mask_rcnn:
        cfg.model.test_cfg.rcnn.max_per_img = 10
    cfg.large = dict(scale=1)
    return predict_raster(Predictor(build(cfg), cfg), raster, out, **dict(window=128) | options)


def predict_rank(
    rank: int, recipe: Any, raster: Path, out: Path, options: Any = None, death: Any = (None, 0)
) -> None:
    """Predict in one of several processes, by bands of 8 rows of tokens.

    Args:
        death: The process that dies, and before which file gets its name.
    """
    large.CPU_TOKENS = 1
    if rank == death[0]:
        arrange_death("before_replace", death[1])
    predict(recipe, raster, out, **options or {})


@pytest.mark.parametrize(
    ("recipe", "count", "height"), [(semantic_fpn, 3, 300), (upernet, 2, 300), (upernet, 3, 60)]
)
def test_a_map_of_processes_is_that_of_one(recipe, count, height, tmp_path):
    """Also of a raster with rows for one process alone, and with windows for one."""
    raster = save_image(tmp_path / "a.tif", synthetic_photo(height, 200))
    out, log = tmp_path / "map.tif", tmp_path / "log"
    assert run_ranks(count, predict_rank, recipe, raster, out, log=log) == [0] * count
    assert log.read_text().count("seen at scale 1, in windows of 128 pixels\n") == 1
    labels = read_map(out)
    assert np.array_equal(labels, read_map(predict(recipe, raster, tmp_path / "one.tif")))
    assert len(np.unique(labels)) > 1
    assert not [*tmp_path.glob("map.tif.parts")]


def test_objects_of_processes_are_those_of_one(tmp_path):
    raster = save_image(tmp_path / "a.tif", synthetic_photo(300, 200))
    out, log, whole = tmp_path / "a.gpkg", tmp_path / "log", dict(whole=True)
    assert run_ranks(2, predict_rank, mask_rcnn, raster, out, whole, log=log) == [0, 0]
    table = geopandas.read_file(out)
    expected = geopandas.read_file(predict(mask_rcnn, raster, tmp_path / "one.gpkg", **whole))
    assert len(table) == len(expected) > 5
    np.testing.assert_allclose(table.score, expected.score, atol=1.01e-4)  # it is rounded
    np.testing.assert_allclose(table.area, expected.area, atol=1)


# The first process names its settings, the taps, then rows. Others name rows.
@pytest.mark.parametrize(
    ("death", "taps", "later"), [((0, 2), 0, 3), ((0, 4), 2, 1), ((1, 1), 4, 2), ((0, 7), 4, 3)]
)
def test_processes_end_with_one_that_dies_and_another_number_resumes(death, taps, later, tmp_path):
    raster = save_image(tmp_path / "a.tif", synthetic_photo(400, 200))
    out, log = tmp_path / "map.tif", tmp_path / "log"
    work = (predict_rank, semantic_fpn, raster, out, None)
    codes = run_ranks(2, *work, death, log=log)
    assert codes[death[0]] == -9 and codes[1 - death[0]] == 1
    assert "ConnectionError: another process of this run has ended" in log.read_text()
    assert len([*tmp_path.glob("map.tif.parts/*/tap?")]) == taps
    assert run_ranks(later, *work, log=log) == [0] * later
    labels = read_map(out)
    assert np.array_equal(labels, read_map(predict(semantic_fpn, raster, tmp_path / "one.tif")))
    assert not [*tmp_path.glob("map.tif.parts")]


@pytest.mark.slow
def test_torchrun_ends_with_a_process_that_is_killed_and_resumes(models, tmp_path):
    """Within a minute; only the first process speaks."""
    raster = save_image(tmp_path / "a.tif", synthetic_photo(900, 600))
    config, checkpoint = models["seg"]
    out = tmp_path / "map.tif"
    command = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "xcit_mm"]
    command += ["raster", config, raster, "--checkpoint", checkpoint, "--window", "128"]
    command += ["--scale", "1", "--out", out]
    line = [sys.executable, "-W", "ignore", "-m", *map(str, command)]
    env = os.environ | dict(OMP_NUM_THREADS="1")
    with subprocess.Popen(line, env=env, stderr=subprocess.PIPE, text=True) as torchrun:
        while not [*tmp_path.glob("map.tif.parts/row-*")]:
            assert torchrun.poll() is None
            time.sleep(0.01)
        children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text()
        os.kill(int(children.split()[1]), signal.SIGKILL)
        killed = time.monotonic()
        _, errors = torchrun.communicate(timeout=60)
        assert time.monotonic() - killed < 60
    assert torchrun.returncode == 1
    assert "the same command again to continue" in errors or "start all processes again" in errors
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{out}\n" and done.stderr.count("seen at scale 1, in windows") == 1
