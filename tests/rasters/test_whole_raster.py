"""A raster that the trunk sees whole has the prediction of the photo of its pixels."""

from functools import partial

import geopandas
import numpy as np
import pytest
import shapely
from helpers.raster_files import UTM, noise, read_map, save, save_image, write_shapes
from helpers.small_models import build, mask_rcnn, semantic_fpn, synthetic_photo

from xcit_mm import Predictor, predict_raster
from xcit_mm.models import large
from xcit_mm.prediction import whole as whole_module
from xcit_mm.rasters.raster import Raster


@pytest.fixture(autouse=True)
def small_memory(monkeypatch):
    """Bands of 8 rows of tokens, and taps in files."""
    monkeypatch.setattr(large, "CPU_TOKENS", 1)
    monkeypatch.setattr(whole_module, "MEMORY", 0)


def predictors(recipe, scale: float = 1) -> tuple[Predictor, Predictor]:
    """Of rasters, and of whole photos, in windows of 128 pixels."""
    cfg = recipe()
    if recipe is mask_rcnn:
        cfg.model.test_cfg.rcnn.max_per_img = 10
    cfg.large = dict(scale=scale)
    model = build(cfg)
    return Predictor(model, cfg), Predictor(model, cfg, whole=True, window=128)


def test_a_map_is_that_of_the_photo_also_in_an_area_and_beside_a_collar(tmp_path):
    photo = synthetic_photo(400, 410).clip(1)
    photo[:, :100] = 0
    of_raster, of_photo = predictors(semantic_fpn)
    raster = save_image(tmp_path / "a.tif", photo, nodata=0)
    aoi = write_shapes(tmp_path / "aoi.gpkg", [shapely.box(0, 0, 250, 330)])
    out = tmp_path / "map.tif"
    predict_raster(of_raster, raster, out, aoi=aoi, window=128, whole=True)
    expected = of_photo(photo, photo.any(axis=2)).segmentation
    expected[:, :100] = 255
    expected[330:] = 255
    expected[:, 250:] = 255
    assert np.array_equal(read_map(out), expected) and len(np.unique(expected)) > 2
    assert sorted(tmp_path.glob("map.tif*")) == [out, tmp_path / "map.tif.aux.xml"]


@pytest.mark.parametrize(("scale", "tolerance"), [(1, 1e-6), (1.5, 0.2)])
def test_objects_are_those_of_the_photo(scale, tolerance, tmp_path):
    """GDAL resamples the raster, OpenCV the photo."""
    photo = synthetic_photo(200, 300)
    of_raster, of_photo = predictors(mask_rcnn, scale)
    raster = save_image(tmp_path / "a.tif", photo, crs=None, transform=None)
    out = predict_raster(of_raster, raster, tmp_path / "a.gpkg", window=128, whole=True)
    table = geopandas.read_file(out)
    masks = of_photo(photo).masks
    assert len(table) == pytest.approx(masks.any(axis=(1, 2)).sum(), rel=tolerance)
    assert table.geometry.area.sum() == pytest.approx(masks.sum(), rel=tolerance)


