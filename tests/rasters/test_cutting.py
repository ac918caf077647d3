"""Labelled rasters as tiles: each label in its place, each pixel in one split, nothing lost in
silence.
"""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("rasterio")
geopandas = pytest.importorskip("geopandas")
import rasterio  # noqa: E402
import shapely  # noqa: E402
from helpers.labelled_scene import CLASSES, LabelledScene, make_scene, rasterized  # noqa: E402
from helpers.raster_files import NORTH_UP, UTM, noise, save, write_shapes  # noqa: E402
from pycocotools import mask as rle  # noqa: E402
from pycocotools.coco import COCO  # noqa: E402

from xcit_mm.rasters.cutting import cut_rasters  # noqa: E402

SIZE = (400, 600)


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> LabelledScene:
    return make_scene(tmp_path_factory.mktemp("scene"), SIZE, step=80)


@pytest.fixture
def tiles(tmp_path) -> Path:
    return tmp_path / "tiles"


@pytest.fixture
def raster(tmp_path) -> Path:
    return save(tmp_path / "a.tif", noise(3, 200, 500), **UTM)


def cut_scene(scene: LabelledScene, folder: Path, is_detector: bool = True, **options: Any) -> Any:
    rasters = scene.rasters[0].parent
    options = dict(tile=200, overlap=50) | options
    return cut_rasters(rasters, scene.labels, folder, is_detector=is_detector, **options)


def cut(raster: Path, labels: Path, is_detector: bool = True, **options: Any) -> Any:
    options = dict(tile=100, overlap=0, hold_out=False) | options
    return cut_rasters(raster, labels, labels.parent / "tiles", is_detector=is_detector, **options)


def write_labels(folder: Path, *shapes: shapely.Geometry) -> Path:
    return write_shapes(folder / "labels.gpkg", shapes, "EPSG:32633")


def discs(stop: int) -> list[shapely.Geometry]:
    return [shapely.Point(x, 100).buffer(9) for x in range(20, stop, 40)]


def place_of(stem: str) -> tuple[str, int, int]:
    """Return raster, first row and column of a tile."""
    raster, row, column = stem.rsplit("-", 2)
    return raster, int(row), int(column)


def read_objects(folder: Path) -> list[tuple[str, int, int, dict]]:
    """Return raster, first row and column of the tile, and annotation of all objects."""
    objects = []
    for path in folder.glob("*.json"):
        dataset = json.loads(path.read_text())
        stems = {image["id"]: Path(image["file_name"]).stem for image in dataset["images"]}
        for annotation in dataset["annotations"]:
            objects.append((*place_of(stems[annotation["image_id"]]), annotation))
    return objects


def tile_places(folder: Path, split: str) -> list[tuple[str, int, int]]:
    paths = [path for path in folder.rglob("*.*") if path.parent.name == split]
    return [place_of(stem) for stem in sorted({path.stem for path in paths})]


def read_tiles(folder: Path) -> list[tuple[str, int, int, np.ndarray]]:
    """Return raster, first row and column, and pixels of the tiles of a folder."""
    paths = sorted(folder.glob("*.png"))
    return [(*place_of(path.stem), cv2.imread(str(path), cv2.IMREAD_UNCHANGED)) for path in paths]


def covered_pixels(places: list[tuple[str, int, int]]) -> np.ndarray:
    pixels = np.zeros((2, *SIZE), bool)
    for stem, row, column in places:
        pixels[int(stem[-1]), row : row + 200, column : column + 200] = True
    return pixels


