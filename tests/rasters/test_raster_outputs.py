"""Results of rasters and rows of earlier runs: nothing of the user's is replaced, and nothing of
another run is mixed in.
"""

import json
from pathlib import Path

import geopandas
import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
from helpers.locks import locked_by_another_process
from helpers.perfect_detector import PerfectDetector
from helpers.pixel_segmentor import PixelSegmentor
from helpers.raster_files import ROTATED, UTM, in_pixels, noise, save, write_shapes
from helpers.raster_runs import TILES, RasterRun

from xcit_mm import predict_raster
from xcit_mm.prediction.view import View

AREA = [shapely.box(-9, -9, 300, 300)]
IN_TILES = PerfectDetector()
IN_TILES.view = View(1.0, whole=False, side=64, overlap=16)
MANY_CLASSES = PixelSegmentor([*map(str, range(256))])


@pytest.fixture
def table(tmp_path) -> RasterRun:
    """A run of a detector."""
    return RasterRun(tmp_path, "objects.gpkg")


def test_rows_and_results_of_other_options_or_polygons_are_refused(table, tmp_path):
    """Polygons in memory are those of a file."""
    path = write_shapes(tmp_path / "area.gpkg", AREA)
    frame = geopandas.read_file(path)
    other = in_pixels([shapely.box(0, 0, 100, 300)])
    table.interrupt(aoi=path)
    rows = table.rows
    options = dict(tile=128, overlap=30, bands=[3, 2, 1], bounds=[0, 100], nodata=0)
    for name, value in options.items():
        with pytest.raises(ValueError, match=rf"results of another run: {name} was .*, is "):
            table.predict(aoi=frame, **{name: value})
    with pytest.raises(ValueError, match="results of another run: the area is another: give"):
        table.predict(aoi=other)
    assert rows and table.rows == rows
    assert 0 < table.predict(aoi=frame) < TILES
    assert table.predict(aoi=frame) == table.predict(aoi=path) == 0
    with pytest.raises(ValueError, match=r"^out: .* is of another run: the area is another: "):
        table.predict(aoi=other)
    table.interrupt(overwrite=True)
    assert table.predict(nodata=0, overwrite=True) == TILES and not table.rows


@pytest.mark.parametrize("bounds", [np.array([0, 100]), [[0, 100]] * 3, (0.0, 100.0)])
def test_bounds_are_numbers_or_pairs_and_numbers_may_be_of_numpy(bounds, table):
    table.interrupt(bounds=bounds)
    options = dict(bounds=[0, 100, 0, 100, 0, 100], tile=np.int64(96), scale=np.float32(1))
    assert 0 < table.predict(**options) < TILES
    assert table.predict(bounds=bounds) == 0


@pytest.mark.parametrize(
    ("step", "place", "change"),
    [
        (-1, {}, "the raster has other pixels: gi"),
        (1, dict(transform=ROTATED), "raster_transform was .*, is "),
    ],
)
def test_another_raster_of_the_same_name_and_size_is_refused(step, place, change, run, tmp_path):
    with rasterio.open(run.raster) as file:
        bands = file.read()[:, ::step]
        profile = file.profile | place
    run.interrupt()
    renamed = run.raster.rename(tmp_path / "renamed.tif")  # which changes nothing
    save(run.raster, bands, **profile)
    with pytest.raises(ValueError, match=f"results of another run: {change}"):
        run.predict()
    run.raster = renamed
    assert 0 < run.predict() < TILES and run.predict() == 0
    run.assert_equals_an_undisturbed_run()


def test_no_input_is_replaced_by_the_result(models, refusal, tmp_path):
    config, checkpoint = models["seg"]
    raster = save(tmp_path / "a.tif", noise(3, 100, 100), **UTM)
    labels = write_shapes(tmp_path / "labels.gpkg", AREA, **{"class": ["circle"]})
    area = write_shapes(tmp_path / "area.gpkg", AREA)
    for out in (raster, labels, area):
        before = out.read_bytes()
        options = ["--labels", labels, "--aoi", area, "--overwrite"]
        line = refusal("raster", config, raster, "--checkpoint", checkpoint, "--out", out, *options)
        assert line.startswith(f"--out: {out} is or holds the input")
        assert out.read_bytes() == before


