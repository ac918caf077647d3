"""The commands and the code of docs/recipes.md run, on files as other tools write them."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import cv2
import numpy as np
import pytest
import supervision as sv
from demo import save_untrained
from helpers.doctor_data import HEIGHT, WIDTH, write_image
from helpers.exports import CLASSES, OBJECTS
from helpers.pages import blocks, commands
from helpers.paths import CONFIGS, ROOT
from helpers.processes import run_script
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import Runner

from xcit_mm.__main__ import main

PAGE = ROOT / "docs" / "recipes.md"
DETECTOR = CONFIGS / "demo" / "mask-rcnn_xcit-n12-p16_shapes.py"
SEGMENTOR = CONFIGS / "demo" / "fpn_xcit-n12-p16_shapes.py"


def needs(commands: list[str], packages: str) -> pytest.MarkDecorator:
    are_there = all(map(shutil.which, commands))
    return pytest.mark.skipif(not are_there, reason=f"apt-get install {packages}")


needs_gdal = needs(["gdalwarp"], "gdal-bin")
needs_heif = needs(["mogrify", "heif-enc"], "imagemagick libheif-examples")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def code(part: str) -> str:
    """Return the block of the page that has a part."""
    (block,) = (block for _, block in blocks(PAGE) if part in block)
    return block


def run_code(script: str) -> None:
    Path("recipe.py").write_text(script)
    ended = run_script(Path("recipe.py"), cwd=Path.cwd())
    assert ended.returncode == 0, ended.stderr


def run_shell(block: str) -> list[str]:
    """Run a block of the page without the commands of this package, which are returned."""
    own = [line for line in commands(block) if line.startswith("xcit-mm")]
    others = [line for line in block.splitlines() if not line.startswith("xcit-mm")]
    subprocess.run(["bash", "-ec", "\n".join(others)], check=True, capture_output=True, timeout=60)
    return own


def started(command: str, model: Path = DETECTOR) -> Config:
    """Return the config with which a `train` of the page, of a model, starts mmengine."""
    program, *arguments = command.replace("MODEL", str(model)).split()
    assert program == "xcit-mm"
    with patch.object(Runner, "from_cfg") as from_cfg:
        from_cfg.return_value.train.side_effect = KeyboardInterrupt
        assert main(arguments) == 130
    return from_cfg.call_args.args[0]


PHOTOS = OBJECTS["train"] | OBJECTS["val"]


def labelled_photos(has_masks: bool) -> sv.DetectionDataset:
    """Write photos, and return them with their objects. Masks have two parts."""
    labels = {}
    for photo, objects in PHOTOS.items():
        write_image(Path("photos", f"{photo}.jpg"))
        masks = np.zeros((len(objects), HEIGHT, WIDTH), bool)
        for mask, (_, (x, y, width, height)) in zip(masks, objects, strict=True):
            mask[y : y + height, [x, x + 1, x + 2, x + width - 2, x + width - 1]] = True
        boxes = np.array([box for _, box in objects], float).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        numbers = np.array([CLASSES.index(name) for name, _ in objects], int)
        labels[f"photos/{photo}.jpg"] = sv.Detections(
            boxes, masks if has_masks else None, class_id=numbers
        )
    return sv.DetectionDataset(list(CLASSES), list(labels), labels)


def write_voc() -> None:
    labelled_photos(has_masks=False).as_pascal_voc("voc/JPEGImages", "voc/Annotations")
    for file in Path("voc/Annotations").iterdir():
        difficult = "<difficult>1</difficult><bndbox>"
        file.write_text(file.read_text().replace("<bndbox>", difficult))


def write_labelme() -> None:
    labelled_photos(has_masks=True).as_labelme(annotations_directory_path="photos")


def write_createml() -> None:
    dataset = labelled_photos(has_masks=False)
    dataset.as_createml(annotations_path="photos/_annotations.createml.json")


def objects_of(dataloader: dict) -> dict[str, list]:
    """Return class and box of the objects of each photo that a data set loads."""
    dataset = DATASETS.build(dataloader.dataset)
    objects = {}
    for photo in (dataset.get_data_info(index) for index in range(len(dataset))):
        found = objects.setdefault(Path(photo["img_path"]).stem, [])
        for instance in photo["instances"]:
            assert not instance["ignore_flag"]
            x, y, right, bottom = instance["bbox"]
            name = dataset.metainfo["classes"][instance["bbox_label"]]
            found.append((name, pytest.approx((x, y, right - x, bottom - y), abs=1.01)))
    return objects


@pytest.mark.parametrize(
    "write, reader",
    [
        (write_voc, "from_pascal_voc"),
        (write_labelme, "from_labelme"),
        (write_createml, "from_createml"),
    ],
)
def test_labels_of_other_tools_train_by_supervision(write, reader):
    write()
    (line,) = re.findall(rf"^dataset = .*{reader}\(.*", PAGE.read_text(), re.MULTILINE)
    run_code(re.sub("^dataset = .*", line, code("# to_coco.py"), flags=re.MULTILINE))
    (_, command) = commands(code("python to_coco.py"))
    cfg = started(command)
    init_default_scope("mmdet")
    training = objects_of(cfg.train_dataloader)
    held_out = objects_of(cfg.val_dataloader)
    assert len(training) == 4 and len(held_out) == 1
    assert training | held_out == PHOTOS
    assert bool(cfg.model.roi_head.get("mask_head")) == (write is write_labelme)


def test_a_video_is_drawn_and_a_camera_predicted(models):
    writer = cv2.VideoWriter("video.mp4", cv2.VideoWriter_fourcc(*"mp4v"), 5, (96, 96))
    for number in range(3):
        writer.write(np.full((96, 96, 3), 80 * number, np.uint8))
    writer.release()
    script = code("process_video") + code("VideoCapture")
    config, checkpoint = models["det"]
    built = f"from_pretrained({config!r}, {checkpoint!r})"
    script = script.replace('from_pretrained("MODEL")', built)
    run_code(script.replace("VideoCapture(0)", 'VideoCapture("video.mp4")'))
    assert Path("stdout.txt").read_text().count("Prediction of 96x96 pixels") == 3
    drawn = cv2.VideoCapture("drawn.mp4")
    assert drawn.get(cv2.CAP_PROP_FRAME_COUNT) == 3
    assert drawn.read()[1].shape == (96, 96, 3)


def test_a_longer_run_starts_from_the_weights_of_the_first_with_its_own_schedule(shapes):
    shutil.copytree(shapes, "nuts")
    data = "nuts/annotations/instances_training.json --images nuts/images/training"
    started(f"xcit-mm finetune MODEL {data} --config nuts.py")
    (command,) = run_shell(code("nuts-longer.py"))
    save_untrained(DETECTOR, Path("work_dirs/nuts/iter_1000.pth"))
    cfg = started(command)
    assert cfg.load_from == "work_dirs/nuts/iter_1000.pth" and not cfg.resume
    assert cfg.work_dir.endswith("work_dirs/nuts-longer")
    assert cfg.train_cfg.max_iters == cfg.param_scheduler[-1].end == 4000


def write_scene(
    path: str, color: tuple, left: int, top: int, zone: int = 33, mask: bool = False, **profile
) -> None:
    """Write a raster of 50 m x 50 m of one color in a zone of UTM.

    Its upper half has no data, by `nodata` or a `mask` band.
    """
    rasterio = pytest.importorskip("rasterio")
    from helpers.raster_files import save

    pixels = np.full((100, 100, 3), color, profile.get("dtype", "uint8")).transpose(2, 0, 1)
    if "nodata" in profile:
        pixels[:, :50] = profile["nodata"]
    Path(path).parent.mkdir(exist_ok=True)
    transform = rasterio.Affine(0.5, 0, left, 0, -0.5, top)
    save(Path(path), pixels, crs=f"EPSG:326{zone}", transform=transform, **profile)
    if mask:
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
            file.write_mask(np.arange(100)[:, None].repeat(100, 1) >= 50)


def count_colors(path: str) -> Counter:
    """Return the number of pixels of each color that a model gets of a raster."""
    from helpers.raster_files import read_raster

    image, valid = read_raster(Path(path))
    return Counter(map(tuple, image[valid][:, ::-1].tolist()))


RED, GREEN, BLACK = (200, 20, 20), (20, 200, 20), (0, 0, 0)


@needs_gdal
def test_rasters_alike_are_one_whose_objects_go_into_other_formats(models, call):
    geopandas = pytest.importorskip("geopandas")
    from shapely import Point

    write_scene("scenes/a.tif", RED, 500000, 5400000)
    write_scene("scenes/b.tif", BLACK, 500080, 5399980)
    (command,) = run_shell(code("gdalbuildvrt -strict -addalpha"))
    assert count_colors("scenes.vrt") == {RED: 10000, BLACK: 10000}
    model = " --checkpoint ".join(models["det"])
    _, name, *arguments = command.replace("MODEL", model).split()
    assert call(name, *arguments)[0] == 0
    assert run_shell(code("ogr2ogr")) == []
    written = [geopandas.read_file(f"objects.{suffix}") for suffix in ("gpkg", "geojson", "shp")]
    assert len(written[0]) == len(written[1]) == len(written[2]) > 0
    assert written[1].crs == "EPSG:4326"
    assert written[1].within(Point(15, 48.75).buffer(0.01)).all()
    assert written[2]["class"].tolist() == written[0]["class"].tolist()


@needs(["gdal_polygonize.py"], "gdal-bin python3-gdal")
def test_a_raster_of_classes_becomes_labels_to_train_on():
    write_scene("scene.tif", RED, 500000, 5400000)
    write_scene("classes.tif", (1, 1, 1), 500000, 5400000, nodata=255)
    (command,) = run_shell(code("gdal_polygonize"))
    started(command.replace("--tile 512", "--tile 50"), SEGMENTOR)
    assert Path("scene-tiles/classes.txt").read_text().split() == ["background", "1"]
    maps = [cv2.imread(str(path), -1) for path in Path("scene-tiles/masks").rglob("*.png")]
    assert {*np.unique(maps)} == {0, 1, 255}  # with what pads a tile


@needs_gdal
def test_rasters_of_other_systems_and_masks_are_one_without_their_collars():
    write_scene("scenes/a.tif", RED, 500000, 5400000)
    write_scene("scenes/b.tif", GREEN, 500100, 5400000, nodata=0)
    write_scene("scenes/c.tif", BLACK, 59092, 5417487, zone=34, mask=True)
    assert run_shell(code("for scene in")) == []
    found = count_colors("scenes.vrt")  # of a square metre
    assert set(found) == {RED, GREEN, BLACK}
    assert found[RED] == 2500 and found[GREEN] == 1250
    assert found[BLACK] == pytest.approx(1250, rel=0.1)  # turned by five degrees


@needs_gdal
@pytest.mark.parametrize("option, dtype", [("-dstalpha", "uint8"), ("-dstnodata -9999", "float32")])
def test_another_pixel_size_keeps_what_has_no_data(option, dtype):
    rasterio = pytest.importorskip("rasterio")
    write_scene("scene.tif", RED, 500000, 5400000, mask=True, dtype=dtype)
    run_shell(code("coarse.vrt").replace("-dstalpha", option))
    with rasterio.open("coarse.vrt") as coarse:
        assert coarse.res == (1, 1)
        valid = coarse.read_masks(1) > 0
        assert not valid[:25].any() and valid[25:].all() and len(valid) == 50
        assert (coarse.read(1)[25:] == RED[0]).all()


@needs_heif
def test_heic_photos_become_jpegs():
    Path("photos").mkdir()
    photo = np.full((48, 64, 3), (20, 20, 200), np.uint8)
    cv2.imwrite("photo.jpg", photo)
    encode = ["heif-enc", "photo.jpg", "-o", "photos/photo.heic"]
    subprocess.run(encode, check=True, capture_output=True)
    run_shell(code("mogrify"))
    pixels = cv2.imread("photos/photo.jpg")
    assert np.abs(pixels.astype(int) - photo).mean() < 5
