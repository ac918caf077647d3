"""Runs over a raster that are killed, shared, changed, or run into a full disk: nothing of the
user's is replaced, and the result is that of an undisturbed run.
"""

import copy
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

rasterio = pytest.importorskip("rasterio")
geopandas = pytest.importorskip("geopandas")
import shapely  # noqa: E402
from helpers.perfect_detector import PerfectDetector, Scene, detect  # noqa: E402
from helpers.pixel_segmentor import PixelSegmentor  # noqa: E402
from helpers.processes import arrange_death  # noqa: E402
from helpers.raster_files import UTM, save  # noqa: E402

from xcit_mm import Predictor, predict_raster  # noqa: E402
from xcit_mm.prediction import Prediction  # noqa: E402
from xcit_mm.utils.folders import open_folder  # noqa: E402

ROWS, TILES = 7, 42


class Case:
    """A raster, a result of it, and the model."""

    def __init__(self, folder: Path, name: str) -> None:
        scene = Scene(500, 400).add_random(8, 60, 160).add_random(80, 8, 40)
        self.raster = save(folder / "scene.tif", scene.image[..., ::-1].transpose(2, 0, 1), **UTM)
        self.out = folder / "results" / name
        self.out.parent.mkdir(exist_ok=True)
        self.model = PixelSegmentor if self.out.suffix == ".tif" else PerfectDetector

    @property
    def rows(self) -> list[Path]:
        return sorted(self.out.with_name(f"{self.out.name}.parts").glob("row-*"))

    def predict(self, model: Any = None, out: Path | None = None, **options: Any) -> int:
        """Predict the raster, and return the number of tiles that the model saw."""
        model = model or self.model()
        predict_raster(self.raster, model, out or self.out, **dict(tile=96, overlap=24) | options)
        return model.seen

    def die_after(self, tiles: int, die: Callable[[], object], **options: Any) -> None:
        """Predict some tiles, then die."""

        class Dying(self.model):
            def __call__(self, images: list[np.ndarray]) -> list[Prediction]:
                if self.seen >= tiles:
                    die()
                return super().__call__(images)

        self.predict(Dying(), **options)

    def content(self, out: Path) -> object:
        if out.suffix == ".tif":
            with rasterio.open(out) as file:
                description = out.with_name(f"{out.name}.aux.xml").read_bytes()
                return file.read(1).tolist(), file.overviews(1), description
        read = geopandas.read_parquet if out.suffix == ".parquet" else geopandas.read_file
        return read(out).to_json()

    def assert_equals_an_undisturbed_run(self) -> None:
        whole = self.out.with_stem("undisturbed")
        self.predict(out=whole)
        assert self.content(self.out) == self.content(whole)
        names = [self.out.name, whole.name]
        if self.out.suffix == ".tif":
            names += [f"{name}.aux.xml" for name in names]
        assert sorted(path.name for path in self.out.parent.iterdir()) == sorted(names)


@pytest.fixture(params=["map.tif", "objects.gpkg"])
def case(request, tmp_path) -> Case:
    return Case(tmp_path, request.param)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt() -> None:
    raise KeyboardInterrupt


def start(function: Callable[[], object]) -> Any:
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    return process


def exit_code(function: Callable[[], object]) -> int | None:
    process = start(function)
    process.join(60)
    return process.exitcode


class TestKills:
    def test_a_run_killed_several_times_equals_an_undisturbed_run(self, case):
        for tiles in (0, 5, 10, 23):
            assert exit_code(lambda tiles=tiles: case.die_after(tiles, kill)) == -signal.SIGKILL
            assert not case.out.exists()
        assert len(case.rows) > 2
        assert 0 < case.predict() < TILES
        case.assert_equals_an_undisturbed_run()

    # The settings, the rows, then the table, or the description of the map and the map.
    @pytest.mark.parametrize(
        ("name", "count"),
        [("objects.gpkg", ROWS + 2), *(("map.tif", n) for n in (1, 2, ROWS + 2, ROWS + 3))],
    )
    @pytest.mark.parametrize("moment", ["before_replace", "after_replace"])
    def test_a_kill_while_a_file_is_written_leaves_nothing_undone(
        self, moment, name, count, tmp_path
    ):
        case = Case(tmp_path, name)

        def predict() -> None:
            arrange_death(moment, count)
            case.predict()

        assert exit_code(predict) == -signal.SIGKILL
        case.predict()
        case.assert_equals_an_undisturbed_run()


