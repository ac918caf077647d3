"""Results of rasters and rows of earlier runs: nothing of the user's is replaced, and nothing of
another run is mixed in.
"""

import shutil
from pathlib import Path
from typing import Any

import geopandas
import pytest
import rasterio
import shapely
from helpers.perfect_detector import PerfectDetector
from helpers.pixel_segmentor import PixelSegmentor
from helpers.raster_files import save_image, write_shapes
from helpers.raster_runs import TILES, RasterRun
from rasterio.crs import CRS
from rasterio.shutil import copy

from xcit_mm import predict_raster, score_raster
from xcit_mm.rasters.gdal import list_rasters

AREA = [shapely.box(-9, -9, 300, 300)]


@pytest.fixture
def table(tmp_path) -> RasterRun:
    """A run of a detector."""
    return RasterRun(tmp_path, "objects.gpkg")


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "option"),
        [
            ("tile", 128),
            ("overlap", 30),
            ("bands", [3, 2, 1]),
            ("bounds", [0, 100]),
            ("gsd", 1.0),
            ("nodata", 0),
            ("aoi", "area.gpkg"),
            ("crs", "EPSG:4326"),
        ],
    )
    def test_rows_of_other_options_are_refused_by_name(self, name, option, table, monkeypatch):
        monkeypatch.chdir(table.out.parent)
        write_shapes(Path("area.gpkg"), AREA)
        table.interrupt()
        self.assert_refused(table, name, **{name: option})
        table.predict(**{name: option}, overwrite=True)
        assert table.out.exists() and not table.rows

    def assert_refused(self, run: RasterRun, name: str, **options: Any) -> None:
        rows = run.rows
        assert rows
        with pytest.raises(ValueError, match=rf"results of another run: {name} was .*, is "):
            run.predict(**options)
        assert run.rows == rows


@pytest.mark.parametrize("overwrite", [False, True])
class TestFilesOfTheUser:
    """No result replaces a file that such a run has not written."""

    @pytest.mark.parametrize("replaced", ["raster", "link to the raster", "area"])
    def test_a_result_in_place_of_an_input_is_refused(self, replaced, overwrite, table):
        aoi = write_shapes(table.out.parent / "area.gpkg", AREA)
        out = dict(raster=table.raster, area=aoi).get(replaced, table.out)
        if replaced == "link to the raster":
            out.symlink_to(table.raster)
        model = table.model() if out.suffix == ".gpkg" else PixelSegmentor()
        before = out.read_bytes()
        with pytest.raises(ValueError, match=r"--out .* is the input .*: give another --out"):
            table.predict(model, out=out, aoi=aoi, overwrite=overwrite)
        assert out.read_bytes() == before

    @pytest.mark.parametrize("existing", ["raster", "polygons", "text", "folder"])
    def test_a_result_in_place_of_something_else_is_refused(self, existing, overwrite, run):
        if existing == "raster":
            shutil.copy(run.raster, run.out)
            with rasterio.open(run.out, "r+") as file:
                file.update_tags(CLASSES='["tree"]')
        elif existing == "polygons":
            columns = {"class": ["tree"], "score": 0.9, "area": 1.0, "cut": False}
            write_shapes(run.out.with_suffix(".gpkg"), AREA, **columns).rename(run.out)
        elif existing == "text":
            run.out.write_text("text")
        else:
            run.out.mkdir()
        before = run.out.stat()
        with pytest.raises(ValueError, match=r"exists and is not a result .*: give another --out"):
            run.predict(overwrite=overwrite)
        after = run.out.stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    @pytest.mark.parametrize("name", ["folder", "config", "checkpoint", "labels"])
    def test_the_command_refuses_its_inputs_as_out(
        self, name, overwrite, models, refusal, tmp_path
    ):
        config, checkpoint = models["seg"]
        folder = tmp_path / "rasters"
        folder.mkdir()
        raster = RasterRun(folder, "map.tif").raster
        labels = write_shapes(tmp_path / "labels.gpkg", AREA)
        out = dict(folder=folder, config=config, checkpoint=checkpoint, labels=labels)[name]
        options = ["--labels", labels, *(["--overwrite"] if overwrite else [])]
        line = refusal("raster", folder, config, checkpoint, "--out", out, *options)
        assert f"--out {out} is the input {out}: give another --out" in line
        assert raster.exists() and labels.exists()