@pytest.mark.parametrize(("height", "width"), [(250, 333), (75, 100)])
def test_a_resampled_raster_is_the_same_by_bands(height, width, tmp_path):
    bands = noise(3, 150, 200)
    bands[:, :40, :50] = 0
    raster = Raster(save(tmp_path / "a.tif", bands, nodata=0, **UTM)).resampled(height, width)
    everything = slice(0, width)
    image, valid = raster.read(slice(0, height), everything)
    assert not valid[: height // 4, : width // 4].any()
    assert valid.mean() == pytest.approx(1 - 40 * 50 / 150 / 200, abs=0.01)
    starts = range(0, height, 32)
    parts = [raster.read(slice(top, min(top + 32, height)), everything) for top in starts]
    images, masks = map(np.concatenate, zip(*parts, strict=True))
    np.testing.assert_allclose(images.astype(int), image, atol=1)
    assert np.array_equal(masks, valid)


@pytest.mark.parametrize("scratch", [None, "local"])
@pytest.mark.parametrize("stop_after", [2, 4])  # passes: with and without a finished tap
def test_a_stopped_raster_goes_on_after_its_last_finished_tap(
    stop_after, scratch, tmp_path, monkeypatch, capsys
):
    predictor, _ = predictors(semantic_fpn)
    raster = save_image(tmp_path / "a.tif", synthetic_photo(300, 200))
    # Whole is a segmentor's default.
    run = partial(predict_raster, predictor, raster, window=128)
    expected = read_map(run(tmp_path / "expected.tif"))
    assert "seen at scale 1, in windows of 128 pixels\n" in capsys.readouterr().err
    if scratch:
        run = partial(run, scratch=tmp_path / scratch)
    run_block = large._Image.run_block
    blocks = []

    def stopping(image, number, *stores) -> None:
        blocks.append(number)
        if len(blocks) == stop_after:
            raise KeyboardInterrupt
        run_block(image, number, *stores)

    monkeypatch.setattr(large._Image, "run_block", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "map.tif")
    folder = tmp_path / (scratch or "map.tif.parts")
    taps = {path.name for path in folder.rglob("tap[0-9]*")}
    assert {f"tap{number}" for number in range(stop_after - 1)} <= taps
    with pytest.raises(ValueError, match="another run: window was 128"):
        run(tmp_path / "map.tif", window=256)
    assert np.array_equal(read_map(run(tmp_path / "map.tif")), expected)
    assert blocks[stop_after:] == list(range(stop_after - 1, 4))
    assert not (tmp_path / "map.tif.parts").exists() and not [*tmp_path.glob("local/*")]


def test_an_undeclared_nodata_value_is_not_mixed_with_data(tmp_path):
    predictor, _ = predictors(semantic_fpn, scale=0.5)
    raster = save_image(tmp_path / "a.tif", synthetic_photo(200, 200))
    line = r"does not declare nodata=9, and is resized: declare it by `gdal_translate -of"
    with pytest.raises(ValueError, match=line):
        predict_raster(predictor, raster, tmp_path / "map.tif", nodata=9)


def test_the_border_of_an_area_is_that_of_the_raster_at_any_scale(tmp_path, capsys):
    """By default, an area is predicted in tiles."""
    predictor, _ = predictors(semantic_fpn, scale=0.3)
    raster = save_image(tmp_path / "a.tif", synthetic_photo(120, 120))
    aoi = write_shapes(tmp_path / "aoi.gpkg", [shapely.box(3, 5, 100, 101)])
    for whole in (True, None):
        labels = read_map(
            predict_raster(predictor, raster, tmp_path / f"{whole}.tif", aoi=aoi, whole=whole)
        )
        has_class = labels != 255
        assert has_class[5:101, 3:100].all() and has_class.sum() == 96 * 97
        assert f"in {'windows' if whole else 'tiles'} of" in capsys.readouterr().err


def test_a_raster_of_other_pixels_than_the_training_is_named(tmp_path, capsys):
    """Pixels of 0.5 metres, and a training of 0.25 metres that saw half of its pixels."""
    predictor, _ = predictors(semantic_fpn)
    predictor.cfg.large = dict(scale=0.5, pixel_size=0.25)
    raster = save_image(tmp_path / "a.tif", synthetic_photo(200, 200))
    line = "has pixels of 0.5 m, the training of 0.25 m: scale 1 shows it at the same size"
    for scale, is_named in ((None, True), (1.2, False), (0.75, True)):
        predict_raster(predictor, raster, tmp_path / f"{scale}.tif", scale=scale)
        assert (line in capsys.readouterr().err) == is_named


def test_the_command_takes_whole(models, shapes, call, tmp_path):
    photo = shapes / "images" / "validation" / "00000.jpg"
    out = tmp_path / "map.tif"
    config, checkpoint = models["seg"]
    options = "--window", 128, "--whole", "--scratch", tmp_path / "scratch"
    code, _, errors = call(
        "raster", config, photo, "--checkpoint", checkpoint, "--out", out, *options
    )
    assert code == 0 and "in windows of 128 pixels" in errors
    assert read_map(out).shape == (96, 96) and not [*tmp_path.glob("scratch/*")]
