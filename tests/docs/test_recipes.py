"""The commands and the code of docs/recipes.md run, on files as other tools write them."""

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import cv2
import mmengine.runner
import numpy as np
import pytest
import torch
from demo import save_untrained
from helpers.doctor_data import HEIGHT, WIDTH, write_image, write_map
from helpers.golden import fill
from helpers.pages import blocks, commands
from helpers.paths import CONFIGS, ROOT
from helpers.processes import run_script
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from mmengine.runner import Runner

from xcit_mm import XCiTClassifier
from xcit_mm.__main__ import main

PAGE = ROOT / "docs" / "recipes.md"
DETECTOR = CONFIGS / "demo" / "mask-rcnn_xcit-n12-p16_shapes.py"

needs_gdal = pytest.mark.skipif(
    not shutil.which("gdalwarp"), reason="GDAL's commands are missing: apt-get install gdal-bin"
)
needs_heif = pytest.mark.skipif(
    not (shutil.which("mogrify") and shutil.which("heif-enc")),
    reason="mogrify or heif-enc is missing: apt-get install imagemagick libheif-examples",
)


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


class Started(Exception):
    """mmengine would run this config."""


@pytest.fixture
def started(monkeypatch):
    """Returns the config with which a `train` of the page, of a model, starts mmengine."""

    def stop(cfg: Config) -> None:
        raise Started(cfg)

    def start(command: str, model: Path = DETECTOR) -> Config:
        program, *arguments = command.replace("MODEL", str(model)).split()
        assert program == "xcit-mm"
        with monkeypatch.context() as patch, pytest.raises(Started) as raised:
            patch.setattr(mmengine.runner.Runner, "from_cfg", stop)
            main(arguments)
        return raised.value.args[0]

    return start


# Box and class of the objects of each photo, as left, top, right and bottom in pixels.
OBJECTS = {
    "a": [((10, 12, 30, 40), "fig"), ((34, 5, 60, 25), "date")],
    "b": [((20, 10, 50, 40), "date")],
    "c": [],
    "d": [((5, 5, 25, 25), "fig")],
    "e": [((30, 20, 60, 45), "fig"), ((4, 4, 20, 18), "date")],
}
VOC = """<annotation>
	<folder>JPEGImages</folder>
	<filename>{name}.jpg</filename>
	<path>C:\\photos\\{name}.jpg</path>
	<source><database>Unknown</database></source>
	<size><width>64</width><height>48</height><depth>3</depth></size>
	<segmented>0</segmented>
{objects}</annotation>
"""
LABELIMG = """	<object>
		<name>{}</name><pose>Unspecified</pose><truncated>0</truncated><difficult>1</difficult>
		<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox>
	</object>
"""
CVAT = """  <object>
    <name>{}</name><truncated>0</truncated><occluded>0</occluded><difficult>0</difficult>
    <bndbox><xmin>{}.0</xmin><ymin>{}.0</ymin><xmax>{}.0</xmax><ymax>{}.0</ymax></bndbox>
    <attributes><attribute><name>rotation</name><value>0.0</value></attribute></attributes>
  </object>
"""


def write_voc() -> None:
    Path("voc/Annotations").mkdir(parents=True)
    for photo, objects in OBJECTS.items():
        write_image(Path(f"voc/JPEGImages/{photo}.jpg"))
        if not objects:
            continue
        template = LABELIMG if photo < "d" else CVAT
        written = "".join(
            template.format(name, left + 1, top + 1, right, bottom)
            for (left, top, right, bottom), name in objects
        )
        Path(f"voc/Annotations/{photo}.xml").write_text(VOC.format(name=photo, objects=written))
    lists = Path("voc/ImageSets/Main")
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a\nb\nc\nd\n")
    (lists / "val.txt").write_text("e\n")


