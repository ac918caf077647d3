"""The examples in docstrings run, on a small model and small data."""

import doctest
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import shapely
from helpers.exports import shapes_options, write_export
from helpers.raster_files import UTM, in_pixels, noise, save
from mmengine.config import Config
from mmengine.runner import Runner

import xcit_mm
from xcit_mm.weights import lookup
from xcit_mm.weights.work_dirs import Model

rasterio = pytest.importorskip("rasterio")

MODULES = ("models.xcit", "prediction.predictor", "prediction.many", "rasters.prediction")
MODULES += ("rasters.score", "launch.finetuning", "launch.training", "launch.testing")
MODULES += ("checks.doctor", "deployment.onnx_file")


def list_examples() -> Iterator[Any]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in MODULES:
        for test in finder.find(import_module(f"xcit_mm.{name}")):
            if test.examples:
                marks = [pytest.mark.slow] if name.startswith("deployment") else []
                yield pytest.param(test, id=test.name.removeprefix("xcit_mm."), marks=marks)


def shorten(from_cfg: Any) -> classmethod:
    """Let a run have one iteration, and read its data itself."""

    def shortened(cls: type, cfg: Config) -> Runner:
        for split in ("train", "val", "test"):
            if cfg.get(f"{split}_dataloader"):
                cfg[f"{split}_dataloader"].update(num_workers=0, persistent_workers=False)
        if cfg.get("train_cfg"):
            cfg.train_cfg.update(max_iters=1, val_interval=1)
            cfg.default_hooks.checkpoint.interval = 1
        return from_cfg.__func__(cls, cfg)

    return classmethod(shortened)


@pytest.fixture
def small_model(models, monkeypatch) -> Model:
    """A small model has a published name, and runs are short."""
    small = Model(*models["det"])
    names = {"maskrcnn_xcit_tiny_12_p16": small}
    monkeypatch.setattr(lookup, "_shipped_models", lambda: names)
    monkeypatch.setattr(Runner, "from_cfg", shorten(Runner.__dict__["from_cfg"]))
    return small


_made: list[Path] = []  # the folder of the first test


@pytest.fixture
def files(small_model, shapes, tmp_path, monkeypatch) -> None:
    """A folder with the files that examples name. The first test makes them."""
    monkeypatch.chdir(tmp_path)
    if _made:
        shutil.copytree(_made[0], tmp_path, dirs_exist_ok=True)
        return
    write_export("Ultralytics", Path("figs"))
    photos = sorted((shapes / "images" / "validation").iterdir())
    shutil.copytree(photos[0].parent, "photos")
    for name in ("photo.jpg", "panorama.jpg", "a.jpg", "b.jpg"):
        shutil.copy(photos[0], name)
    changes = dict(large=dict(scale=1), raster=dict(tile=96))
    write_work_folder(Path("work_dirs/mosaic"), small_model, **changes)
    data, *options = shapes_options(shapes)
    pairs = zip(options[::2], options[1::2], strict=True)
    arguments = {name.strip("-").replace("-", "_"): value for name, value in pairs}
    xcit_mm.finetune("maskrcnn_xcit_tiny_12_p16", data, config="nuts.py", **arguments)
    save(Path("mosaic.tif"), noise(3, 120, 130), **UTM)
    columns = {"class": ["oak", "oak"], "score": [0.9, 0.8]}
    boxes = in_pixels([shapely.box(10, 10, 40, 40), shapely.box(60, 60, 90, 90)], **columns)
    boxes.to_file("objects.gpkg", layer="objects")
    boxes[["class", "geometry"]].to_file("crowns.gpkg")
    _made.append(shutil.copytree(tmp_path, tmp_path.with_name("files of examples")))


def write_work_folder(folder: Path, model: Model, **changes: object) -> None:
    folder.mkdir(parents=True)
    cfg = Config.fromfile(model.config)
    cfg.merge_from_dict(changes)
    cfg.dump(folder / "own.py")
    shutil.copy(str(model.checkpoint), folder / "iter_1.pth")
    (folder / "last_checkpoint").write_text("iter_1.pth")


@pytest.mark.parametrize("example", list_examples())
def test_an_example_prints_what_it_shows(example: doctest.DocTest, files):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    shown: list[str] = []
    runner.run(example, out=shown.append)
    assert not shown, "".join(shown)
