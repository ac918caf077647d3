"""A labelled raster as tiles: each label in its place, each value as stored."""

import geopandas
import numpy as np
import pytest
import rasterio
import shapely
from helpers.cut_tiles import cut, discs, place_of, read_objects, read_tiles, write_labels
from helpers.full_disk import room_for
from helpers.labelled_scene import CLASSES, SIZE, make_scene, rasterized
from helpers.perfect_detector import PerfectDetector
from helpers.raster_files import UTM, noise, save, write_shapes
from pycocotools import mask as rle

from xcit_mm.prediction.seams import outline
from xcit_mm.rasters.polygons import area_in_pixels, covers, shared_part
from xcit_mm.rasters.settings import resolve_settings

DISC = shapely.Point(20, 100).buffer(9)
BOXES = [shapely.box(x, 20, x + 40, 60) for x in (20, 125, 145, 220)]


@pytest.fixture
def scene(tmp_path):
    return make_scene(tmp_path)


class TestObjects:
    def test_polygons_laid_over_the_raster_are_those_of_the_labels(self, scene, capsys):
        tiles, _ = cut(scene.raster, scene.labels, tile=200, overlap=50)
        assert not (tiles / "val").exists() and not (tiles / "held_out.gpkg").exists()
        total = len(scene.shapes) + len(scene.ignored) + scene.outside
        lines = capsys.readouterr().err
        left_out = f"{scene.outside} outside of the area, {len(scene.ignored)} without a class\n"
        assert f"labels.gpkg: {total} polygons, {left_out}" in lines
        shown = set()
        ignored = set()
        for row, column, annotation in read_objects(tiles):
            shape = outline(rle.decode(annotation["segmentation"]) > 0, (column, row))
            if shape.centroid.intersects(shapely.union_all(scene.ignored)):
                ignored.add(annotation["category_id"])
                assert annotation["iscrowd"]
                continue
            overlap = shapely.area(shapely.intersection(scene.shapes, shape))
            number = int(overlap.argmax())
            whole = scene.shapes[number]
            tile = shapely.box(column, row, column + 200, row + 200)
            assert shape.hausdorff_distance(whole.intersection(tile)) < 1.5
            assert annotation["category_id"] == scene.numbers[number] + 1
            assert annotation["iscrowd"] == (annotation["area"] < whole.area / 3)
            if annotation["area"] > 0.99 * whole.area:
                shown.add(number)
        assert len(shown) == len(scene.shapes)
        assert ignored == {1, 2, 3}  # what has no class is ignored in every class

    def test_boxes_have_no_masks_and_holes_are_no_part_of_an_object(self, raster, tmp_path):
        box = shapely.box(20, 20, 50, 60)
        ((*_, annotation),) = read_objects(cut(raster, write_labels(tmp_path, box), tile=200)[0])
        assert annotation["segmentation"] == [] and annotation["bbox"][2:] == [30, 40]
        ring = shapely.Point(75, 100).buffer(60).difference(shapely.Point(75, 100).buffer(30))
        tiles, _ = cut(raster, write_labels(tmp_path, ring), tile=200)
        ((*_, annotation),) = read_objects(tiles)
        assert rle.decode(annotation["segmentation"]).sum() == pytest.approx(ring.area, rel=0.01)
        assert annotation["area"] == pytest.approx(ring.area, rel=0.01)

    @pytest.mark.parametrize(
        ("shapes", "width", "crowds", "line"),
        [
            ([shapely.box(20, 20, 480, 180), DISC], 500, [0] * 2 + [1] * 10, "train: 10 tiles; 0"),
            ([shapely.Point(150, 150).buffer(9)], 500, [0], "train: 2 tiles; 0"),
            (BOXES, 150, [0, 0, 1], "train: 3 tiles; 3 without data are left out"),
        ],
        ids=["of which tiles show less than a third", "as many tiles without", "on nodata"],
    )
    def test_objects_of_tiles(self, shapes, width, crowds, line, tmp_path, capsys):
        """Without data from a column on. A disc in two tiles is shown by both."""
        bands = noise(3, 200, 500)
        bands[:, :, width:] = 0
        raster = save(tmp_path / "a.tif", bands, nodata=0, **UTM)
        tiles, _ = cut(raster, write_labels(tmp_path, *shapes))
        assert sorted(annotation["iscrowd"] for *_, annotation in read_objects(tiles)) == crowds
        assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bands", "scaling"), [([1, 2, 3, 4], {}), ([2], dict(scaling=[[1, -1000]]))]
)
def test_stored_bands_keep_their_values_and_the_config_has_their_scale(bands, scaling, tmp_path):
    scene = make_scene(tmp_path, bands=4)
    if scaling:
        with rasterio.open(scene.raster, "r+") as file:
            file.offsets = (0, -1000, 0, 0)
    reading = dict(channels=len(bands), raw=True, bands=bands)
    tiles, result = cut(scene.raster, scene.labels, tile=200, reading=reading)
    assert result.settings == dict(tile=200, overlap=0, bands=bands) | scaling
    with rasterio.open(scene.raster) as source:
        for path in sorted((tiles / "train").iterdir()):
            row, column = place_of(path.stem)
            window = rasterio.windows.Window(column, row, 200, 200)
            with rasterio.open(path) as tile:
                np.testing.assert_array_equal(tile.read(), source.read(bands, window=window))
                assert tile.crs == source.crs  # so that a GIS shows it where it is
                assert tile.transform.almost_equals(source.window_transform(window))
        values = source.read(bands)
    np.testing.assert_allclose(result.statistics[0], values.mean(axis=(1, 2)), rtol=0.05)
    np.testing.assert_allclose(result.statistics[1], values.std(axis=(1, 2)), rtol=0.05)