def write_labelme() -> None:
    for photo, objects in OBJECTS.items():
        write_image(Path(f"photos/{photo}.jpg"))
        shapes = []
        for number, ((left, top, right, bottom), name) in enumerate(objects):
            middle = (left + right) // 2
            # An object of two parts, which labelme groups, beside objects of one part.
            parts = [(left, middle - 2), (middle + 2, right)] if number else [(left, right)]
            for start, end in parts:
                points = [[start, top], [end, top], [end, bottom], [start, bottom]]
                shape = dict(label=name, points=[[float(x), float(y)] for x, y in points])
                shape |= dict(group_id=number or None, description="", shape_type="polygon")
                shapes.append(shape | dict(flags={}, mask=None))
        label = dict(version="5.5.0", flags={}, shapes=shapes, imagePath=f"{photo}.jpg")
        label |= dict(imageData=None, imageHeight=HEIGHT, imageWidth=WIDTH)
        Path(f"photos/{photo}.json").write_text(json.dumps(label, indent=2))


def write_createml() -> None:
    entries = []
    for photo, objects in OBJECTS.items():
        write_image(Path(f"photos/{photo}.jpg"))
        annotations = []
        for (left, top, right, bottom), name in objects:
            center = dict(x=(left + right) / 2, y=(top + bottom) / 2)
            size = dict(width=right - left, height=bottom - top)
            annotations.append(dict(label=name, coordinates=center | size))
        entries.append(dict(image=f"{photo}.jpg", annotations=annotations))
    Path("photos/_annotations.createml.json").write_text(json.dumps(entries))


def objects_of(dataloader: dict) -> dict[str, list]:
    """Return box and class of the objects of each photo that a data set loads."""
    dataset = DATASETS.build(dataloader.dataset)
    objects = {}
    for index in range(len(dataset)):
        photo = dataset.get_data_info(index)
        instances = photo["instances"]
        assert not any(instance["ignore_flag"] for instance in instances)
        objects[Path(photo["img_path"]).stem] = [
            (tuple(instance["bbox"]), dataset.metainfo["classes"][instance["bbox_label"]])
            for instance in instances
        ]
    return objects


@pytest.mark.parametrize(
    "write, reader, has_masks",
    [
        (write_voc, "from_pascal_voc", False),
        (write_voc, "ImageSets", False),
        (write_labelme, "from_labelme", True),
        (write_createml, "from_createml", False),
    ],
)
def test_labels_of_other_tools_train_by_supervision(write, reader, has_masks, started):
    write()
    script = code("# to_coco.py")
    if reader == "ImageSets":
        lists = code("voc/ImageSets")
        script = script.replace("training, held_out = dataset.split(0.8, random_state=0)\n", lists)
        assert lists in script
    else:
        lines = "".join(block for _, block in blocks(PAGE)).splitlines()
        (line,) = (line for line in lines if f"dataset = sv.DetectionDataset.{reader}" in line)
        first = next(line for line in script.splitlines() if line.startswith("dataset = "))
        script = script.replace(first, line)
    run_code(script)
    (_, command) = commands(code("python to_coco.py"))
    cfg = started(command)
    init_default_scope("mmdet")
    training = objects_of(cfg.train_dataloader)
    held_out = objects_of(cfg.val_dataloader)
    assert len(training) == 4 and len(held_out) == 1
    assert reader != "ImageSets" or set(held_out) == {"e"}
    assert training | held_out == OBJECTS
    assert ("mask_head" in cfg.model.roi_head and bool(cfg.model.roi_head.mask_head)) == has_masks


