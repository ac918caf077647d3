"""A raster at a URL."""

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