class TestFinished:
    def test_a_result_of_the_same_inputs_stays_and_is_overwritten_on_request(self, run, capsys):
        assert run.predict() == TILES
        before = run.out.stat().st_mtime_ns
        model = run.model()
        model.batch_size = 1
        model.arguments = dict(checkpoint="moved.pth")
        assert run.predict(model) == 0 and run.out.stat().st_mtime_ns == before
        assert f"{run.out} exists: overwrite it to predict it again\n" in capsys.readouterr().err
        assert run.predict(overwrite=True) == TILES
        assert run.out.stat().st_mtime_ns > before
        run.assert_equals_an_undisturbed_run()

    def test_a_result_of_another_model_option_or_program_is_one_line(self, run, monkeypatch):
        run.predict()
        before = run.out.read_bytes()
        with pytest.raises(ValueError, match="is of another run: tile was 96, is 64: give another"):
            run.predict(tile=64)
        monkeypatch.setattr(run.model, "settings", dict(weights="epoch_12.pth"))
        with pytest.raises(
            ValueError, match=r"another run: weights was None, is epoch_12\.pth: gi"
        ):
            run.predict()
        assert run.out.read_bytes() == before and not run.rows
        if run.out.suffix == ".tif":
            save(run.out, noise(1, 9, 9), **UTM)
        else:
            run.out.unlink()
            in_pixels([shapely.Point(1, 2)]).to_file(run.out, layer="points")
        with pytest.raises(ValueError, match=r"^[^\n]* is of another run: another program wrote"):
            run.predict()

    def test_a_folder_of_another_process_or_of_the_user_is_not_taken_for_rows(self, run):
        folder = run.out.with_name(f"{run.out.name}.parts")
        folder.mkdir()
        busy = pytest.raises(BlockingIOError, match="another process writes into")
        with locked_by_another_process(folder), busy:
            run.predict()
        (folder / "notes.txt").touch()
        with pytest.raises(FileExistsError, match=r"not of a run, such as notes\.txt: choose"):
            run.predict()
        assert (folder / "notes.txt").exists()
        folder.rename(folder.with_name("elsewhere"))
        run.predict()
        folder.with_name("elsewhere").rename(folder)
        assert run.predict() == 0  # the result is finished
        assert (folder / "notes.txt").exists()

    def test_scratch_is_refused_where_no_taps_are_stored(self, run, tmp_path):
        with pytest.raises(ValueError, match="scratch: the raster is not seen whole, but in tiles"):
            run.predict(scratch=tmp_path)

    def test_overwriting_keeps_the_result_until_the_new_one_is_written(self, run):
        run.predict()
        before = run.out.read_bytes()
        raster = run.raster.read_bytes()
        run.raster.write_bytes(raster[: len(raster) // 2])
        with pytest.raises(OSError, match=r"^[^\n]+$"):
            run.predict(overwrite=True)
        run.raster.write_bytes(raster)
        run.interrupt(overwrite=True, bands=[3, 2, 1])
        rows = run.rows
        assert run.predict() == 0  # the result is there
        assert run.out.read_bytes() == before and run.rows == rows
        assert 0 < run.predict(overwrite=True, bands=[3, 2, 1]) < TILES  # which goes on

    def test_other_folders_and_training_data_in_the_config_are_the_same_run(self, models, tmp_path):
        raster = save(tmp_path / "a.tif", noise(3, 96, 96), **UTM)
        config, checkpoint = models["seg"]
        moved = tmp_path / Path(config).name
        moved.write_text(
            f"_base_ = {config!r}\nwork_dir = '.'\ntrain_dataloader = dict(batch_size=9)"
        )
        for path in (config, moved):
            predict_raster(path, raster, tmp_path / "map.tiff", checkpoint=checkpoint, device="cpu")


def test_a_result_states_what_it_was_made_from(run, monkeypatch, capsys):
    monkeypatch.setattr(run.model, "settings", dict(weights="epoch_12.pth"))
    with rasterio.open(run.raster, "r+") as file:
        file.offsets = (-1000, -1000, 0)
    run.predict()
    line = "scale and offset are not applied: they were None in the training, and are [[1.0, -1000"
    assert line not in capsys.readouterr().err  # a published model had no raster
    trained = run.model()
    trained.cfg.raster = dict(tile=96)
    run.predict(trained, overwrite=True)
    assert line in capsys.readouterr().err
    if run.out.suffix == ".tif":
        with rasterio.open(run.out) as file:
            metadata = file.tags()
    else:
        metadata = pyogrio.read_info(run.out)["layer_metadata"]
    made_from = json.loads(metadata["MADE_FROM"])
    assert made_from["weights"] == "epoch_12.pth" and made_from["raster"] == str(run.raster)
    assert made_from["tile"] == 96 and made_from["date"].startswith("20")
    assert made_from["raster_scaling"] == [[1, -1000], [1, -1000], [1, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(out=Path("a.tif")), r"out: a\.tif: give a name that ends in \.gpkg"),
        (
            dict(out=Path("a.tif"), model=MANY_CLASSES),
            "model: it has 256 classes: a map has at most 255",
        ),
        (dict(model=IN_TILES), "it has a tile or whole: give these to"),
    ],
)
def test_a_result_that_cannot_be_is_one_line(options, message, table):
    with pytest.raises(ValueError, match=message):
        table.predict(**options)
    assert not table.rows and not table.out.exists()