@pytest.mark.parametrize("kind", ["det", "seg"])
def test_a_video_is_drawn_and_a_camera_predicted(kind, models, shapes):
    writer = cv2.VideoWriter("video.mp4", cv2.VideoWriter_fourcc(*"mp4v"), 5, (96, 96))
    for path in sorted((shapes / "images" / "validation").iterdir())[:3]:
        writer.write(cv2.imread(str(path)))
    writer.release()
    script = code("process_video") + code("VideoCapture")
    assert 'from_pretrained("MODEL")' in script and "VideoCapture(0)" in script
    config, checkpoint = models[kind]
    built = f"from_config({config!r}, {checkpoint!r})"
    script = script.replace('from_pretrained("MODEL")', built)
    run_code(script.replace("VideoCapture(0)", 'VideoCapture("video.mp4")'))
    assert Path("stdout.txt").read_text().count("Prediction of 96x96 pixels") == 3
    drawn = cv2.VideoCapture("drawn.mp4")
    assert drawn.get(cv2.CAP_PROP_FRAME_COUNT) == 3
    assert drawn.read()[1].shape == (96, 96, 3)


def test_a_longer_run_starts_from_the_weights_of_the_first_with_its_own_schedule(shapes, started):
    shutil.copytree(shapes, "nuts")
    started("xcit-mm train --from MODEL --data nuts")
    (command,) = run_shell(code("nuts-longer.py"))
    save_untrained(DETECTOR, Path("work_dirs/nuts/iter_1000.pth"))
    cfg = started(command)
    assert cfg.load_from == "work_dirs/nuts/iter_1000.pth" and not cfg.resume
    assert cfg.work_dir.endswith("work_dirs/nuts-longer")
    assert cfg.train_cfg.max_iters == cfg.param_scheduler[-1].end == 4000


def test_linear_probing_trains_the_head_alone(started):
    for name in ("train/a", "train/b", "val/c"):
        write_image(Path(f"streets/images/{name}.jpg"))
        write_map(Path(f"streets/masks/{name}.png"), [0, 1, 1])
    Path("streets/classes.txt").write_text("road\nsky\n")
    segmentor = CONFIGS / "semantic_fpn" / "fpn_xcit-s12-p16_8xb2-80k_ade20k-512x512.py"
    started("xcit-mm train --from MODEL --data streets", segmentor)
    trunk = fill(XCiTClassifier("s12", num_classes=10)).state_dict()
    torch.save(dict(model=trunk), "weights.pth")
    probe = code("# probe.py")
    checkpoint = "xcit://xcit_small_12_cp16_dino"
    assert checkpoint in probe
    Path("probe.py").write_text(probe.replace(checkpoint, "weights.pth"))
    cfg = started("xcit-mm train probe.py")
    cfg.train_cfg.max_iters = 1
    cfg.train_dataloader.update(num_workers=0, persistent_workers=False)
    cfg.param_scheduler = None  # whose first rate is low
    runner = Runner.from_cfg(cfg)
    head = {name: weight.clone() for name, weight in runner.model.decode_head.named_parameters()}
    runner.train()
    assert set(head) == {"conv_seg.weight", "conv_seg.bias"}
    assert head["conv_seg.weight"].shape == (2, 384, 1, 1)
    trained = dict(runner.model.decode_head.named_parameters())
    assert not any(torch.equal(weight, trained[name]) for name, weight in head.items())
    state = runner.model.backbone.state_dict()
    assert all(torch.equal(weight, trunk[name]) for name, weight in state.items())
    assert not runner.model.with_neck


def write_scene(path: str, color: tuple, place: tuple, crs: str = "EPSG:32633", **options) -> None:
    """Write a raster of 50 m x 50 m of one color, at the place of its left upper corner in m.

    Its upper half has no data, by `nodata` or a `mask` band.
    """
    rasterio = pytest.importorskip("rasterio")
    mask = options.pop("mask", False)
    pixels = np.full((100, 100, 3), color, options.pop("dtype", "uint8")).transpose(2, 0, 1)
    if "nodata" in options:
        pixels[:, :50] = options["nodata"]
    transform = rasterio.Affine(0.5, 0, place[0], 0, -0.5, place[1])
    profile = dict(driver="GTiff", count=3, height=100, width=100, dtype=pixels.dtype, crs=crs)
    Path(path).parent.mkdir(exist_ok=True)
    profile |= dict(transform=transform, **options)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "w", **profile) as file:
        file.write(pixels)
        if mask:
            file.write_mask(np.arange(100)[:, None].repeat(100, 1) >= 50)


