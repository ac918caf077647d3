"""tools/infer.py on georeferenced rasters: results equal those of tiling in memory."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from batch_runs import map_in, result_files, save_raster
from perfect_detector import NO_FAULTS, Scene, judge, replace_network

from xcit_mm.batch import rasters, run
from xcit_mm.batch.run import open_run
from xcit_mm.prediction.predictor import Predictor
from xcit_mm.utils.configs import image_side, read_config

TILES = ("--tile", "96", "--overlap", "24")
rasterio = pytest.importorskip("rasterio")
TRANSFORM = rasterio.Affine(0.5, 0, 400_000, 0, -0.5, 5_600_000)


def write(path: Path, image: np.ndarray, **profile: object) -> Path:
    """Write an image (h, w, 3), BGR, as a GeoTIFF."""
    return save_raster(path, image[..., ::-1], **(dict(crs="EPSG:32633", transform=TRANSFORM) | profile))


@pytest.fixture
def image(shapes) -> np.ndarray:
    """(260, 200, 3)"""
    paths = sorted((shapes / "images" / "validation").iterdir())
    numbers = (0, 1, 2), (3, 2, 1), (1, 0, 3)
    return np.vstack([np.hstack([cv2.imread(str(paths[number])) for number in row]) for row in numbers])[:260, :200]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(run, "TILES_PER_SHARD", 1)  # one row of tiles per shard


def test_a_map_equals_that_of_tiling_in_memory(image, models, call, tmp_path):
    path = write(tmp_path / "raster.tif", image)
    assert call("infer", path, *models["seg"], "--out", tmp_path / "out", *TILES)[0] == 0
    expected = Predictor(*models["seg"], tile=96, overlap=24)(path).segmentation
    assert len(np.unique(expected)) > 2
    with rasterio.open(tmp_path / "out" / "labels" / "raster.tif") as found:
        assert np.array_equal(found.read(1), expected)
        assert found.crs.to_epsg() == 32633 and found.transform == TRANSFORM and found.nodata == 255
        assert found.colormap(1)[1][:3] == (230, 60, 50)  # the circles'
    assert len(list((tmp_path / "out" / "shards").glob("shard-*"))) == 4
    assert json.loads((tmp_path / "out" / "images.json").read_text())["images"] == [
        dict(id=1, file_name="raster.tif", height=260, width=200)
    ]


@pytest.mark.parametrize("profile", [dict(), dict(crs=None, transform=None), dict(nodata=0, photometric="rgb")])
def test_python_reads_a_path_of_16_bits_as_the_command(profile, image, models, call, tmp_path):
    dark = (image.astype(np.uint16) + 300) * 4  # OpenCV would keep the upper 8 bits, which are 4 to 8
    dark[:20, :20] = 0
    path = write(tmp_path / "raster.tif", dark, **profile)
    assert call("infer", path, *models["seg"], "--out", tmp_path / "out", *TILES)[0] == 0
    found = Predictor(*models["seg"], tile=96, overlap=24)(path)
    labels = map_in(tmp_path / "out")
    valid = labels != 255
    assert np.array_equal(found.segmentation[valid], labels[valid]) and len(np.unique(labels[valid])) > 2
    assert found.image.dtype == np.uint8 and np.ptp(found.image) == 255 and valid.mean() > 0.99


def test_the_map_of_a_segmentor_of_one_class_has_a_background(image, binary, call, tmp_path):
    path = write(tmp_path / "raster.tif", image)
    assert call("infer", path, *binary[1], "--out", tmp_path / "out", *TILES)[0] == 0
    with rasterio.open(tmp_path / "out" / "labels" / "raster.tif") as found:
        assert np.unique(found.read(1)).tolist() == [0, 1]
        assert json.loads(found.tags()["CLASSES"]) == ["background", "shape"]
        assert [found.colormap(1)[label][:3] for label in (0, 1)] == [(0, 0, 0), (230, 60, 50)]


def test_instances_equal_those_of_tiling_in_memory(image, models, call, tmp_path):
    path = write(tmp_path / "raster.tif", image)
    assert call("infer", path, *models["det"], "--out", tmp_path / "out", *TILES)[0] == 0
    expected = Predictor(*models["det"], tile=96, overlap=24)(path).instances
    found = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert [one["score"] for one in found] == expected.scores.tolist() != []
    left, top, width, height = np.array([one["bbox"] for one in found]).T
    assert np.array_equal(np.stack([left, top, left + width, top + height], 1), expected.boxes)
    assert [one["segmentation"]["counts"].encode() for one in found] == [one["counts"] for one in expected.masks]
    polygons = json.loads((tmp_path / "out" / "instances" / "raster.geojson").read_text())
    assert polygons["crs"]["properties"]["name"].endswith("EPSG::32633")
    assert [one["properties"]["score"] for one in polygons["features"]] == expected.scores.tolist()
    corners = np.array([np.ravel(one["geometry"]["coordinates"][0][0]).ravel()[:2] for one in polygons["features"][:1]])
    assert (np.abs(corners - [400_050, 5_599_935]) <= [50, 65]).all()  # within the raster of 100 x 130 m


def test_each_object_is_found_once_and_whole(models, call, tmp_path, monkeypatch):
    replace_network(monkeypatch)
    scene = Scene(400, 500).add_random(12, 60, 160).add_random(150, 8, 40)
    path, out = write(tmp_path / "raster.tif", scene.image), tmp_path / "out"
    assert call("infer", path, *models["det"], "--out", out, *TILES)[0] == 0
    found = json.loads((out / "predictions.json").read_text())
    codes, cut = [one["segmentation"]["counts"] for one in found], [one["cut"] for one in found]
    assert judge(scene, codes, [one["category_id"] - 1 for one in found], cut) == NO_FAULTS
    polygons = json.loads((out / "instances" / "raster.geojson").read_text())["features"]
    assert [one["properties"]["cut"] for one in polygons] == cut and sum(cut) < 15


def test_a_raster_without_objects_does_not_fail_the_others(models, call, tmp_path, monkeypatch):
    replace_network(monkeypatch)
    image = Scene(150, 150).add_random(9, 10, 20).image
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "bare.tif", 0 * image)
    write(tmp_path / "in" / "no-data.tif", 0 * image, nodata=0)
    write(tmp_path / "in" / "objects.tif", image)
    for _ in range(2):
        assert call("infer", tmp_path / "in", *models["det"], "--out", tmp_path / "out", *TILES)[0] == 0
    found = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert {one["image_id"] for one in found} == {3} and len(found) == 9
    for name, count in (("bare", 0), ("no-data", 0), ("objects", 9)):
        polygons = json.loads((tmp_path / "out" / "instances" / f"{name}.geojson").read_text())
        assert len(polygons["features"]) == count


def test_resume_after_lost_shards_is_bit_identical(image, models, call, tmp_path):
    path, out = write(tmp_path / "raster.tif", image), tmp_path / "out"
    arguments = ("infer", path, *models["seg"], "--out", out, *TILES)
    assert call(*arguments)[0] == 0
    whole = (out / "labels" / "raster.tif").read_bytes()
    for shard in (1, 2):  # begins in the middle, and depends on the tiles above
        (out / "shards" / f"shard-00000{shard}.jsonl.gz").unlink()
        (out / "shards" / f"rows-00000{shard}.tif").unlink()
    assert open_run(out).pending() == [1, 2]
    assert call(*arguments)[0] == 0
    assert (out / "labels" / "raster.tif").read_bytes() == whole


def test_a_resumed_run_merges_only_rasters_with_newer_shards(image, models, call, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    for name in "ab":
        write(tmp_path / "in" / f"{name}.tif", image[:90, :90])
    arguments = ("infer", tmp_path / "in", *models["seg"], "--out", tmp_path / "out", *TILES)
    assert call(*arguments)[0] == 0
    first, merged = result_files(tmp_path / "out"), []
    original = rasters.join_maps
    monkeypatch.setattr(rasters, "join_maps", lambda *values: merged.append(values) or original(*values))
    assert call(*arguments)[0] == 0 and not merged
    (tmp_path / "out" / "shards" / "shard-000001.jsonl.gz").unlink()
    assert call(*arguments)[0] == 0 and len(merged) == 1
    stored = tmp_path / "out" / "shards" / "merged-000000.jsonl.gz"
    stored.write_bytes(stored.read_bytes()[:-9])
    assert call(*arguments)[0] == 0 and len(merged) == 2
    assert result_files(tmp_path / "out") == first


@pytest.mark.parametrize("kind", ["seg", "det"])
def test_tiles_without_data_are_not_predicted(kind, image, models, call, tmp_path, before_forward):
    image = np.maximum(image, 1)
    image[100:, :] = 0
    path = write(tmp_path / "raster.tif", image, nodata=0)
    tiles = []
    before_forward(tiles.extend)
    assert call("infer", path, *models[kind], "--out", tmp_path / "out", *TILES)[0] == 0
    assert len(tiles) == 6  # of 12: the rows of tiles at 0 and 55, not those at 109 and 164
    if kind == "seg":
        labels = map_in(tmp_path / "out")
        assert (labels[100:] == 255).all() and (labels[:100] < 5).all()


def test_a_small_raster_is_padded_to_a_tile(image, models, call, tmp_path):
    """The pipeline would enlarge it, and the model would see a larger scale than in other rasters."""
    path = write(tmp_path / "raster.tif", image[:90, :60].astype(np.uint16) * 256)
    padded = np.pad(image[:90, :60], [(0, 70), (0, 100), (0, 0)])
    config = tmp_path / "resizing.py"
    config.write_text(
        f"_base_ = {models['seg'][0]!r}\nload, pack = dict(type='LoadImageFromFile'), dict(type='PackSegInputs')\n"
        "resize = dict(type='Resize', scale=(160, 160), keep_ratio=True)\n"
        "test_dataloader = dict(dataset=dict(pipeline=[load, resize, pack]))\n"
    )
    pairs = dict(seg=(str(config), models["seg"][1]), det=models["det"])
    for kind in ("seg", "det"):
        assert call("infer", path, *pairs[kind], "--out", tmp_path / kind, "--bounds", "0", "65280")[0] == 0
    expected = Predictor(*pairs["seg"])(padded).segmentation
    assert np.array_equal(map_in(tmp_path / "seg"), expected[:90, :60])
    found = json.loads((tmp_path / "det" / "predictions.json").read_text())
    expected = Predictor(*models["det"])(padded).instances
    is_inside = (expected.boxes[:, 0] < 60) & (expected.boxes[:, 1] < 90)
    assert 0 < len(found) <= is_inside.sum() and {one["score"] for one in found} <= set(expected.scores.tolist())
    for one in found:
        left, top, width, height = one["bbox"]
        assert left + width <= 60 and top + height <= 90 and one["segmentation"]["size"] == [90, 60]


def test_a_damaged_raster_does_not_fail_the_others(image, models, call, tmp_path):
    (tmp_path / "in").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3)).astype(np.uint8)
    broken = write(tmp_path / "in" / "broken.tif", noise, tiled=True, blockxsize=64, blockysize=64, compress="deflate")
    write(tmp_path / "in" / "whole.tif", image)
    content = broken.read_bytes()
    middle = len(content) // 2
    broken.write_bytes(content[:middle] + bytes(2000) + content[middle + 2000 :])
    code, printed, errors = call("infer", tmp_path / "in", *models["seg"], "--out", tmp_path / "out", *TILES)
    assert code == 3 and "1 of 2 inputs predicted" in printed
    assert f"skipped {broken}: " in errors
    assert [path.name for path in (tmp_path / "out" / "labels").glob("*.tif")] == ["whole.tif"]


def test_errors_before_the_start_are_one_line(image, models, refusal, tmp_path):
    path = write(tmp_path / "raster.tif", image)
    (tmp_path / "slide.svs").touch()
    for arguments, message in [
        ((path, *models["seg"], "--format", "parquet"), "is a raster, whose results are GeoTIFF or GeoJSON"),
        ((path, *models["seg"], "--bands", "1", "2", "9"), "9"),
        ((path, *models["seg"], "--bounds", "5", "5"), "5"),
        ((tmp_path / "slide.svs", *models["seg"]), "slide.svs is a whole-slide image"),
    ]:
        assert message in refusal("infer", *arguments, "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_tiles_default_to_the_size_of_the_config_s_images(image, models, call, tmp_path):
    path = write(tmp_path / "raster.tif", image)
    for name, tile in (("default", ()), ("given", ("--tile", "160"))):
        assert call("infer", path, *models["seg"], *tile, "--out", tmp_path / name)[0] == 0
    assert [len(open_run(tmp_path / name).shards) for name in ("default", "given")] == [2, 2]
    assert np.array_equal(*(map_in(tmp_path / name) for name in ("default", "given")))


@pytest.mark.parametrize(
    ("config", "side"),
    [
        ("mask_rcnn/mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco", 800),
        ("upernet/upernet_xcit-s12-p16_8xb2-160k_ade20k-512x512", 512),
        ("demo/fpn_xcit-n12-p16_camvid", 256),
    ],
)
def test_the_side_of_a_config_s_images(config, side):
    assert image_side(read_config(f"configs/{config}.py", [])) == side
