import importlib.util

import pytest

# The extra `raster` is optional.
_LIBRARIES = ("rasterio", "geopandas")
collect_ignore_glob = [] if all(map(importlib.util.find_spec, _LIBRARIES)) else ["test_*.py"]


@pytest.fixture
def raster(tmp_path):
    """A raster of noise."""
    from helpers.raster_files import UTM, noise, save

    return save(tmp_path / "a.tif", noise(3, 200, 500), **UTM)


@pytest.fixture
def predict(tmp_path):
    """A function that writes a `Scene` as a raster, predicts it and returns the table."""
    import geopandas
    from helpers.perfect_detector import PerfectDetector
    from helpers.raster_files import save_image

    from xcit_mm import predict_raster

    def predict(scene, detector=None, place=None, **options):
        raster = save_image(tmp_path / "scene.tif", scene.image, **place or {})
        out = tmp_path / "out.gpkg"
        options = dict(tile=96) | options
        predict_raster(detector or PerfectDetector(), raster, out, **options)
        return geopandas.read_file(out)

    return predict


@pytest.fixture(params=["map.tif", "objects.gpkg"])
def run(request, tmp_path):
    """A `RasterRun` of a segmentor, and one of a detector."""
    from helpers.raster_runs import RasterRun

    return RasterRun(tmp_path, request.param)