class TestProcesses:
    def test_ranks_share_the_rows_and_the_first_writes_the_result(self, case):
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            port = server.getsockname()[1]

        def predict(rank: int) -> None:
            os.environ |= dict(RANK=str(rank), WORLD_SIZE="2")
            os.environ |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            error = ValueError if rank else RuntimeError
            with pytest.raises(error, match="has no band 9"):
                case.predict(bands=[9] if rank else None)
            assert 0 < case.predict() < TILES

        processes = [start(lambda rank=rank: predict(rank)) for rank in range(2)]
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0]
        case.assert_equals_an_undisturbed_run()

    def test_a_second_run_into_the_same_result_is_an_error(self, case):
        def predict() -> None:
            with pytest.raises(BlockingIOError, match=r"another process writes into .*\.parts"):
                case.predict()

        with open_folder(case.out.with_name(f"{case.out.name}.parts"), {}):
            assert exit_code(predict) == 0
        assert not case.out.exists()


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("tile", dict(tile=128)),
            ("overlap", dict(overlap=30)),
            ("bands", dict(bands=[3, 2, 1])),
            ("bounds", dict(bounds=[0, 100])),
            ("gsd", dict(gsd=1.0)),
            ("nodata", dict(nodata=0)),
            ("aoi", dict(aoi="area.gpkg")),
            ("crs", dict(crs="EPSG:4326")),
        ],
    )
    def test_rows_of_other_options_are_refused_by_name(self, name, options, tmp_path, monkeypatch):
        case = Case(tmp_path, "objects.gpkg")
        monkeypatch.chdir(tmp_path)
        polygons = geopandas.GeoDataFrame(geometry=[shapely.box(5e5, 53e5, 5001e2, 54e5)])
        polygons.set_crs("EPSG:32633").to_file("area.gpkg")
        self.begin(case)
        self.assert_refused(case, name, **options)

    @pytest.mark.parametrize("name", ["config", "weights", "dtype", "min_score", "torch", "mmdet"])
    def test_rows_of_another_model_are_refused_by_name(self, name, detector, tmp_path, monkeypatch):
        case = Case(tmp_path, "objects.gpkg")
        self.begin(case, copy.copy(detector))
        other = copy.copy(detector)
        if name == "config":
            other.cfg = copy.deepcopy(detector.cfg)
            other.cfg.model.test_cfg.rcnn.score_thr = 0.9
        elif name == "weights":
            model = copy.deepcopy(detector.model)
            next(model.parameters()).data += 1
            other = Predictor(model, detector.cfg, batch_size=4)
        elif name == "dtype":
            other.dtype = torch.bfloat16
        elif name == "min_score":
            other.min_score = 0.5
        else:
            monkeypatch.setattr(f"{name}.__version__", "9.9")
        self.assert_refused(case, name, other)

    @pytest.fixture(scope="class")
    def detector(self, models) -> Predictor:
        return Predictor.from_config(*models["det"], batch_size=4)

    def test_rows_of_another_raster_are_refused_by_name(self, tmp_path):
        case = Case(tmp_path, "objects.gpkg")
        self.begin(case)
        os.utime(case.raster, (1, 1))
        self.assert_refused(case, "modified")

    def begin(self, case: Case, model: Any = None) -> None:
        """Interrupt a run in its second row."""
        model = model or case.model()

        class Interrupted(type(model)):
            def __call__(self, images: list[np.ndarray]) -> list[Prediction]:
                if case.rows:
                    raise KeyboardInterrupt
                return list(map(detect, images))  # quicker than a network

        model.__class__ = Interrupted
        with pytest.raises(KeyboardInterrupt):
            case.predict(model)

    def assert_refused(self, case: Case, name: str, model: Any = None, **options: Any) -> None:
        rows = case.rows
        assert rows
        with pytest.raises(ValueError, match=rf"results of another run: {name} was .*, is "):
            case.predict(model, **options)
        assert case.rows == rows
        if model is None:
            case.predict(**options, overwrite=True)
            assert case.out.exists() and not case.rows


