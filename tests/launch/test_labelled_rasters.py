"""`train --from MODEL --data RASTERS --labels LABELS` writes a config for the tiles, and
`xcit-mm raster` reads a raster as it says.
"""

from pathlib import Path

import pytest

pytest.importorskip("rasterio")
import rasterio
from helpers.labelled_scene import CLASSES, LabelledScene, make_scene, rasterized
from helpers.paths import CONFIGS
from helpers.raster_files import save
from mmengine.config import Config

from xcit_mm import score_raster


@pytest.fixture
def scene(tmp_path) -> LabelledScene:
    return make_scene(tmp_path, (300, 400), step=80)


def labelled(scene: LabelledScene) -> list[object]:
    return ["--data", scene.rasters[0].parent, "--labels", scene.labels, "--tile", 160]


def test_a_config_alone_trains_from_its_own_start_and_ignores_parts_of_objects(
    scene, start, folder
):
    config = CONFIGS / "demo" / "mask-rcnn_xcit-n12-p16_shapes.py"
    cfg = start("--from", config, *labelled(scene))
    assert cfg.load_from is None and cfg.optim_wrapper.optimizer.lr == 5e-4
    assert "constructor" not in cfg.optim_wrapper
    assert cfg.raster.tile == 160 and cfg.raster.overlap == 40 and len(cfg.raster.bounds) == 6
    assert cfg.train_dataloader.dataset.metainfo.classes == tuple(sorted(CLASSES))
    assert cfg.val_dataloader.dataset.ann_file == str(folder / "rasters-coco" / "val.json")
    assert cfg.model.train_cfg.rpn.assigner.ignore_iof_thr == 0.5


def test_a_segmentor_trains_on_maps_of_a_raster_of_classes(trained_segmentor, scene, start, folder):
    place = dict(crs="EPSG:32633", transform=scene.transforms[0])
    labels = save(folder / "classes.tif", rasterized(scene, 0, (300, 400)), **place)
    options = "--data", scene.rasters[0], "--labels", labels, "--tile", 160
    cfg = start("--from", trained_segmentor, *options, "--no-val")
    assert cfg.val_dataloader is None and cfg.model.decode_head.num_classes == 4
    assert cfg.train_dataloader.dataset.metainfo.classes[3] == "class 3"


@pytest.mark.parametrize("model", ["trained", "trained_segmentor"])
def test_four_bands_are_loaded_normalised_and_fill_the_stem(model, start, tmp_path, request):
    options = labelled(make_scene(tmp_path, (300, 400), step=80, bands=4))
    cfg = start("--from", request.getfixturevalue(model), *options, "--bands", 1, 2, 3, 4)
    assert cfg.model.backbone.in_channels == 4 and cfg.model.data_preprocessor.mean is None
    assert cfg.custom_hooks[0].fill_stem is True
    for split in ("train", "test"):
        steps = cfg[f"{split}_dataloader"].dataset.pipeline
        names = [step.type for step in steps]
        assert names[0] == "LoadRasterFromFile" and names[-2] == "Normalize"
        assert "PhotoMetricDistortion" not in names and len(steps[-2].mean) == 4


def test_a_raster_is_predicted_as_in_the_training(
    models, scene, start, folder, call, trained_segmentor
):
    start("--from", trained_segmentor, *labelled(scene), "--gsd", 1)
    (folder / "work").mkdir()
    cfg = Config.fromfile(folder / "rasters.py")
    cfg.model.decode_head.num_classes = 5  # of the checkpoint
    cfg.test_dataloader.dataset.metainfo.classes = ("a", "b", "c", "d", "e")
    cfg.dump(folder / "work" / "rasters.py")
    (folder / "work" / "last_checkpoint").write_text(models["seg"][1])
    command = "raster", scene.rasters[1], folder / "work", "--out"
    code, _, lines = call(*command, folder / "a.tif")
    assert code == 0 and "the model was trained with" not in lines
    code, _, lines = call(*command, folder / "b.tif", "--gsd", 0.5, "--tile", 160)
    assert "--gsd 0.5: the model was trained with 1.0\n" in lines and "--tile" not in lines
    with rasterio.open(folder / "a.tif") as small, rasterio.open(folder / "b.tif") as large:
        assert large.width == pytest.approx(2 * small.width, abs=2)


@pytest.mark.slow
def test_a_made_scene_is_learned(call, folder, tmp_path):
    scene = make_scene(tmp_path / "scene", step=80)
    config = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"
    length = 200
    quick = [f"train_cfg.max_iters={length}", f"train_cfg.val_interval={length}"]
    quick += [f"param_scheduler.1.end={length}", f"default_hooks.checkpoint.interval={length}"]
    for split in ("train", "val"):
        quick += [f"{split}_dataloader.num_workers=0"]
        quick += [f"{split}_dataloader.persistent_workers=False"]
    training = "--from", config, *labelled(scene), "--cfg-options", *quick
    assert call("train", *training)[0] == 0
    out = folder / "map.tif"
    call("raster", scene.rasters[0], folder / "work_dirs" / "rasters", "--out", out)
    scores = score_raster(out, scene.labels, folder / "rasters-tiles" / "held_out.gpkg")
    assert scores.loc["mean", "IoU"] > 0.85


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["{labels}", "--class-column", "kind"], "has no such column, give one of Class"),
        (["{labels}", "--tile", 0], "tiles of 0 pixels"),
        (["{labels}", "--bands", 1, 2, "--bounds", 0, 9], "have no scale"),
        (["{raster}"], "has no polygons: a detector needs some"),
        (["gone.gpkg"], "gone.gpkg: No such file"),
    ],
)
def test_labels_that_do_not_fit_are_one_line_before_work(
    options, message, trained, scene, refused, folder
):
    paths = dict(labels=scene.labels, raster=scene.rasters[0])
    options = [str(option).format(**paths) for option in options]
    data = scene.rasters[0].parent
    assert message in refused("--from", trained, "--data", data, "--labels", *options)
    assert not list(Path(folder).glob("*-tiles")) and not (folder / "rasters.py").exists()