class TestObjects:
    def test_polygons_laid_over_the_raster_are_those_of_the_labels(self, scene, tiles):
        cut_scene(scene, tiles, hold_out=False)  # whose border cuts objects
        shown = [set(), set()]
        for stem, row, column, annotation in read_objects(tiles):
            (ring,) = annotation["segmentation"]
            shape = shapely.Polygon(np.reshape(ring, (-1, 2)) + np.array([column, row]))
            index = int(stem[-1])
            overlap = shapely.area(shapely.intersection(scene.shapes[index], shape))
            number = int(overlap.argmax())
            whole = scene.shapes[index][number]
            tile = shapely.box(column, row, column + 200, row + 200)
            assert shape.hausdorff_distance(whole.intersection(tile)) < 0.5
            assert annotation["category_id"] == scene.numbers[index][number] + 1
            assert annotation["iscrowd"] == (shape.area < whole.area / 3)
            if shape.area > 0.99 * whole.area:
                shown[index].add(number)
        assert [len(numbers) for numbers in shown] == [len(shapes) for shapes in scene.shapes]

    def test_coco_reads_tiles_of_one_size(self, scene, tiles):
        cut_scene(scene, tiles, tile=250)
        truth = COCO(tiles / "train.json")
        assert [category["name"] for category in truth.cats.values()] == sorted(CLASSES)
        for image in truth.imgs.values():
            pixels = cv2.imread(str(tiles / "train" / image["file_name"]))
            assert pixels.shape == (250, 250, 3)
            for annotation in truth.imgToAnns[image["id"]]:
                area = truth.annToMask(annotation).sum()
                assert area == pytest.approx(annotation["area"], rel=0.1, abs=20)

    def test_each_kind_that_is_left_out_is_counted_in_a_line(self, scene, tiles, capsys):
        cut_scene(scene, tiles)
        lines = capsys.readouterr().err
        total = sum(map(len, scene.shapes)) + scene.outside
        for line in (
            f"{scene.invalid} shapes cross themselves",
            f"{scene.blank} polygons have no Class",
            f"{scene.outside} of {total} polygons lie outside",
            "without --aoi, labels count as complete",
        ):
            assert line in lines

    def test_boxes_have_no_masks(self, raster, tiles, tmp_path):
        labels = write_labels(tmp_path, *(shapely.box(x, 20, x + 30, 60) for x in (0, 110, 220)))
        cut(raster, labels)
        objects = [annotation for *_, annotation in read_objects(tiles)]
        assert not any(annotation["segmentation"] for annotation in objects)
        assert [30.0, 40.0] in [annotation["bbox"][2:] for annotation in objects]

    def test_holes_are_no_part_of_an_object(self, raster, tiles, tmp_path):
        ring = shapely.Point(75, 100).buffer(60).difference(shapely.Point(75, 100).buffer(30))
        cut(raster, write_labels(tmp_path, ring), tile=200)
        ((*_, annotation),) = read_objects(tiles)
        mask = rle.decode(annotation["segmentation"])
        assert mask.sum() == annotation["area"] == pytest.approx(ring.area, rel=0.01)

    def test_objects_that_no_tile_shows_by_a_third_are_counted(self, raster, tmp_path, capsys):
        labels = write_labels(tmp_path, shapely.box(20, 20, 480, 180), *discs(60))
        cut(raster, labels)
        assert "1 objects are in no tile by more than a third" in capsys.readouterr().err

    def test_tiles_without_an_object_stay_up_to_the_number_of_others(
        self, raster, tiles, tmp_path, capsys
    ):
        cut(raster, write_labels(tmp_path, shapely.Point(150, 150).buffer(9)))
        dataset = json.loads((tiles / "train.json").read_text())
        assert len(dataset["images"]) == 2 and len(dataset["annotations"]) == 1
        assert "left out tiles: 8 without an object\n" in capsys.readouterr().err


class TestMaps:
    def test_maps_are_the_polygons_in_their_classes(self, scene, tiles):
        cut_scene(scene, tiles, is_detector=False)
        assert (tiles / "classes.txt").read_text().split() == ["background", *sorted(CLASSES)]
        for split in ("train", "val"):
            for stem, row, column, labels in read_tiles(tiles / "annotations" / split):
                expected = rasterized(scene, int(stem[-1]), SIZE)
                expected = expected[row : row + 200, column : column + 200]
                height, width = expected.shape
                differing = (labels[:height, :width] != expected).mean()
                assert differing < 0.002 and (labels[:, width:] == 255).all()

    @pytest.mark.parametrize("nodata", [None, 0])
    def test_a_raster_of_classes_is_aligned_and_its_nodata_ignored(
        self, nodata, scene, tiles, tmp_path
    ):
        classes = rasterized(scene, 0, SIZE)
        classes[:50] = 255
        place = dict(crs="EPSG:32633", transform=scene.transforms[0], nodata=nodata)
        cut(scene.rasters[0], save(tmp_path / "c.tif", classes, **place), False, tile=200)
        expected = classes if nodata is None else np.where(classes == nodata, 255, classes)
        for _, row, column, labels in read_tiles(tiles / "annotations" / "train"):
            np.testing.assert_array_equal(labels, expected[row : row + 200, column : column + 200])
        lines = (tiles / "classes.txt").read_text().splitlines()
        assert lines == [f"class {number}" for number in range(4)]

    def test_class_numbers_beyond_8_bits_are_refused(self, raster, tmp_path):
        classes = save(tmp_path / "classes.tif", np.full((200, 500), 300, np.uint16), **UTM)
        with pytest.raises(ValueError, match="classes from 300 to 300: give 0 to 254"):
            cut(raster, classes, is_detector=False)


