"""A raster at a URL, and two commands that write one result at once."""

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import rasterio
from helpers import range_server
from helpers.raster_files import UTM, noise, read_map, save

from xcit_mm import predict_raster


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[str]:
    """Address of a server of the folder of a test, in a process of its own."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("GDAL_HTTP_TIMEOUT", "30")
    command = [sys.executable, "-u", range_server.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def test_a_raster_at_a_url_has_the_map_of_the_file(models, server, tmp_path):
    raster = save(tmp_path / "a.tif", noise(3, 96, 130), **UTM)
    config, checkpoint = models["seg"]
    options = dict(checkpoint=checkpoint, device="cpu", tile=96)
    of_file = predict_raster(config, raster, tmp_path / "file.tif", **options)
    url = server.replace("//", "//name:secret@") + "/a.tif"
    of_url = predict_raster(config, url, tmp_path / "url.tif", **options)
    assert np.array_equal(read_map(of_file), read_map(of_url))
    with rasterio.open(of_url) as file:
        assert "secret" not in file.tags()["MADE_FROM"]
    missing = f"{server}/none.tif"
    with pytest.raises(Exception, match=r"none\.tif") as error:
        predict_raster(config, missing, tmp_path / "none.tif", **options)
    assert "\n" not in str(error.value) and not (tmp_path / "none.tif").exists()


def test_of_two_commands_at_once_one_writes_the_result(models, tmp_path):
    raster = save(tmp_path / "a.tif", noise(3, 100, 100), **UTM)
    config, checkpoint = models["seg"]
    out = tmp_path / "map.tif"
    command = [sys.executable, "-W", "ignore", "-m", "xcit_mm", "raster", config, raster]
    command += ["--checkpoint", checkpoint, "--out", out, "--tile", 32, "--device", "cpu"]
    env = os.environ | dict(OMP_NUM_THREADS="1")
    runs = [
        subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, env=env)
        for _ in range(2)
    ]
    errors = [run.communicate(timeout=300)[1] for run in runs]
    codes = [run.returncode for run in runs]
    assert 0 in codes and read_map(out).shape == (100, 100)
    for code, error in zip(codes, errors, strict=True):
        last = error.splitlines()[-1]
        assert code == 0 or last.startswith("BlockingIOError: another process writes into")
    assert not list(tmp_path.glob("map.tif.parts"))