@pytest.mark.parametrize("is_detector", [True, False])
class TestArea:
    def test_no_pixel_is_in_both_splits_and_maps_are_the_polygons(self, is_detector, scene):
        tiles, _ = cut(scene.raster, scene.labels, is_detector, 200, 50, hold_out=True)
        images = tiles if is_detector else tiles / "images"
        expected = np.pad(rasterized(scene), ((0, 200), (0, 200)), constant_values=255)
        seen = {}
        for split in ("train", "val"):
            seen[split] = np.zeros(SIZE, bool)
            photos = read_tiles(images / split)
            for row, column, image in photos:
                seen[split][row : row + 200, column : column + 200] = True
                assert image.shape[:2] == (200, 200)
            if is_detector:
                continue
            maps = read_tiles(tiles / "masks" / split)
            assert [place for *place, _ in maps] == [place for *place, _ in photos]
            for row, column, labels in maps:
                window = expected[row : row + 200, column : column + 200]
                assert (labels != window).mean() < 0.002
            names = (tiles / "classes.txt").read_text().split()
            assert names == ["background", *sorted(CLASSES)]
        held_out = geopandas.read_file(tiles / "held_out.gpkg")
        mask = rasterio.features.rasterize(held_out.geometry, SIZE, transform=scene.transform) > 0
        assert 0.1 < mask.mean() < 0.4
        # A part narrower than a tile is padded, and shows nothing of the other.
        assert not (seen["train"] & mask).any() and (seen["val"] >= mask).all()
        first = min(column for _, column, _ in read_tiles(images / "val"))
        assert first >= mask.argmax(axis=1).min()

    def test_only_tiles_in_the_area_are_cut_and_pixels_outside_ignored(
        self, is_detector, raster, tmp_path
    ):
        area = shapely.box(60, 30, 300, 170)
        aoi = write_shapes(tmp_path / "aoi.gpkg", [area], "EPSG:32633")
        tiles, _ = cut(raster, write_labels(tmp_path, *discs(490)), is_detector, aoi=aoi)
        cut_tiles = read_tiles(tiles / ("train" if is_detector else "masks/train"))
        assert {column for _, column, _ in cut_tiles} == {60, 130, 200}
        for row, column, pixels in cut_tiles:
            seen = pixels.any(axis=2) if is_detector else pixels != 255
            tile = shapely.box(column, row, column + 100, row + 100)
            assert seen.sum() == tile.intersection(area).area


def test_classes_that_differ_by_case_or_spaces_are_one_line(raster, tmp_path, capsys):
    names = {"class": ["circle", "CIRCLE", "circle ", "square"]}
    shapes = [DISC, *BOXES[1:]]
    labels = write_shapes(tmp_path / "labels.gpkg", shapes, "EPSG:32633", **names)
    cut(raster, labels, model_classes=("Square",))
    lines = capsys.readouterr().err
    assert "labels.gpkg: 3 classes are all 'circle' without case and spaces" in lines
    assert "labels.gpkg: 2 classes are all 'square' without case and spaces" in lines