def areas(path: str) -> dict[tuple, float]:
    """Return the square metres of each color that a model gets of a raster."""
    from xcit_mm.rasters.raster import Raster

    raster = Raster(path)
    image, valid = raster.read(slice(0, raster.height), slice(0, raster.width))
    pixel = abs(raster.transform.determinant)
    colors = map(tuple, image[valid][:, ::-1].tolist())
    return {color: count * pixel for color, count in Counter(colors).items()}


RED, GREEN, BLACK = (200, 20, 20), (20, 200, 20), (0, 0, 0)


@needs_gdal
def test_rasters_alike_are_one_whose_objects_go_into_other_formats(models, call):
    geopandas = pytest.importorskip("geopandas")
    from shapely import Point

    write_scene("scenes/a.tif", RED, (500000, 5400000))
    write_scene("scenes/b.tif", BLACK, (500080, 5399980))
    (command,) = run_shell(code("gdalbuildvrt -strict -addalpha"))
    assert areas("scenes.vrt") == {RED: 2500, BLACK: 2500}
    _, name, *arguments = command.replace("MODEL", " ".join(models["det"])).split()
    assert call(name, *arguments)[0] == 0
    assert run_shell(code("ogr2ogr")) == []
    written = [geopandas.read_file(f"objects.{suffix}") for suffix in ("gpkg", "geojson", "shp")]
    assert len(written[0]) == len(written[1]) == len(written[2]) > 0
    assert written[1].crs == "EPSG:4326"
    assert written[1].within(Point(15, 48.75).buffer(0.01)).all()
    assert written[2]["class"].tolist() == written[0]["class"].tolist()


@needs_gdal
def test_rasters_of_other_systems_and_masks_are_one_without_their_collars():
    write_scene("scenes/a.tif", RED, (500000, 5400000))
    write_scene("scenes/b.tif", GREEN, (500100, 5400000), nodata=0)
    write_scene("scenes/c.tif", BLACK, (59092, 5417487), "EPSG:32634", mask=True)
    assert run_shell(code("for scene in")) == []
    found = areas("scenes.vrt")
    assert set(found) == {RED, GREEN, BLACK}
    assert found[RED] == 2500 and found[GREEN] == 1250
    assert found[BLACK] == pytest.approx(1250, rel=0.1)  # turned by five degrees


@needs_gdal
@pytest.mark.parametrize(
    "mark, option",
    [
        (dict(nodata=0), "-dstalpha"),
        (dict(mask=True), "-dstalpha"),
        (dict(mask=True, dtype="float32"), "-dstnodata -9999"),
    ],
)
def test_another_pixel_size_keeps_what_has_no_data(mark, option):
    rasterio = pytest.importorskip("rasterio")
    write_scene("scene.tif", RED, (500000, 5400000), **mark)
    assert option in PAGE.read_text(encoding="utf-8")
    (command,) = run_shell(code("coarse.vrt").replace("-dstalpha", option))
    assert command.startswith("xcit-mm raster coarse.vrt")
    with rasterio.open("coarse.vrt") as coarse:
        assert coarse.res == (1, 1)
        valid = coarse.read_masks(1) > 0
        assert not valid[:25].any() and valid[25:].all() and len(valid) == 50
        assert (coarse.read(1)[25:] == RED[0]).all()


@needs_heif
def test_heic_photos_become_jpegs():
    Path("photos").mkdir()
    photo = np.full((48, 64, 3), (20, 20, 200), np.uint8)
    photo[24:] = 0
    cv2.imwrite("photo.jpg", photo)
    encode = ["heif-enc", "photo.jpg", "-o", "photos/photo.heic"]
    subprocess.run(encode, check=True, capture_output=True)
    run_shell(code("mogrify"))
    pixels = cv2.imread("photos/photo.jpg")
    assert np.abs(pixels.astype(int) - photo).mean() < 5
