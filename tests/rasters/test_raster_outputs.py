"""Results of rasters and rows of earlier runs: nothing of the user's is replaced, and nothing of
another run is mixed in.
"""

import json
import os
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from helpers.perfect_detector import PerfectDetector
from helpers.pixel_segmentor import PixelSegmentor
from helpers.raster_files import ROTATED, UTM, in_pixels, noise, save, write_shapes
from helpers.raster_runs import TILES, RasterRun, interrupt

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
        with pytest.raises(ValueError, match=rf"results of another run: {name}\w* was .*, is "):
            table.predict(**{name: value})
    assert rows and table.rows == rows
    table.predict(nodata=0, overwrite=True)
    assert table.out.exists() and not table.rows


def other_pixels(bands: np.ndarray, profile: dict) -> tuple[np.ndarray, dict]:
    return bands[:, ::-1], profile


def other_place(bands: np.ndarray, profile: dict) -> tuple[np.ndarray, dict]:
    return bands, profile | dict(transform=ROTATED)


def other_nodata(bands: np.ndarray, profile: dict) -> tuple[np.ndarray, dict]:
    return bands, profile | dict(nodata=255)


class TestAnotherRaster:
    """Two rasters have one name and one size, as two dates of an area have."""

    @pytest.mark.parametrize(
        ("change", "name"),
        [
            (other_pixels, "raster_pixels"),
            (other_place, "raster_transform"),
            (other_nodata, "raster_nodata"),
        ],
    )
    def test_its_rows_and_its_result_are_refused_by_name(self, change, name, run):
        with rasterio.open(run.raster) as file:
            bands, profile = change(file.read(), file.profile)
        run.interrupt()
        before = run.raster.read_bytes()
        save(run.raster, bands, **profile)
        with pytest.raises(ValueError, match=f"results of another run: {name} was .*, is .*; give"):
            run.predict()
        run.raster.write_bytes(before)
        assert 0 < run.predict() < TILES
        run.assert_equals_an_undisturbed_run()
        result = run.out.read_bytes()
        save(run.raster, bands, **profile)
        with pytest.raises(
            ValueError, match=f"is of another run: {name} was .*, is .*: give anoth"
        ):
            run.predict()
        assert run.out.read_bytes() == result

    def test_the_same_raster_at_another_path_is_resumed(self, run, tmp_path):
        run.interrupt()
        (tmp_path / "mount").mkdir()
        run.raster = run.raster.rename(tmp_path / "mount" / "other.tif")
        os.utime(run.raster, (0, 0))
        assert 0 < run.predict() < TILES
        assert run.predict() == 0
        run.assert_equals_an_undisturbed_run()

    def test_areas_are_compared_by_their_polygons(self, table, tmp_path):
        """The path of an area is that of another, or another path that of the same."""
        area = write_shapes(tmp_path / "area.gpkg", [shapely.box(0, 0, 300, 300)])
        with pytest.raises(KeyboardInterrupt):
            table.die_after(4, interrupt, aoi=area)
        area.rename(tmp_path / "same.gpkg")
        write_shapes(area, [shapely.box(0, 0, 100, 300)])
        with pytest.raises(ValueError, match="results of another run: aoi_polygons was "):
            table.predict(aoi=area)
        table.predict(aoi=tmp_path / "same.gpkg")
        assert made_from(table.out)["aoi"] == str(tmp_path / "same.gpkg")


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
    model = run.model()
    model.batch_size = 1
    model.arguments = dict(checkpoint="moved.pth")
    assert run.predict(model) == 0 and run.out.stat().st_mtime_ns == before
    assert f"{run.out} exists: --overwrite predicts it again\n" in capsys.readouterr().err
    assert run.predict(overwrite=True) == TILES
    assert run.out.stat().st_mtime_ns > before
    run.assert_equals_an_undisturbed_run()


def test_a_finished_result_of_another_model_or_option_is_one_line(run, monkeypatch):
    run.predict()
    before = run.out.read_bytes()
    with pytest.raises(
        ValueError, match=r"is of another run: tile was 96, is 64: give another out"
    ):
        run.predict(tile=64, overlap=24)
    monkeypatch.setattr(run.model, "settings", dict(weights="epoch_12.pth"))
    with pytest.raises(ValueError, match=r"is of another run: weights was None, is epoch_12\.pth"):
        run.predict()
    assert run.out.read_bytes() == before and not run.rows


