"""Results of rasters and rows of earlier runs: nothing of the user's is replaced, and nothing of
another run is mixed in.
"""

import json
from pathlib import Path

import pyogrio
import pytest
import rasterio
import shapely
from helpers.perfect_detector import PerfectDetector
from helpers.pixel_segmentor import PixelSegmentor
from helpers.raster_files import UTM, noise, save, write_shapes
from helpers.raster_runs import TILES, RasterRun

AREA = [shapely.box(-9, -9, 300, 300)]
IN_TILES = PerfectDetector()
IN_TILES.tile = 64
MANY_CLASSES = PixelSegmentor([*map(str, range(256))])


@pytest.fixture
def table(tmp_path) -> RasterRun:
    """A run of a detector."""
    return RasterRun(tmp_path, "objects.gpkg")


def test_rows_of_other_options_are_refused_by_name(table, monkeypatch):
    monkeypatch.chdir(table.out.parent)
    write_shapes(Path("area.gpkg"), AREA)
    table.interrupt()
    rows = table.rows
    options = dict(tile=128, overlap=30, bands=[3, 2, 1], bounds=[0, 100], nodata=0)
    for name, value in dict(options, aoi="area.gpkg").items():
        with pytest.raises(ValueError, match=rf"results of another run: {name} was .*, is "):
            table.predict(**{name: value})
    assert rows and table.rows == rows
    table.predict(nodata=0, overwrite=True)
    assert table.out.exists() and not table.rows


def test_no_input_is_replaced_by_the_result(models, refusal, tmp_path):
    config, checkpoint = models["seg"]
    raster = save(tmp_path / "a.tif", noise(3, 100, 100), **UTM)
    labels = write_shapes(tmp_path / "labels.gpkg", AREA)
    for out in (raster, config, checkpoint, labels):
        options = ["--labels", labels, "--overwrite"]
        line = refusal("raster", raster, config, checkpoint, "--out", out, *options)
        assert f"--out {out} is or holds the input {out}: give another --out" in line
    assert raster.exists() and labels.exists()


def test_a_finished_result_is_one_line_and_is_overwritten_on_request(run, capsys):
    assert run.predict() == TILES
    before = run.out.stat().st_mtime_ns
    assert run.predict(tile=64) == 0 and run.out.stat().st_mtime_ns == before
    assert f"{run.out} exists: --overwrite predicts it again\n" in capsys.readouterr().err
    assert run.predict(overwrite=True) == TILES
    assert run.out.stat().st_mtime_ns > before
    run.assert_equals_an_undisturbed_run()


def test_a_result_states_what_it_was_made_from(run, monkeypatch):
    monkeypatch.setattr(run.model, "settings", dict(weights="epoch_12.pth"))
    run.predict()
    if run.out.suffix == ".tif":
        with rasterio.open(run.out) as file:
            metadata = file.tags()
    else:
        metadata = pyogrio.read_info(run.out)["layer_metadata"]
    made_from = json.loads(metadata["MADE_FROM"])
    assert made_from["weights"] == "epoch_12.pth" and made_from["raster"] == "scene.tif"
    assert made_from["tile"] == 96 and made_from["date"].startswith("20")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(out=Path("a.tif")), r"--out a\.tif: the result of this model is a \.gpkg"),
        (dict(out=Path("a.tif"), model=MANY_CLASSES), "256 classes: a map has at most 255"),
        (dict(model=IN_TILES), "tile=64: give tile to predict_raster"),
        (dict(whole=True), "--whole runs in one process: start it without torchrun"),
    ],
)
def test_a_result_that_cannot_be_is_one_line(options, message, table, monkeypatch):
    if "whole" in options:
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match=message):
        table.predict(**options)
    assert not table.rows and not table.out.exists()
