"""Runs over a raster that tests kill, change and compare with undisturbed runs."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import geopandas
import pytest
import rasterio

from helpers.perfect_detector import PerfectDetector, Scene
from helpers.pixel_segmentor import PixelSegmentor
from helpers.raster_files import save_image
from xcit_mm import predict_raster
from xcit_mm.prediction import Prediction

ROWS = 5
TILES = 15


class RasterRun:
    """A raster, a result of it, and the model."""

    def __init__(self, folder: Path, name: str) -> None:
        scene = Scene(320, 240).add_random(4, 60, 120).add_random(30, 8, 40)
        self.raster = save_image(folder / "scene.tif", scene.image)
        self.out = folder / "results" / name
        self.out.parent.mkdir(exist_ok=True)
        self.model = PixelSegmentor if self.out.suffix == ".tif" else PerfectDetector

    @property
    def rows(self) -> list[Path]:
        return sorted(self.out.with_name(f"{self.out.name}.parts").glob("row-*"))

    def predict(self, model: Any = None, out: Path | None = None, **options: Any) -> int:
        """Predict the raster, and return the number of tiles that the model saw."""
        model = model or self.model()
        predict_raster(model, self.raster, out or self.out, **dict(tile=96, overlap=24) | options)
        return model.seen

    def die_after(self, tiles: int, die: Callable[[], object], **options: Any) -> None:
        """Predict some tiles, then die."""

        class Dying(self.model):
            def predict_arrays(self, images, masks, resizes) -> list[Prediction]:
                if self.seen >= tiles:
                    die()
                return super().predict_arrays(images, masks, resizes)

        self.predict(Dying(), **options)

    def interrupt(self, **options: Any) -> None:
        """Predict the first rows, then stop as by Ctrl+C."""

        def interrupt() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.die_after(4, interrupt, **options)

    def assert_equals_an_undisturbed_run(self) -> None:
        assert _read(self.out) == _undisturbed(self.out.suffix)
        names = self.out.with_name(f"{self.out.name}.aux.xml")  # of classes
        files = [self.out, names] if self.model is PixelSegmentor else [self.out]
        assert sorted(self.out.parent.iterdir()) == files


def _read(out: Path) -> object:
    if out.suffix == ".tif":
        with rasterio.open(out) as file:
            return file.read(1).tolist(), file.overviews(1)
    return geopandas.read_file(out).to_json()


@cache
def _undisturbed(suffix: str) -> object:
    with TemporaryDirectory() as folder:
        run = RasterRun(Path(folder), f"undisturbed{suffix}")
        assert run.predict() == TILES
        return _read(run.out)