def _identity(path: Path) -> tuple[int, int, int]:
    """What changes when a file is replaced or written, but not when it is read."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


class TestFilesOfTheUser:
    """No result replaces a file that such a run has not written."""

    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("is_linked", [False, True])
    def test_a_result_in_place_of_its_raster_is_refused(self, is_linked, overwrite, tmp_path):
        case = Case(tmp_path, "map.tif")
        before = case.raster.read_bytes()
        out = case.raster
        if is_linked:
            out = case.out
            out.symlink_to(case.raster)
        with pytest.raises(ValueError, match=r"--out .* is the input .*: give another --out$"):
            case.predict(out=out, overwrite=overwrite)
        assert case.raster.read_bytes() == before

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_result_in_place_of_its_area_is_refused(self, overwrite, tmp_path):
        case = Case(tmp_path, "area.gpkg")
        polygons = geopandas.GeoDataFrame(geometry=[shapely.box(0, 0, 1, 1)], crs="EPSG:32633")
        polygons.to_file(case.out)
        before = case.out.read_bytes()
        with pytest.raises(ValueError, match=r"--out .* is the input .*: give another --out$"):
            case.predict(aoi=case.out, overwrite=overwrite)
        assert case.out.read_bytes() == before

    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("content", ["raster", "polygons", "text", "folder"])
    def test_a_result_in_place_of_something_else_is_refused(self, content, overwrite, case):
        if content == "raster":
            case.out.write_bytes(case.raster.read_bytes())
        elif content == "polygons":
            shapes = [shapely.box(0, 0, 1, 1)]
            polygons = geopandas.GeoDataFrame(geometry=shapes, crs="EPSG:32633")
            polygons.to_file(case.out, driver="GPKG")
        elif content == "text":
            case.out.write_text("text")
        else:
            case.out.mkdir()
        before = _identity(case.out)
        with pytest.raises(ValueError, match=r"exists and is no result .*: give another --out$"):
            case.predict(overwrite=overwrite)
        assert _identity(case.out) == before

    def test_a_layer_that_was_added_to_a_table_is_not_overwritten(self, tmp_path):
        case = Case(tmp_path, "objects.gpkg")
        case.predict()
        corrected = geopandas.read_file(case.out, layer="objects")
        corrected.to_file(case.out, layer="corrected")
        assert case.predict() == 0  # kept
        with pytest.raises(ValueError, match=r"is no result of such a run: give another --out"):
            case.predict(overwrite=True)
        assert len(geopandas.read_file(case.out, layer="corrected")) == len(corrected)

    def test_a_result_is_kept_and_overwritten_on_request(self, case):
        assert case.predict() == TILES
        before = case.out.stat().st_mtime_ns
        assert case.predict() == 0 and case.out.stat().st_mtime_ns == before
        assert case.predict(overwrite=True) == TILES
        assert case.out.stat().st_mtime_ns > before
        case.assert_equals_an_undisturbed_run()

    def test_a_file_among_the_rows_stays(self, case):
        with pytest.raises(KeyboardInterrupt):
            case.die_after(9, interrupt)
        notes = case.rows[0].with_name("notes.txt")
        notes.write_text("text")
        case.predict(overwrite=True)
        assert notes.read_text() == "text" and len(list(notes.parent.iterdir())) == 1

    @pytest.mark.parametrize("options", [(), ("--overwrite",)])
    @pytest.mark.parametrize("name", ["folder", "config", "checkpoint"])
    def test_the_command_refuses_its_inputs_as_out(self, name, options, models, refusal, tmp_path):
        config, checkpoint = models["seg"]
        folder = tmp_path / "rasters"
        folder.mkdir()
        path = Case(folder, "map.tif").raster
        before = path.read_bytes()
        out = dict(folder=folder, config=config, checkpoint=checkpoint)[name]
        line = refusal("raster", folder, config, checkpoint, "--out", out, *options)
        assert f"--out {out} is the input {out}: give another --out" in line
        assert path.read_bytes() == before


class TestFullDisk:
    """Afterwards, the same call gives the result of an undisturbed run."""

    @pytest.mark.parametrize(
        ("name", "size"),
        [
            ("map.tif", 800),  # bytes: the rows are larger
            ("map.tif", 3000),  # all tiles together are larger
            ("map.tif", 6000),  # the result is larger
            ("t.gpkg", 800),
            ("t.gpkg", 60_000),
            ("t.gpkg", 100_000),
            ("t.geojson", 60_000),
            ("t.parquet", 32_000),
        ],
    )
    def test_a_file_that_cannot_be_written_is_one_line(self, name, size, tmp_path):
        case = Case(tmp_path, name)

        def predict() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            self.fail_in_one_line(case)

        assert exit_code(predict) == 0
        case.predict()
        case.assert_equals_an_undisturbed_run()

    @pytest.mark.parametrize(
        ("name", "size"), [("map.tif", 8), ("map.tif", 80), ("t.gpkg", 80), ("t.gpkg", 300)]
    )
    def test_a_full_disk_is_one_line(self, name, size, disk, tmp_path):
        case = Case(tmp_path, name)
        disk(size)
        assert exit_code(lambda: self.fail_in_one_line(case)) == 0
        disk(10_000)
        case.predict()
        case.assert_equals_an_undisturbed_run()

    def fail_in_one_line(self, case: Case) -> None:
        with pytest.raises(OSError, match=r"^[^\n]*the same command again$"):
            case.predict()
        assert not case.out.exists()

    @pytest.fixture
    def disk(self, tmp_path) -> Iterator[Callable[[int], None]]:
        """Make the folder of results a disk of some kB."""
        folder = tmp_path / "results"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("only root can mount a disk of a given size")

        def resize(size: int) -> None:
            options = f"remount,size={size}k"
            subprocess.run(["mount", "-o", options, str(folder)], check=True)

        yield resize
        subprocess.run(["umount", str(folder)], check=True)
