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
from helpers.raster_files import UTM, noise, save, write_shapes
from helpers.raster_runs import TILES, RasterRun

AREA = [shapely.box(-9, -9, 300, 300)]


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
        assert f"--out {out} is the input {out}: give another --out" in line
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


def test_a_name_or_a_predictor_that_does_not_fit_is_refused(table, monkeypatch):
    with pytest.raises(ValueError, match=r"--out .*: the result of this model is a \.gpkg"):
        table.predict(out=table.out.with_name("objects.tif"))
    monkeypatch.setattr(PerfectDetector, "tile", 64)
    with pytest.raises(ValueError, match="tile=64: give tile to predict_raster"):
        table.predict()
