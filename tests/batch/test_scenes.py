"""Folders of odd rasters: each fault is a failure of its own, and a resumed run mixes nothing."""

import json
from pathlib import Path

import numpy as np
import pytest
from batch_runs import map_in, result_files, save_raster
from file_server import serve

from xcit_mm.batch import run
from xcit_mm.batch.run import open_run
from xcit_mm.prediction.predictor import Predictor

rasterio = pytest.importorskip("rasterio")
from rasterio.shutil import copy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
UTM = dict(crs="EPSG:32633", transform=rasterio.Affine(0.5, 0, 400_000, 0, -0.5, 5_600_000))
DOUBLE = rasterio.Affine.scale(2)
TILES = ("--tile", "96", "--overlap", "24")
NOISE = np.random.default_rng(0).integers(1, 4096, (150, 130, 3)).astype(np.uint16)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(run, "TILES_PER_SHARD", 1)  # one row of tiles per shard


def lose_shards(out: Path, *shards: int) -> None:
    """Remove shards of a segmentor, as if the run had been killed before them."""
    for shard in shards:
        (out / "shards" / f"shard-00000{shard}.jsonl.gz").unlink()
        (out / "shards" / f"rows-00000{shard}.tif").unlink()


def test_odd_rasters_in_a_folder_are_failures_of_their_own(models, call, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    save_raster(folder / "good.tif", NOISE, **UTM)
    damaged = save_raster(folder / "damaged.tif", NOISE, tiled=True, blockxsize=16, blockysize=16, **UTM)
    damaged.write_bytes(damaged.read_bytes()[:20000])
    save_raster(folder / "empty.tif", 0 * NOISE, nodata=0, **UTM)
    save_raster(folder / "one-band-empty.tif", NOISE * np.array([1, 1, 0], np.uint16), nodata=0, **UTM)
    save_raster(folder / "five-bands.tif", NOISE[..., [0, 1, 2, 0, 1]], **UTM)
    copy(folder / "good.tif", folder / "lost.vrt", driver="VRT")
    (folder / "lost.vrt").write_text((folder / "lost.vrt").read_text().replace("good.tif", "gone.tif"))
    (folder / "text.img").write_text("not a raster")
    for attempt in ((), ("--retry-failed",)):
        code, printed, errors = call("infer", folder, *models["seg"], "--out", tmp_path / "out", *TILES, *attempt)
        assert code == 3 and "1 of 7 inputs predicted" in printed
        for name, reason in [
            ("damaged.tif", "cannot be read"),
            ("empty.tif", "no valid pixel to scale by: give --bounds"),
            ("one-band-empty.tif", "its band 3 has no valid pixel"),
            ("five-bands.tif", "has 5 bands"),
            ("lost.vrt", "gone.tif"),
            ("text.img", "cannot be read"),
        ]:
            (line,) = [line for line in errors.splitlines() if f"skipped {folder / name}: " in line]
            assert reason in line
    assert [path.name for path in (tmp_path / "out" / "labels").glob("*.tif")] == ["good.tif"]


def test_options_that_are_invalid_for_every_raster_raise_before_the_start(models, refusal, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "photo.png").write_bytes(b"broken")
    save_raster(tmp_path / "in" / "good.tif", NOISE, **UTM)
    for options in (("--bounds", "5", "5"), ("--bounds", "5", "6", "7", "8")):
        message = refusal("infer", tmp_path / "in", *models["seg"], "--out", tmp_path / "out", *options)
        assert "--bounds" in message and not (tmp_path / "out").exists()


@pytest.mark.parametrize("external", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_run_resumes_after_pyramids_were_built(external, models, call, tmp_path, monkeypatch):
    """Bounds are not estimated again, which would take time and give those of the overview."""
    image = np.zeros((2100, 2100, 3), np.uint16)
    image[:150, :130] = NOISE  # most tiles are empty, and take no time
    path = save_raster(tmp_path / "raster.tif", image, tiled=True, nodata=0, **UTM)
    arguments = ("infer", path, *models["seg"], "--out", tmp_path / "out", *TILES)
    assert call(*arguments)[0] == 0
    bounds, whole = open_run(tmp_path / "out").inputs[0].bounds, result_files(tmp_path / "out")
    lose_shards(tmp_path / "out", 1)
    with rasterio.Env(TIFF_USE_OVR=external), rasterio.open(path, "r+") as file:
        file.build_overviews([2, 4], rasterio.enums.Resampling.average)
    assert (tmp_path / "raster.tif.ovr").exists() == external
    monkeypatch.setattr("xcit_mm.geo.raster.estimate_bounds", None)
    assert call(*arguments)[0] == 0
    assert open_run(tmp_path / "out").inputs[0].bounds == bounds and result_files(tmp_path / "out") == whole


def test_a_raster_that_was_replaced_is_not_mixed_in(models, call, refusal, tmp_path):
    path, out = save_raster(tmp_path / "raster.tif", NOISE, **UTM), tmp_path / "out"
    arguments = ("infer", path, *models["seg"], "--out", out, *TILES, "--bounds", 0, 4096)
    assert call(*arguments)[0] == 0
    before = (out / "labels" / "raster.tif").read_bytes()
    lose_shards(out, 1)
    save_raster(path, 4096 - NOISE, **UTM)
    message = "raster.tif has changed since the run began: give another --out, or --overwrite to start again"
    assert message in refusal(*arguments)
    with rasterio.open(path, "r+") as file:  # of another raster
        file.build_overviews([2])
    assert message in refusal(*arguments)
    assert call(*arguments, "--overwrite")[0] == 0
    assert (out / "labels" / "raster.tif").read_bytes() != before


@pytest.mark.parametrize("prefix", ["", pytest.param("/vsicurl/", marks=pytest.mark.slow)])
def test_a_remote_raster_keeps_place_and_bounds(prefix, models, call, tmp_path):
    (tmp_path / "in").mkdir()
    path = save_raster(tmp_path / "in" / "raster.tif", NOISE[:96, :96], tiled=True, **UTM)
    with serve(tmp_path) as server:
        for name, source in dict(local=path, remote=f"{prefix}{server.url}/in/raster.tif").items():
            out = tmp_path / name
            assert call("infer", source, *models["seg"], "--out", out, "--bounds", 0, 4096)[0] == 0
    (remote,) = (tmp_path / "remote" / "labels").rglob("*.tif")
    with rasterio.open(remote) as found:
        assert found.transform == UTM["transform"] and found.crs.to_epsg() == 32633
        assert np.array_equal(found.read(1), map_in(tmp_path / "local"))


def test_lost_and_damaged_rows_of_a_map_are_predicted_again(models, call, tmp_path):
    path, out = save_raster(tmp_path / "raster.tif", NOISE, **UTM), tmp_path / "out"
    arguments = ("infer", path, *models["seg"], "--out", out, *TILES)
    assert call(*arguments)[0] == 0
    whole = result_files(out)
    rows = sorted((out / "shards").glob("rows-*"))
    (out / "labels" / "raster.tif").unlink()
    rows[0].unlink()
    rows[1].write_bytes(rows[1].read_bytes()[:300])
    left = [out / "shards" / ".0123abcd-rows-000001.tif", out / "labels" / ".0123abcd-raster.tif"]  # by kill -9
    for unfinished in left:
        unfinished.touch()
    code, _, errors = call(*arguments)
    assert code == 0 and errors.count("predicting it again") == 2
    assert result_files(out) == whole and not any(unfinished.exists() for unfinished in left)


def test_without_a_size_in_the_config_large_rasters_need_tiles(models, call, refusal, tmp_path):
    config = tmp_path / "unsized.py"
    config.write_text(
        f"_base_ = {models['seg'][0]!r}\nload, pack = dict(type='LoadImageFromFile'), dict(type='PackSegInputs')\n"
        "model = dict(data_preprocessor=dict(size=None))\n"
        "test_dataloader = dict(dataset=dict(pipeline=[load, pack]))\n"
    )
    path = save_raster(tmp_path / "raster.tif", np.zeros((96, 1100, 3), np.uint8), nodata=0, **UTM)
    arguments = ("infer", path, config, models["seg"][1], "--out", tmp_path / "out")
    assert "raster.tif would be one tile of 96 x 1100 pixels, because the config does not state" in refusal(*arguments)
    assert call(*arguments, *TILES)[0] == 0


@pytest.fixture
def area(tmp_path) -> Path:
    """A GeoJSON of 100 rows and 60 columns of pixels, the upper left."""
    corners = [[400_000, 5_600_000], [400_030, 5_600_000], [400_030, 5_599_950], [400_000, 5_599_950]]
    square = dict(type="Polygon", coordinates=[[*corners, corners[0]]])
    path = tmp_path / "area.geojson"
    crs = dict(type="name", properties=dict(name="urn:ogc:def:crs:EPSG::32633"))
    path.write_text(json.dumps(square | dict(crs=crs)))
    return path


def test_a_segmentor_at_another_ground_resolution_within_an_area(area, models, call, refusal, before_forward, tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (300, 260, 3)).astype(np.uint8)
    path = save_raster(tmp_path / "raster.tif", image, **UTM)
    config = tmp_path / "ground.py"
    config.write_text(f"_base_ = {models['seg'][0]!r}\ngsd = 1.0")
    for out, arguments in dict(option=(*models["seg"], "--gsd", 1), config=(config, models["seg"][1])).items():
        tiles: list = []
        before_forward(tiles.extend)
        assert call("infer", path, *arguments, "--out", tmp_path / out, "--aoi", area, *TILES)[0] == 0
        assert len(tiles) == 1  # of 4
    maps = [map_in(tmp_path / out) for out in ("option", "config")]
    assert maps[0].shape == (150, 130) and np.array_equal(*maps)
    assert Predictor(str(config), models["seg"][1]).preprocess.read(path).shape == (150, 130, 3)
    assert (maps[0][:50, :30] != 255).all() and (maps[0] != 255).sum() == 50 * 30
    with rasterio.open(tmp_path / "option" / "labels" / "raster.tif") as found:
        assert found.transform == UTM["transform"] @ DOUBLE
    area.write_text(area.read_text().replace("400030", "400031"))
    message = refusal("infer", path, *models["seg"], "--gsd", 1, "--out", tmp_path / "option", "--aoi", area, *TILES)
    assert "its aoi was " in message and len(message) < 1000


def test_a_detector_reports_the_objects_of_an_area_in_another_coordinate_system(area, models, call, refusal, tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (200, 260, 3)).astype(np.uint8)
    path = save_raster(tmp_path / "raster.tif", image, **UTM)
    for name, options in dict(whole=(), part=("--aoi", area, "--crs", "EPSG:4326")).items():
        assert call("infer", path, *models["det"], "--out", tmp_path / name, *TILES, *options)[0] == 0
    whole, part = (
        json.loads((tmp_path / name / "instances" / "raster.geojson").read_text()) for name in ("whole", "part")
    )
    boxes = [one["bbox"] for one in json.loads((tmp_path / "part" / "predictions.json").read_text())]
    assert 0 < len(boxes) == len(part["features"]) < len(whole["features"])
    assert all(left + width / 2 <= 61 and top + height / 2 <= 101 for left, top, width, height in boxes)
    assert "crs" not in part and "crs" in whole
    longitude, latitude = np.ravel(part["features"][0]["geometry"]["coordinates"][0])[:2]
    assert 13.5 < longitude < 13.7 and 50.5 < latitude < 50.6
    assert all(one["properties"]["area"] > 0 for one in part["features"])
    assert "--crs EPSG:4326: of polygons" in refusal(
        "infer", path, *models["seg"], "--out", tmp_path / "out", "--crs", "EPSG:4326"
    )
