"""Models whose config loads rasters predict the results of their library's own test pipeline."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from batch_runs import map_in, save_raster
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, TRANSFORMS, init_default_scope

import xcit_mm
from xcit_mm.geo import Raster
from xcit_mm.models.build import model_from_config
from xcit_mm.prediction.predictor import Predictor

rasterio = pytest.importorskip("rasterio")
pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
TILES = ("--tile", "96", "--overlap", "24")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Three rasters of 96 x 96 pixels, of 16 bits and four bands, in rasters/validation."""
    from make_shapes import write_dataset

    root = tmp_path_factory.mktemp("data") / "shapes-4band"
    write_dataset(root, train=1, val=3, size=96, rasters=True)
    return root


@pytest.fixture(scope="module")
def model(data, untrained, tmp_path_factory) -> tuple[str, str]:
    """Config and checkpoint of a segmentor of four bands, whose biases make all classes as likely."""
    folder = tmp_path_factory.mktemp("model")
    config, checkpoint = untrained("fpn_xcit-n12-p16_shapes-4band")
    places = "".join(f"{split}_dataloader = dict(dataset=dict(data_root={str(data)!r}))\n" for split in ("val", "test"))
    (folder / "four.py").write_text(f"_base_ = {str(config)!r}\n{places}")
    logits = Predictor(str(config), str(checkpoint)).predict_sample(load(paths(data)[0])).seg_logits.data
    content = torch.load(checkpoint)
    content["state_dict"]["decode_head.conv_seg.bias"] -= logits.mean(dim=(1, 2))
    torch.save(content, folder / "four.pth")
    return str(folder / "four.py"), str(folder / "four.pth")


def paths(data: Path) -> list[Path]:
    return sorted((data / "rasters" / "validation").iterdir())


def load(path: Path, **options: object) -> np.ndarray:
    """Load a raster as training does."""
    return TRANSFORMS.build(dict(type="LoadRasterFromFile", **options))(dict(img_path=str(path)))["img"]


@pytest.fixture
def raster_file(data, tmp_path) -> Path:
    """(250, 192, 4), with a place on a map"""
    one, two, three = (load(path, to_float32=False) for path in paths(data))
    image = np.vstack([np.hstack([one, two]), np.hstack([three, one]), np.hstack([two, three])])[:250]
    return save_raster(
        tmp_path / "raster.tif", image, crs="EPSG:32633", transform=rasterio.Affine(2, 0, 4e5, 0, -2, 5e6)
    )


def test_maps_equal_those_of_the_test_pipeline(data, model, call, tmp_path):
    cfg = Config.fromfile(model[0])
    tested = model_from_config(cfg, model[1])
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    predict = Predictor(*model).predict_sample
    assert call("infer", data / "rasters" / "validation", *model, "--out", tmp_path / "out")[0] == 0
    for path, item in zip(paths(data), dataset, strict=True):
        (expected,) = tested.test_step(pseudo_collate([item]))
        labels = expected.pred_sem_seg.data[0].numpy()
        assert len(np.unique(labels)) > 2
        for image in (load(path), load(path, to_float32=False)):
            found = predict(image)
            assert torch.equal(found.seg_logits.data, expected.seg_logits.data)
            assert np.array_equal(found.pred_sem_seg.data[0], labels)
        assert np.array_equal(map_in(tmp_path / "out", path.stem), labels)
    assert not (tmp_path / "out" / "visualizations").exists()


def test_a_raster_in_tiles_equals_tiling_in_memory(raster_file, model, call, tmp_path):
    assert call("infer", raster_file, *model, "--out", tmp_path / "out", *TILES, "--batch-size", 2)[0] == 0
    for image in (load(raster_file), raster_file):
        expected = Predictor(*model, tile=96, overlap=24)(image).segmentation
        assert len(np.unique(expected)) > 2
        assert np.array_equal(map_in(tmp_path / "out"), expected)


def test_bands_are_selected_by_option_or_loader(raster_file, model, call, tmp_path):
    turned = save_raster(
        tmp_path / "turned.tif", np.insert(load(raster_file, to_float32=False)[..., ::-1], 2, 7, axis=2)
    )
    config = tmp_path / "turned.py"
    config.write_text(
        f"_base_ = {model[0]!r}\nload = dict(type='LoadRasterFromFile', bands=[5, 4, 2, 1])\n"
        "test_dataloader = dict(dataset=dict(pipeline=[load, {{_base_.normalize}}, dict(type='PackSegInputs')]))\n"
    )
    commands = dict(
        raster=(raster_file, *model), given=(turned, *model, "--bands", 5, 4, 2, 1), loaded=(turned, config, model[1])
    )
    for name, arguments in commands.items():
        assert call("infer", *arguments, "--out", tmp_path / name, *TILES)[0] == 0
    expected = map_in(tmp_path / "raster")
    assert np.array_equal(map_in(tmp_path / "given", "turned"), expected)
    assert np.array_equal(map_in(tmp_path / "loaded", "turned"), expected)