@pytest.mark.parametrize("content", ["objects", "points", None])
def test_a_result_that_does_not_say_its_origin_is_one_line(content, run):
    """A file of another program, or no file of this kind."""
    if content is None:
        run.out.write_text("no result")
    elif run.out.suffix == ".tif":
        save(run.out, noise(1, 9, 9), **UTM)
    else:
        in_pixels([shapely.Point(1, 2)]).to_file(run.out, layer=content)
    message = r"^[^\n]* exists and does not say what it was made from: give another out, or"
    with pytest.raises(ValueError, match=message):
        run.predict()
    assert run.predict(overwrite=True) == TILES
    run.assert_equals_an_undisturbed_run()


class TestOverwriting:
    def test_the_old_result_stays_until_the_new_one_is_written(self, run):
        run.predict()
        before = run.out.read_bytes()
        raster = run.raster.read_bytes()
        run.raster.write_bytes(raster[: len(raster) // 2])
        with pytest.raises(OSError, match=r"^[^\n]+$"):
            run.predict(overwrite=True)
        assert run.out.read_bytes() == before
        run.raster.write_bytes(raster)
        run.interrupt(overwrite=True)
        assert run.out.read_bytes() == before
        assert 0 < run.predict(overwrite=True) < TILES  # which goes on
        run.assert_equals_an_undisturbed_run()

    def test_what_another_run_has_begun_is_not_lost(self, run):
        run.predict()
        run.interrupt(overwrite=True, bands=[3, 2, 1])
        with pytest.raises(
            ValueError, match=r"results of another run: bands was \[3, 2, 1\], is \[1"
        ):
            run.predict()
        assert run.rows


def made_from(out: Path) -> dict:
    if out.suffix == ".tif":
        with rasterio.open(out) as file:
            metadata = file.tags()
    else:
        metadata = pyogrio.read_info(out, layer="objects")["layer_metadata"]
    return json.loads(metadata["MADE_FROM"])


def test_a_result_states_what_it_was_made_from(run, monkeypatch):
    monkeypatch.setattr(run.model, "settings", dict(weights="epoch_12.pth"))
    with rasterio.open(run.raster, "r+") as file:
        file.offsets = (-1000, -1000, -1000)
    run.predict()
    stated = made_from(run.out)
    assert stated["weights"] == "epoch_12.pth" and stated["raster"] == str(run.raster)
    assert stated["tile"] == 96 and stated["date"].startswith("20")
    assert stated["raster_scaling"] == [[1, -1000]] * 3


def test_scale_and_offset_that_differ_from_the_training_are_one_line(table, capsys):
    model = table.model()
    model.cfg.raster = dict(scaling=[[1, 0], [1, 0], [1, -1000]])
    table.predict(model)
    change = "[[1, 0], [1, 0], [1, -1000]] in the training, None here"
    assert f"scale and offset of the bands differ, and are not applied: {change}" in (
        capsys.readouterr().err
    )
    del model.cfg.raster["scaling"]
    table.predict(model)
    assert "scale and offset" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["map.TIFF", "map.TIF", "objects.GPKG"])
def test_results_have_suffixes_of_any_case(name, models, call, tmp_path):
    raster = save(tmp_path / "a.tif", noise(3, 96, 96), **UTM)
    labels = write_shapes(tmp_path / "labels.gpkg", [shapely.box(9, 9, 40, 40)], kind=["circle"])
    model = models["det" if "objects" in name else "seg"]
    out = tmp_path / "out" / name
    command = "raster", raster, *model, "--out", out, "--tile", 96, "--labels", labels
    command += "--class-column", "kind"
    assert call(*command)[0] == 0 and call(*command)[0] == 0
    assert f"{out}\n" in call(*command)[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(out=Path("a.tif")), r"--out a\.tif: the result of this model is a \.gpkg"),
        (dict(out=Path("a.tif"), model=MANY_CLASSES), "256 classes: a map has at most 255"),
        (dict(model=IN_TILES), "tile=64: give tile to predict_raster"),
        (
            dict(tiles=9),
            "tiles: no option of a raster, as bands, bounds, nodata, tile, overlap are",
        ),
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