class TestResults:
    def test_a_result_is_kept_and_overwritten_on_request(self, run):
        assert run.predict() == TILES
        before = run.out.stat().st_mtime_ns
        assert run.predict() == 0 and run.out.stat().st_mtime_ns == before
        assert run.predict(overwrite=True) == TILES
        assert run.out.stat().st_mtime_ns > before
        run.assert_equals_an_undisturbed_run()

    @pytest.mark.parametrize(
        ("change", "name"), [("model", "weights"), ("option", "tile"), ("raster", "content")]
    )
    def test_a_result_of_something_else_is_not_kept(self, change, name, run, monkeypatch):
        monkeypatch.setattr(run.model, "settings", dict(weights="1"))
        run.predict()
        before = run.out.read_bytes()
        options = dict(tile=128) if change == "option" else {}
        if change == "model":
            monkeypatch.setattr(run.model, "settings", dict(weights="2"))
        elif change == "raster":
            with rasterio.open(run.raster, "r+") as file:
                file.write(file.read(1) + 1, 1)
        with pytest.raises(ValueError, match=rf"results of another run: {name} was .*--overwrite"):
            run.predict(**options)
        assert run.out.read_bytes() == before
        assert run.predict(**options, overwrite=True)

    def test_a_layer_that_was_added_to_a_table_is_not_overwritten(self, table):
        table.predict()
        corrected = geopandas.read_file(table.out, layer="objects")
        corrected.to_file(table.out, layer="corrected")
        assert table.predict() == 0  # kept
        with pytest.raises(ValueError, match="is not a result of such a run: give another --out"):
            table.predict(overwrite=True)
        assert len(geopandas.read_file(table.out, layer="corrected")) == len(corrected)

    def test_a_file_among_the_rows_stays(self, table):
        table.interrupt()
        notes = table.rows[0].with_name("notes.txt")
        notes.write_text("text")
        table.predict(overwrite=True)
        assert notes.read_text() == "text" and len(list(notes.parent.iterdir())) == 1


@pytest.mark.parametrize("name", ["missed", "-12_34", "[x]", "gpkg_x", "matched"])
def test_a_table_of_any_name_is_written_and_scored_again(name, few, tmp_path):
    """A GeoPackage has names that no layer may have, and the score adds layers."""
    raster = save_image(tmp_path / "a.tif", few.image)
    out = predict_raster(raster, PerfectDetector(), tmp_path / f"{name}.gpkg", tile=128)
    labels = tmp_path / "labels.geojson"
    geopandas.read_file(out)[["class", "geometry"]].to_file(labels)
    scores = [score_raster(out, labels).loc["all"] for _ in range(2)]
    assert [score["matched"] for score in scores] == [5, 5]


def test_options_of_other_spelling_are_the_same(table, tmp_path):
    shapes = [shapely.box(0, 0, 150, 300), shapely.box(90, 90, 300, 300)]
    areas = [
        write_shapes(tmp_path / f"{name}.gpkg", shapes[::order], "EPSG:32633")
        for name, order in (("area", 1), ("reversed", -1))
    ]
    table.predict(crs="EPSG:4326", nodata=float("nan"), bands=[1, 2, 3], aoi=areas[0])
    options = dict(crs="epsg:4326", nodata=float("nan"), bands=(1, 2, 3), aoi=areas[1])
    assert table.predict(**options) == 0


def test_a_result_of_a_raster_whose_system_changed_is_not_kept(tmp_path):
    """GDAL stores the system of a PNG beside the file, where a GIS writes statistics too."""
    run = RasterRun(tmp_path, "objects.gpkg")
    run.raster = Path(shutil.copy(run.raster, tmp_path / "scene.png"))
    copy(tmp_path / "scene.tif", run.raster, driver="PNG")
    run.predict()
    description = tmp_path / "scene.png.aux.xml"
    text = description.read_text()
    systems = [CRS.from_epsg(number).to_wkt() for number in (32633, 32632)]
    description.write_text(text.replace("</PAMDataset>", "<Metadata /></PAMDataset>"))
    assert run.predict() == 0
    assert systems[0] in text
    description.write_text(text.replace(*systems))
    with pytest.raises(ValueError, match="crs was EPSG:32633, is EPSG:32632"):
        run.predict()


def test_maps_of_other_runs_in_a_folder_are_no_rasters(tmp_path, capsys):
    run = RasterRun(tmp_path, "map.tif")
    run.predict()
    assert list_rasters(run.raster.parent) == [run.raster]
    shutil.copy(run.out, run.raster.with_name("copied.tif"))
    assert list_rasters(run.raster.parent) == [run.raster]
    run.raster.with_name("scene.png").write_text("text")
    lines = capsys.readouterr().err
    assert "left out 1 maps of other runs: " in lines
    assert "left out 1 entries of " in lines and "that are not rasters: results" in lines
