"""Areas of interest: what they select of a raster, and areas that select nothing."""

import geopandas
import pytest
import shapely
from helpers.perfect_detector import PerfectDetector, Scene
from helpers.raster_files import write_shapes

CROSSING = shapely.Polygon([(60.1, 80.7), (260, 280), (260.3, 80), (60, 280.2)])
OTHER = shapely.Polygon([(99.9, 80.2), (280, 279.8), (280.7, 80), (100, 280)])


@pytest.mark.parametrize(
    "shapes",
    [[shapely.box(90, 110, 190, 210)], [CROSSING, OTHER], [CROSSING, OTHER.buffer(0)]],
    ids=["square", "two cross themselves", "one is valid"],
)
def test_it_selects_tiles_and_objects_by_their_centre(shapes, predict, tmp_path, capsys):
    scene = Scene(400, 400).add_random(100, 8, 24)
    detector = PerfectDetector()
    aoi = write_shapes(tmp_path / "area.gpkg", shapes)
    table = predict(scene, detector=detector, aoi=aoi, tile=100, overlap=24)
    seen = detector.seen
    assert seen < 25
    boxes = detector([scene.image])[0].boxes
    centres = shapely.points((boxes[:, :2] + boxes[:, 2:]) / 2)
    area = shapely.union_all([shapely.make_valid(shape) for shape in shapes])
    assert len(table) == area.contains(centres).sum() > 5
    assert f"{seen}/{seen} " in capsys.readouterr().err  # the bar counts what is predicted


@pytest.mark.parametrize(
    ("bounds", "crs", "message"),
    [
        ((500050, 5399970, 500100, 5399990), "EPSG:32633", "covers no pixel of the raster"),
        ((104, -1, 106, 1), "EPSG:4326", "no polygons that lie on the map of the raster"),
    ],
    ids=["touching", "elsewhere on the earth"],
)
def test_no_pixel_in_it_is_one_line(bounds, crs, message, predict, few, tmp_path):
    geopandas.GeoSeries([shapely.box(*bounds)], crs=crs).to_file(tmp_path / "area.gpkg")
    with pytest.raises(ValueError, match=message) as error:
        predict(few, aoi=tmp_path / "area.gpkg")
    assert "\n" not in str(error.value) and not list(tmp_path.glob("out*"))