class TestSplits:
    @pytest.mark.parametrize("is_detector", [True, False])
    def test_no_pixel_is_in_both_splits(self, is_detector, scene, tiles):
        cut_scene(scene, tiles, is_detector)
        training = covered_pixels(tile_places(tiles, "train"))
        held_out = covered_pixels(tile_places(tiles, "val"))
        assert training.any() and held_out.any() and not (training & held_out).any()
        areas = geopandas.read_file(tiles / "held_out.gpkg")
        for transform, pixels, area in zip(scene.transforms, held_out, areas.geometry, strict=True):
            mask = rasterio.features.rasterize([area], SIZE, transform=transform).astype(bool)
            np.testing.assert_array_equal(mask, pixels)
            assert 0.1 < mask.mean() < 0.4

    def test_the_split_is_the_same_in_every_run(self, scene, tmp_path):
        for name in ("a", "b"):
            cut_scene(scene, tmp_path / name)
        for path in (tmp_path / "a").glob("*.json"):
            assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()

    @pytest.mark.parametrize(
        ("count", "first", "held_out"), [(5, 0, {4}), (6, 1, {5}), (5, 1, {1, 2, 3, 4})]
    )
    def test_of_five_rasters_in_the_area_a_whole_one_is_held_out(
        self, count, first, held_out, tiles, tmp_path
    ):
        scene = make_scene(tmp_path, (100, 100), count=count, step=50)
        area = shapely.box(12_000 * first - 1000, -1000, 99_999, 1000)
        cut_scene(scene, tiles, aoi=write_shapes(tmp_path / "aoi.gpkg", [area]))
        assert {int(stem[-1]) for stem, *_ in tile_places(tiles, "val")} == held_out
        trained = {int(stem[-1]) for stem, *_ in tile_places(tiles, "train")}
        assert trained == set(range(first, count)) - (held_out if len(held_out) == 1 else set())

    def test_without_validation_all_trains(self, scene, tiles):
        cut_scene(scene, tiles, hold_out=False)
        assert not (tiles / "val").exists()
        assert covered_pixels(tile_places(tiles, "train")).all()

    def test_a_raster_at_the_same_place_shows_nothing_that_is_held_out(self, tiles, tmp_path):
        folder = tmp_path / "rasters"
        folder.mkdir()
        for name, left in (("a", 0), ("b", 200)):
            transform = NORTH_UP * NORTH_UP.translation(left, 0)
            save(folder / f"{name}.tif", noise(3, 200, 500), **UTM | dict(transform=transform))
        cut(folder, write_labels(tmp_path, *discs(690)), hold_out=True)
        held_out = geopandas.read_file(tiles / "held_out.gpkg").geometry
        areas = held_out.affine_transform((~NORTH_UP).to_shapely()).union_all()
        for stem, row, column, image in read_tiles(tiles / "train"):
            left = column + (200 if stem == "b" else 0)
            tile = shapely.box(left, row, left + 100, row + 100)
            seen = np.count_nonzero(image.any(axis=2))
            assert seen == pytest.approx(tile.difference(areas).area, abs=201)