def test_a_png_of_four_channels_is_a_raster(data, model, call, tmp_path):
    """The fourth channel is a band, not opacity, to a model of four bands."""
    image = (load(paths(data)[0], to_float32=False) // 256).astype(np.uint8)
    image[:9, :, 3] = 0
    cv2.imwrite(str(tmp_path / "four.png"), image[..., [2, 1, 0, 3]])
    assert call("infer", tmp_path / "four.png", *model, "--out", tmp_path / "out")[0] == 0
    labels = map_in(tmp_path / "out", "four")
    assert np.array_equal(labels, Predictor(*model)(image).segmentation) and labels.max() < 5


def test_a_detector_of_rasters(raster_file, untrained, tmp_path):
    """Normalised in its pipeline, as mmdet's preprocessor does not."""
    config, _ = untrained("mask-rcnn_xcit-n12-p16_shapes")
    (tmp_path / "four.py").write_text(
        f"_base_ = {str(config)!r}\n"
        "model = dict(data_preprocessor=dict(mean=None, std=None, bgr_to_rgb=False), backbone=dict(in_channels=4),\n"
        "             test_cfg=dict(rcnn=dict(score_thr=0.0, max_per_img=5)))\n"
        "test_dataloader = dict(dataset=dict(pipeline=[\n"
        "    dict(type='LoadRasterFromFile'),\n"
        "    dict(type='Resize', scale=(320, 256), keep_ratio=True),\n"
        "    dict(type='Normalize', mean=[30000.0] * 4, std=[10000.0] * 4, to_rgb=False),\n"
        "    dict(type='PackDetInputs', meta_keys=('img_id', 'img_shape', 'ori_shape', 'scale_factor'))]))\n"
    )
    from demo import save_untrained

    save_untrained(tmp_path / "four.py", tmp_path / "four.pth")
    found = (
        Predictor(str(tmp_path / "four.py"), str(tmp_path / "four.pth"))
        .predict_sample(load(raster_file))
        .pred_instances
    )
    cfg = Config.fromfile(tmp_path / "four.py")
    init_default_scope("mmdet")
    results = dict(img_path=str(raster_file), img_id=1)
    for step in cfg.test_dataloader.dataset.pipeline:
        results = TRANSFORMS.build(step)(results)
    tested = model_from_config(cfg, str(tmp_path / "four.pth"))
    (expected,) = tested.test_step(pseudo_collate([results]))
    assert len(found) == 5 and torch.equal(found.bboxes, expected.pred_instances.bboxes)


def test_errors_before_the_start_are_one_line(raster_file, data, model, refusal, tmp_path):
    five = save_raster(tmp_path / "five.tif", np.zeros((40, 40, 5), np.uint16))
    (tmp_path / "video.mp4").touch()
    (tmp_path / "broken.tif").write_bytes(b"no raster")
    unscaled = "the config loads rasters unscaled (LoadRasterFromFile): leave it out"
    for arguments, message in [
        ((raster_file, *model, "--bounds", "0", "10000"), f"--bounds 0 10000: {unscaled}"),
        ((raster_file, *model, "--percentiles", "2", "98"), f"--percentiles 2 98: {unscaled}"),
        ((raster_file, *model, "--bands", "1", "2", "3"), "--bands 1 2 3: the model takes 4 bands, give as many"),
        ((raster_file, *model, "--bands", "1", "2", "3", "5"), "raster.tif has no band 5, but 4 bands, from 1 on"),
        ((five, *model), "five.tif has 5 bands (1 gray, 2 undefined, 3 undefined, 4 undefined, 5 undefined), but the "),
        ((data / "images" / "validation" / "00000.jpg", *model), "00000.jpg has 3 bands (1 red, 2 green, 3 blue), but"),
        ((tmp_path / "video.mp4", *model), "video.mp4 is a video, but the config loads rasters"),
        (("http://127.0.0.1:9/a.tif", *model), "http://127.0.0.1:9/a.tif cannot be read"),
        ((tmp_path / "broken.tif", *model), "broken.tif cannot be read"),
    ]:
        assert message in refusal("infer", *arguments, "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()
    predict = Predictor(*model)
    for image in (np.zeros((64, 64, 3)), np.zeros((64, 64))):
        with pytest.raises(ValueError, match=r"^image of shape \(64, 64.*: the config loads 4 bands, give") as error:
            predict(image)
        assert "\n" not in str(error.value)


class TestRaster:
    """Raw windows of a raster equal what LoadRasterFromFile loads."""

    @pytest.mark.parametrize("bands", [None, [2], [3, 1], [4, 3, 2, 1, 4]])
    @pytest.mark.parametrize("dtype", ["uint8", "int16", "float64"])
    def test_values_of_selected_bands(self, bands, dtype, tmp_path):
        values = np.random.default_rng(0).integers(1, 120, (30, 20, 4)).astype(dtype)  # none is transparent
        path = save_raster(tmp_path / "a.tif", values)
        expected = load(path, bands=bands, to_float32=False)
        with Raster(path, bands, channels=expected.shape[2], raw=True) as raster:
            found, valid = raster.read(slice(4, 30), slice(0, 13))
        assert found.dtype == dtype and np.array_equal(found, expected[4:, :13]) and valid.all()
        with pytest.raises(
            ValueError, match=r"--bounds \(0, 9\) for .*a.tif, which is read as it is stored: give none"
        ):
            Raster(path, bands, (0, 9), expected.shape[2], raw=True)

    def test_palette_indices_are_read_raw(self, tmp_path):
        values = np.arange(12, dtype=np.uint8).reshape(3, 4, 1)
        path = save_raster(tmp_path / "a.tif", values)
        with rasterio.open(path, "r+") as file:
            file.write_colormap(1, {value: (255, value, 0) for value in range(12)})
        with Raster(path, channels=1, raw=True) as raster:
            assert np.array_equal(raster.read(slice(0, 3), slice(0, 4))[0], values)

    def test_nan_and_infinity_become_zero(self, tmp_path):
        values = np.full((2, 3, 4), 7.5, np.float32)
        values[0, 0] = np.nan
        values[1, :, 2] = np.nan, -np.inf, np.inf
        with Raster(save_raster(tmp_path / "a.tif", values), channels=4, raw=True) as raster:
            found, valid = raster.read(slice(0, 2), slice(0, 3))
        assert valid.tolist() == [[False, True, True], [True, True, True]]
        assert found[..., 2].tolist() == [[0, 7.5, 7.5], [0, 0, 0]] and (found[1, :, 3] == 7.5).all()

    def test_an_unselected_alpha_channel_is_a_mask(self, tmp_path):
        values = np.full((2, 3, 4), 9, np.uint8)
        values[0, :, 3] = 0
        path = save_raster(tmp_path / "a.tif", values, photometric="RGB", alpha="unspecified")
        with rasterio.open(path, "r+") as file:
            file.colorinterp = [*file.colorinterp[:3], rasterio.enums.ColorInterp.alpha]
        with Raster(path, [1, 2, 3], channels=3, raw=True) as raster:
            assert raster.valid(slice(0, 2), slice(0, 1)).tolist() == [[False], [True]]
        with Raster(path, channels=4, raw=True) as raster:
            assert raster.valid(slice(0, 2), slice(0, 1)).all()


class TestVisualizations:
    def test_a_raster_is_visualized(self, raster_file, model, call, tmp_path):
        code, printed, _ = call("visualize", raster_file, *model, "--out", tmp_path / "view.png", "--blocks", 3)
        assert code == 0 and "blocks 3" in printed
        picture = cv2.imread(str(tmp_path / "view.png"))
        corner = picture[: picture.shape[0] // 3, : picture.shape[1] // 6]
        assert corner[..., 0].std() > 20 and np.abs(corner[..., 0].astype(int) - corner[..., 2]).max() > 50  # coloured

    def test_the_first_three_bands_are_red_green_and_blue(self):
        from visualize import stretch

        ramp = np.linspace(-9, 60000, 101)[None]
        bands = np.stack([ramp, 0 * ramp, ramp[:, ::-1], ramp])
        picture = stretch(bands).numpy()
        assert picture.shape == (3, 1, 101)
        assert picture[0, 0, [0, 2, 98, 100]].tolist() == [0, 0, 1, 1] and not picture[1].any()
        assert np.allclose(picture[2], picture[0, :, ::-1], atol=1 / 255)
        assert np.array_equal(stretch(bands[2:]), [picture[2]] * 3)

    @pytest.mark.parametrize("kind", ["backbone", "classifier"])
    def test_weights_for_other_bands_reject_images(self, kind, data, refusal, tmp_path):
        arch = dict(embed_dim=32, depth=12, num_heads=4, eta=1.0)
        make: Callable = xcit_mm.XCiT if kind == "backbone" else xcit_mm.XCiTClassifier
        torch.save(make(arch, in_channels=4).state_dict(), tmp_path / "four.pth")
        pictures, message = data / "images" / "validation", "four.pth is for images of 4 bands: "
        out = tmp_path / "out.png"
        assert message in refusal("visualize", pictures / "00000.jpg", tmp_path / "four.pth", "--out", out)
        if kind == "classifier":
            out = tmp_path / "out.npz"
            assert message in refusal("features", "extract", pictures, tmp_path / "four.pth", "--out", out)
        assert not out.exists()
