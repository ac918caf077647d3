"""`finetune MODEL RASTER --labels LABELS` writes a config for the tiles, and
`xcit-mm raster` reads a raster as it says.
"""

from pathlib import Path

import pytest

pytest.importorskip("rasterio")
import cv2
import geopandas
import numpy as np
from helpers.doctor_data import edit_annotations
from helpers.labelled_scene import CLASSES, LabelledScene, make_scene
from helpers.paths import CONFIGS
from helpers.raster_files import noise, save
from helpers.small_models import first_batch
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS

from xcit_mm import score_raster
from xcit_mm.rasters import cutting


@pytest.fixture
def scene(tmp_path) -> LabelledScene:
    return make_scene(tmp_path, (300, 400))


def labelled(scene: LabelledScene) -> list[object]:
    return [scene.raster, "--labels", scene.labels, "--tile", 160]


def test_a_config_alone_trains_from_its_own_start_and_ignores_parts_of_objects(
    scene, start, folder
):
    config = CONFIGS / "demo" / "mask-rcnn_xcit-n12-p16_shapes.py"
    cfg = start("finetune", config, *labelled(scene))
    assert cfg.load_from is None and cfg.optim_wrapper.optimizer.lr == 5e-4
    assert cfg.optim_wrapper.constructor == "DefaultOptimWrapperConstructor"
    assert cfg.raster == dict(tile=160, overlap=40)
    assert cfg.large == dict(scale=1.0, pixel_size=0.5)
    assert cfg.train_dataloader.dataset.metainfo.classes == tuple(sorted(CLASSES))
    assert cfg.val_dataloader.dataset.ann_file == str(folder / "scene-tiles" / "val.json")
    assert cfg.model.train_cfg.rpn.assigner.ignore_iof_thr == 0.5


@pytest.mark.parametrize("model", ["trained", "trained_segmentor"])
def test_four_bands_are_loaded_normalised_and_fill_the_stem(model, start, tmp_path, request):
    options = labelled(make_scene(tmp_path, (300, 400), bands=4))
    options += ["--no-val", "--bands", 1, 2, 3, 4]
    cfg = start("finetune", request.getfixturevalue(model), *options)
    background = ["background"] if model == "trained_segmentor" else []
    assert cfg.metainfo.classes == (*background, *sorted(CLASSES)) and cfg.val_dataloader is None
    assert cfg.model.backbone.in_channels == 4 and cfg.model.data_preprocessor.mean is None
    assert cfg.custom_hooks[0].fill_stem is True
    for split in ("train", "test"):
        steps = cfg[f"{split}_dataloader"].dataset.pipeline
        names = [step.type for step in steps]
        assert names[0] == "LoadRasterFromFile" and names[-2] == "Normalize"
        assert "PhotoMetricDistortion" not in names and len(steps[-2].mean) == 4


def test_a_model_of_a_raster_learns_photos_and_then_a_raster_again(
    trained, scene, data, own_data, start, refused, folder
):
    start("finetune", trained, *labelled(scene))
    own = ["finetune", "scene.py", *own_data]
    start(*own)
    assert start("train", "my-data.py").raster == dict(tile=160, overlap=40)
    start("finetune", "my-data.py", *labelled(scene), "--config", "last.py")
    assert start("train", "last.py").source.data is None
    train = data / "annotations" / "instances_training.json"
    edit_annotations(train, lambda annotation: annotation.update(iscrowd=1))
    assert "D409" in refused(*own, "--overwrite", "--work-dir", "crowds")


@pytest.mark.slow
def test_a_made_scene_is_learned(call, folder, tmp_path):
    scene = make_scene(tmp_path, (600, 900))
    config = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"
    length = 200
    quick = [f"train_cfg.max_iters={length}", f"train_cfg.val_interval={length}"]
    quick += [f"param_scheduler.1.end={length}", f"default_hooks.checkpoint.interval={length}"]
    for split in ("train", "val"):
        quick += [f"{split}_dataloader.num_workers=0"]
        quick += [f"{split}_dataloader.persistent_workers=False"]
    training = "finetune", config, *labelled(scene), "--cfg-options", *quick
    assert call(*training)[0] == 0
    out = folder / "map.tif"
    call("raster", folder / "work_dirs" / "scene", scene.raster, "--out", out)
    scores = score_raster(out, scene.labels, folder / "scene-tiles" / "held_out.gpkg")
    assert scores.loc["mean", "IoU"] > 0.85


def test_corrected_labels_are_cut_again_by_overwrite(trained, scene, start, folder):
    options = "finetune", trained, *labelled(scene)
    start(*options)
    before = (folder / "scene-tiles" / "train.json").read_bytes()
    table = geopandas.read_file(scene.labels)
    table[table["class"] != "disc"].to_file(scene.labels)
    cfg = start(*options, "--overwrite", "--work-dir", folder / "again")
    assert cfg.train_dataloader.dataset.metainfo.classes == ("octagon", "square")
    assert (folder / "scene-tiles" / "train.json").read_bytes() != before