class TestArea:
    @pytest.mark.parametrize("is_detector", [True, False])
    def test_only_tiles_in_the_area_are_cut_and_pixels_outside_ignored(
        self, is_detector, raster, tiles, tmp_path
    ):
        area = shapely.box(60, 30, 300, 170)
        aoi = write_shapes(tmp_path / "aoi.gpkg", [area], "EPSG:32633")
        cut(raster, write_labels(tmp_path, *discs(490)), is_detector, aoi=aoi)
        cut_tiles = read_tiles(tiles / ("train" if is_detector else "annotations/train"))
        assert max(column for _, _, column, _ in cut_tiles) == 200
        for _, row, column, pixels in cut_tiles:
            seen = pixels.any(axis=2) if is_detector else pixels != 255
            tile = shapely.box(column, row, column + 100, row + 100)
            assert seen.sum() == tile.intersection(area).area

    def test_tiles_without_valid_pixels_are_counted(self, tmp_path, capsys):
        bands = noise(3, 100, 500)
        bands[:, :, 250:] = 0
        raster = save(tmp_path / "a.tif", bands, nodata=0, **UTM)
        cut(raster, write_labels(tmp_path, shapely.box(0, 20, 500, 70)), is_detector=False)
        assert "left out tiles: 2 without valid pixels\n" in capsys.readouterr().err

    def test_no_polygon_on_any_raster_is_an_error_with_both_extents(self, raster, tiles, tmp_path):
        labels = write_labels(tmp_path, shapely.box(9000, 0, 9100, 9))
        message = r"x 504500 to .* in EPSG:32633.*x 500000 to 500250, y .* in EPSG:32633"
        with pytest.raises(ValueError, match=message):
            cut(raster, labels)
        assert not tiles.exists()


class TestReading:
    def test_four_bands_keep_their_values_in_placed_files(self, tiles, tmp_path):
        scene = make_scene(tmp_path, SIZE, bands=4, step=80)
        result = cut_scene(scene, tiles, channels=4, raw=True, bands=[1, 2, 3, 4])
        assert result.settings["bands"] == [1, 2, 3, 4] and "bounds" not in result.settings
        pixels = []
        for path in sorted((tiles / "train").iterdir()):
            stem, row, column = place_of(path.stem)
            with rasterio.open(path) as tile, rasterio.open(scene.rasters[int(stem[-1])]) as source:
                window = rasterio.windows.Window(column, row, 200, 200)
                expected = source.read(window=window)
                np.testing.assert_array_equal(tile.read()[:, :, : expected.shape[2]], expected)
                assert tile.crs == source.crs
                assert tile.transform.almost_equals(source.window_transform(window))
            pixels.append(expected.reshape(4, -1))
        mean, deviation = result.statistics
        np.testing.assert_allclose(mean, np.concatenate(pixels, axis=1).mean(axis=1), rtol=1e-4)
        np.testing.assert_allclose(deviation, np.concatenate(pixels, axis=1).std(axis=1), rtol=1e-4)

    def test_larger_pixels_halve_the_shapes(self, scene, tiles):
        result = cut_scene(scene, tiles, gsd=1.0, tile=128, hold_out=False)
        assert result.settings["gsd"] == 1.0
        areas = [annotation["area"] for *_, annotation in read_objects(tiles)]
        largest = max(shapely.area(shapes).max() for shapes in scene.shapes)
        assert max(areas) == pytest.approx(largest / 4, rel=0.01)

    def test_all_rasters_have_one_scale(self, scene, tiles):
        low, high = np.reshape(cut_scene(scene, tiles).settings["bounds"], (3, 2)).T
        assert (low > 2500).all() and (low < 2800).all() and (high > 4000).all()

    def test_rasters_of_8_and_of_16_bits_need_bounds(self, scene, tmp_path):
        folder = tmp_path / "rasters"
        folder.mkdir()
        save(folder / "a.tif", noise(3, 20, 50), **UTM)
        (folder / "b.tif").symlink_to(scene.rasters[0])
        with pytest.raises(ValueError, match=r"a\.tif has 8 bits.*: give --bounds"):
            cut_rasters(folder, scene.labels, tmp_path / "tiles", is_detector=True)


def test_a_kill_leaves_nothing_that_looks_whole(scene, tiles, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr("xcit_mm.utils.atomic.shutil.rmtree", kill)
    monkeypatch.setattr("xcit_mm.rasters.cutting.ObjectTiles.finish", kill)
    with pytest.raises(Killed):
        cut_scene(scene, tiles)
    monkeypatch.undo()
    assert not tiles.exists()
    cut_scene(scene, tiles)
    with pytest.raises(FileExistsError, match=r"tiles exists: remove it"):
        cut_scene(scene, tiles)