def test_an_object_that_touches_the_edge_of_a_tile_above_is_not_there(tmp_path):
    """As in labels that follow the pixels: the shared edge is a line, and no part of the object."""
    raster = save(tmp_path / "a.tif", noise(3, 32, 64), **UTM)
    parts = [shapely.box(20, 2, 32, 14), shapely.box(20, 14, 24, 31), shapely.box(20, 16, 60, 31)]
    labels = write_labels(tmp_path, shapely.union_all(parts))
    folder, _ = cut(raster, labels, tile=32)
    objects = {column: annotation for _, column, annotation in read_objects(folder)}
    assert objects[32]["bbox"] == [0, 16, 28, 15]
    assert rle.decode(objects[32]["segmentation"]).sum() == 28 * 15
    area = shapely.MultiPolygon([shapely.box(20, 2, 30, 12), shapely.box(-9, 0, 0, 30)])
    area = write_shapes(tmp_path / "area.gpkg", [area])
    with rasterio.open(raster) as file:
        covered = covers(area_in_pixels(area, file), slice(0, 32), slice(0, 64))
    assert covered.sum() == 100
    halves = [shapely.Polygon([(0, 0), (9, 9), corner]) for corner in ((0, 9), (9, 0))]
    assert shared_part(*halves).is_empty


def test_a_full_disk_leaves_no_tiles_of_stored_values(raster, tmp_path):
    labels = write_labels(tmp_path, DISC)
    with room_for(5000), pytest.raises(OSError, match="File too large"):
        cut(raster, labels, tile=50, reading=dict(raw=True))
    assert not (tmp_path / "tiles").exists()


def test_bounds_of_a_former_training_do_not_hinder_one_on_stored_values():
    cfg = PerfectDetector().cfg
    cfg.raster = dict(tile=64, bounds=[0, 3000])
    assert "bounds" not in resolve_settings(cfg, dict(bands=[1, 2, 3, 4]), trains=True)


def test_labels_count_by_their_part_in_the_area(tmp_path):
    """A class beside it is none of the training, and the split is by what lies inside."""
    raster = save(tmp_path / "a.tif", noise(3, 400, 400), **UTM)
    shapes = [shapely.box(x, 20, x + 30, 900) for x in range(5, 190, 40)]
    beside = shapely.box(200, 20, 300, 90)
    classes = {"class": [*["oak"] * len(shapes), "road"]}
    labels = write_shapes(tmp_path / "labels.gpkg", [*shapes, beside], **classes)
    labels = geopandas.read_file(labels).rename_geometry("geom")  # as PostGIS has it
    area = write_shapes(tmp_path / "area.gpkg", [shapely.box(0, 0, 200, 300)])
    folder, tiles = cut(raster, labels, aoi=area, tile=96, is_detector=False, hold_out=True)
    assert tiles.dataset.classes == ("background", "oak")
    assert {path.name for path in (folder / "masks").iterdir()} == {"train", "val"}


NARROW = (5.2, 5.2, 5.6, 5.6)
FLAT = (9, 0, 99, 0.8)
SQUARE = (9, 9, 60, 60)


@pytest.mark.parametrize(
    ("box", "name", "is_detector", "message"),
    [
        ((9000, 0, 9100, 9), "tree", True, "labels: .* no polygon with a class in the area: com"),
        (NARROW, "tree", True, "labels: no label in train is a pixel wide: give others"),
        (NARROW, "tree", False, "labels: no label in train is a pixel wide: give others"),
        (FLAT, "tree", False, "labels: no label in train is a pixel wide: give others"),
        ((5, 5, 475, 475), "tree", True, "tile: no tile of train shows a third of a label: give"),
        (SQUARE, "two\nlines", False, "labels: .* has a class with a line break"),
        (SQUARE, "background", False, "labels: .* has 1 classes with the background: a map has"),
    ],
)
def test_labels_that_cannot_be_trained_are_one_line(box, name, is_detector, message, tmp_path):
    raster = save(tmp_path / "a.tif", noise(3, 480, 480), **UTM)
    labels = write_shapes(tmp_path / "l.gpkg", [shapely.box(*box)], **{"class": [name]})
    with pytest.raises(ValueError, match=f"^{message}"):
        cut(raster, labels, is_detector, hold_out=True)
    assert not (tmp_path / "tiles").exists()


@pytest.mark.parametrize("is_detector", [True, False])
def test_labels_where_a_raster_has_no_data_are_one_line(is_detector, tmp_path):
    pixels = noise(3, 200, 500)
    pixels[:, :, 350:] = 0
    raster = save(tmp_path / "a.tif", pixels, nodata=0, **UTM)
    boxes = [shapely.box(x, 50, x + 20, 70) for x in range(10, 460, 30)]
    labels = write_shapes(tmp_path / "l.gpkg", boxes, **{"class": ["tree"] * len(boxes)})
    with pytest.raises(ValueError, match=r"^labels: the raster has no data where the .* of val"):
        cut(raster, labels, is_detector, hold_out=True)