def test_what_a_former_training_wrote_stays(trained, scene, start, refused, folder):
    options = "finetune", trained, *labelled(scene)
    start(*options)
    before = contents(folder)
    again = (*options, "--work-dir", folder / "again")
    wrong = ("--cfg-options", "model.roi_head.bbox_head.num_classes=7")
    assert "scene.py exists: overwrite it, give another config, or train" in refused(*again)
    assert "num_classes is 7" in refused(*again, "--overwrite", *wrong)
    assert contents(folder) == before
    (folder / "scene.py").unlink()
    tiles = folder / "scene-tiles"
    assert f"{tiles} exists: overwrite it, give another config" in refused(*again)
    (tiles / "notes.txt").touch()
    before = contents(tiles)
    message = refused(*again, "--overwrite")
    assert "holds notes.txt, which are not of tiles: move them" in message
    assert contents(tiles) == before


def contents(folder: Path) -> dict[Path, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    "options, message",
    [
        (["--cfg-options", "max_iter=9"], "a config has no setting max_iter"),
        ([], "--tile: the config has no raster = dict(tile=...)"),
        (["--val", "val.json"], "--val: it is for a COCO json, and the data are a"),
        (["--whole"], "--whole: MaskRCNN cannot train on whole images: leave it out"),
    ],
)
def test_options_that_do_not_fit_end_before_tiles_are_cut(
    options, message, trained, scene, refused, monkeypatch
):
    """Tiles of a large raster take minutes."""
    monkeypatch.setattr(cutting, "cut_raster", lambda *_, **options: pytest.fail("cuts tiles"))
    assert message in refused("finetune", trained, scene.raster, "--labels", scene.labels, *options)


def test_labels_that_do_not_fit_leave_no_files(trained, scene, refused, folder):
    command = ["finetune", trained, scene.raster, "--tile", 160, "--labels"]
    assert "gone.gpkg: No such file" in refused(*command, "gone.gpkg")
    message = refused(*command, scene.labels, "--class-column", "kind")
    assert "has no column kind, only class" in message
    assert not list(folder.glob("*-tiles")) and not (folder / "scene.py").exists()


def test_a_segmentor_trains_on_the_raster_as_one_image(trained_segmentor, scene, start, folder):
    slides = "model['test_cfg'] = dict(mode='slide', crop_size=(64, 64), stride=(48, 48))"
    (config,) = trained_segmentor.rglob("*.py")
    config.write_text(f"{config.read_text()}\n{slides}\n")
    options = [scene.raster, "--labels", scene.labels, "--whole"]
    cfg = start("finetune", trained_segmentor, *options)
    assert cfg.model.type == "xcit_mm.WholeImageEncoderDecoder"
    assert cfg.model.backbone.with_cp == "bands" and cfg.model.backbone.norm_eval
    assert cfg.model.test_cfg.mode == "whole"
    assert cfg.train_dataloader.batch_size == 1 and cfg.large.scale == 1
    steps = {step.type for step in cfg.train_dataloader.dataset.pipeline}
    assert not steps & {"Resize", "RandomResize", "RandomCrop"}
    images = [*(folder / "scene-tiles" / "images").rglob("*.png")]
    assert {path.parent.name for path in images} == {"train", "val"} and len(images) == 2
    shown = sum(cv2.imread(str(path)).shape[1] for path in images)
    assert shown == 400
    model = revert_sync_batchnorm(MODELS.build(cfg.model)).train()
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    batch = model.data_preprocessor(first_batch(cfg.train_dataloader), training=True)
    assert batch["inputs"].shape[2:] == (320, 320)
    model.loss(**batch)["decode.loss_ce"].backward()


def test_pixels_around_the_labelled_area_are_shown_and_do_not_count(
    trained_segmentor, scene, start, folder
):
    area = geopandas.read_file(scene.labels).to_crs("EPSG:32633")[:3].buffer(20)
    area.to_file(folder / "area.gpkg")
    options = [scene.raster, "--labels", scene.labels, "--aoi", "area.gpkg", "--no-val"]
    start("finetune", trained_segmentor, *options, "--whole")
    tiles = folder / "scene-tiles"
    (image,) = (tiles / "images").rglob("*.png")
    labels = cv2.imread(str(tiles / "masks" / "train" / image.name), cv2.IMREAD_UNCHANGED)
    is_outside = labels == 255
    assert 0 < is_outside.sum() < is_outside.size
    assert cv2.imread(str(image))[is_outside].all()


def test_images_of_other_bands_in_a_folder_start_a_fine_tuning(maps, start):
    for path in (maps / "images").rglob("*.jpg"):
        save(path.with_suffix(".tif"), noise(4, 96, 96, high=60000, dtype=np.uint16))
        path.unlink()
    config = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes-4band.py"
    assert start("finetune", config, maps, "--skip-checks").large.scale == 1


def test_pools_over_the_image_cannot_train_whole(scene, refused, folder):
    config = CONFIGS / "upernet" / "upernet_xcit-s12-p16_8xb2-160k_ade20k-512x512.py"
    message = refused("finetune", config, scene.raster, "--labels", scene.labels, "--whole")
    assert (
        "UPerHead sees more than a window and 128 pixels around it: take FPN and FPNHead" in message
    )
    assert not list(folder.glob("*-tiles")) and not (folder / "scene.py").exists()
