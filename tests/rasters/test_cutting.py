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
from helpers.raster_files import NORTH_UP, UTM, save  # noqa: E402
from pycocotools import mask as rle  # noqa: E402
from pycocotools.coco import COCO  # noqa: E402

from xcit_mm.rasters.cutting import cut_rasters  # noqa: E402

SIZE = (400, 600)


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> LabelledScene:
    return make_scene(tmp_path_factory.mktemp("scene"), SIZE, step=80)


def cut(scene: LabelledScene, folder: Path, is_detector: bool = True, **options: Any) -> Any:
    rasters = scene.rasters[0].parent
    options = dict(tile=200, overlap=50) | options
    return cut_rasters(rasters, scene.labels, folder, is_detector=is_detector, **options)


def read_objects(folder: Path) -> list[tuple[str, int, int, dict]]:
    """Return raster, first row and column of the tile, and annotation of all objects."""
    objects = []
    for path in folder.glob("*.json"):
        content = json.loads(path.read_text())
        names = {image["id"]: Path(image["file_name"]).stem for image in content["images"]}
        for annotation in content["annotations"]:
            stem, row, column = names[annotation["image_id"]].rsplit("-", 2)
            objects.append((stem, int(row), int(column), annotation))
    return objects


def tile_places(folder: Path, split: str) -> list[tuple[str, int, int]]:
    paths = [path for path in folder.rglob("*.*") if path.parent.name == split]
    parts = sorted({path.stem for path in paths})
    return [
        (stem, int(row), int(column)) for stem, row, column in (p.rsplit("-", 2) for p in parts)
    ]


def covered_pixels(places: list[tuple[str, int, int]], side: int = 200) -> np.ndarray:
    pixels = np.zeros((2, *SIZE), bool)
    for stem, row, column in places:
        pixels[int(stem[-1]), row : row + side, column : column + side] = True
    return pixels


def write_polygons(path: Path, shapes: Any, **columns: Any) -> Path:
    """Write shapes in pixels of a raster at `NORTH_UP`."""
    placed = geopandas.GeoSeries(list(shapes), crs="EPSG:32633")
    placed = placed.affine_transform(NORTH_UP.to_shapely())
    geopandas.GeoDataFrame(columns, geometry=placed).to_file(path)
    return path


def noise(path: Path, size: tuple[int, int] = (200, 500), bands: int = 3, **profile: Any) -> Path:
    values = np.random.default_rng(0).integers(1, 250, (bands, *size)).astype(np.uint8)
    return save(path, values, **UTM | profile)


class TestObjects:
    def test_polygons_laid_over_the_raster_are_those_of_the_labels(self, scene, tmp_path):
        cut(scene, tmp_path / "tiles", hold_out=False)  # whose border cuts objects
        shown = [set(), set()]
        for stem, row, column, annotation in read_objects(tmp_path / "tiles"):
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

    def test_coco_reads_tiles_of_one_size(self, scene, tmp_path):
        cut(scene, tmp_path / "tiles", tile=250)
        truth = COCO(tmp_path / "tiles" / "train.json")
        assert [category["name"] for category in truth.cats.values()] == sorted(CLASSES)
        for image in truth.imgs.values():
            pixels = cv2.imread(str(tmp_path / "tiles" / "train" / image["file_name"]))
            assert pixels.shape == (250, 250, 3)
            for annotation in truth.imgToAnns[image["id"]]:
                mask = truth.annToMask(annotation).astype(bool)
                assert mask.sum() == pytest.approx(annotation["area"], rel=0.1, abs=20)

    def test_each_kind_that_is_left_out_is_counted_in_a_line(self, scene, tmp_path, capsys):
        cut(scene, tmp_path / "tiles")
        lines = capsys.readouterr().err
        total = sum(map(len, scene.shapes)) + scene.outside
        for line in (
            f"{scene.invalid} shapes cross themselves and are repaired",
            f"{scene.blank} polygons have no Class and are left out",
            f"{scene.outside} of {total} polygons lie outside of the area",
            "without --aoi, labels count as complete on all of the rasters",
        ):
            assert line in lines

    def test_boxes_have_no_masks(self, tmp_path):
        raster = noise(tmp_path / "a.tif")
        boxes = [shapely.box(left, 20, left + 30, 60) for left in range(0, 480, 40)]
        labels = write_polygons(tmp_path / "boxes.gpkg", boxes)
        cut_rasters(raster, labels, tmp_path / "tiles", is_detector=True, tile=200)
        objects = [annotation for *_, annotation in read_objects(tmp_path / "tiles")]
        assert not any(annotation["segmentation"] for annotation in objects)
        assert [30.0, 40.0] in [annotation["bbox"][2:] for annotation in objects]

    def test_holes_are_no_part_of_an_object(self, tmp_path):
        ring = shapely.Point(100, 100).buffer(60).difference(shapely.Point(100, 100).buffer(30))
        labels = write_polygons(tmp_path / "rings.gpkg", [ring])
        raster = noise(tmp_path / "a.tif", (200, 200))
        cut_rasters(raster, labels, tmp_path / "tiles", is_detector=True, tile=200, hold_out=False)
        ((*_, annotation),) = read_objects(tmp_path / "tiles")
        mask = rle.decode(annotation["segmentation"])
        assert mask.sum() == annotation["area"] == pytest.approx(ring.area, rel=0.01)

    def test_objects_that_no_tile_shows_by_a_third_are_counted(self, tmp_path, capsys):
        raster = noise(tmp_path / "a.tif", (400, 400))
        shapes = [shapely.box(20, 20, 380, 380), shapely.Point(60, 60).buffer(20)]
        labels = write_polygons(tmp_path / "labels.gpkg", shapes)
        options = dict(is_detector=True, tile=128, hold_out=False)
        cut_rasters(raster, labels, tmp_path / "tiles", **options)
        line = "1 objects are in no tile by more than a third, and ignored: give a larger --tile"
        assert line in capsys.readouterr().err

    def test_tiles_without_an_object_stay_up_to_the_number_of_others(self, tmp_path, capsys):
        raster = noise(tmp_path / "a.tif", (1000, 1000))
        labels = write_polygons(tmp_path / "l.gpkg", [shapely.Point(150, 150).buffer(9)])
        options = dict(is_detector=True, tile=100, overlap=0, hold_out=False)
        cut_rasters(raster, labels, tmp_path / "tiles", **options)
        content = json.loads((tmp_path / "tiles" / "train.json").read_text())
        assert len(content["images"]) == 2 and len(content["annotations"]) == 1
        assert "left out tiles: 98 without an object\n" in capsys.readouterr().err


class TestMaps:
    def test_maps_are_the_polygons_in_their_classes(self, scene, tmp_path):
        cut(scene, tmp_path / "tiles", is_detector=False)
        names = (tmp_path / "tiles" / "classes.txt").read_text().split()
        assert names == ["background", *sorted(CLASSES)]
        for split in ("train", "val"):
            for stem, row, column in tile_places(tmp_path / "tiles" / "images", split):
                path = tmp_path / "tiles" / "annotations" / split / f"{stem}-{row}-{column}.png"
                labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
                expected = rasterized(scene, int(stem[-1]), SIZE)
                expected = expected[row : row + 200, column : column + 200]
                height, width = expected.shape
                differing = (labels[:height, :width] != expected).mean()
                assert differing < 0.002 and (labels[:, width:] == 255).all()

    @pytest.mark.parametrize("nodata", [None, 0])
    def test_a_raster_of_classes_is_aligned_and_its_nodata_ignored(self, nodata, scene, tmp_path):
        classes = rasterized(scene, 0, SIZE)
        classes[:50] = 255
        place = dict(crs="EPSG:32633", transform=scene.transforms[0], nodata=nodata)
        labels = save(tmp_path / "classes.tif", classes, **place)
        options = dict(is_detector=False, tile=200, hold_out=False)
        cut_rasters(scene.rasters[0], labels, tmp_path / "tiles", **options)
        ignored = [255] if nodata is None else [255, nodata]
        expected = np.where(np.isin(classes, ignored), 255, classes)
        for stem, row, column in tile_places(tmp_path / "tiles" / "images", "train"):
            path = tmp_path / "tiles" / "annotations" / "train" / f"{stem}-{row}-{column}.png"
            labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
            np.testing.assert_array_equal(labels, expected[row : row + 200, column : column + 200])
        lines = (tmp_path / "tiles" / "classes.txt").read_text().splitlines()
        assert lines == [f"class {number}" for number in range(4)]


class TestSplits:
    @pytest.mark.parametrize("is_detector", [True, False])
    def test_no_pixel_is_in_both_splits(self, is_detector, scene, tmp_path):
        cut(scene, tmp_path / "tiles", is_detector)
        training, held_out = (
            covered_pixels(tile_places(tmp_path / "tiles", split)) for split in ("train", "val")
        )
        assert training.any() and held_out.any() and not (training & held_out).any()
        areas = geopandas.read_file(tmp_path / "tiles" / "held_out.gpkg")
        for transform, pixels, area in zip(scene.transforms, held_out, areas.geometry, strict=True):
            mask = rasterio.features.rasterize([area], SIZE, transform=transform).astype(bool)
            np.testing.assert_array_equal(mask, pixels)
            assert 0.1 < mask.mean() < 0.4

    def test_the_split_is_the_same_in_every_run(self, scene, tmp_path):
        for name in ("a", "b"):
            cut(scene, tmp_path / name)
        for path in (tmp_path / "a").glob("*.json"):
            assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()

    def test_of_five_rasters_a_whole_one_is_held_out(self, tmp_path):
        scene = make_scene(tmp_path, (200, 200), count=6, step=60)
        cut(scene, tmp_path / "tiles")
        assert {stem for stem, *_ in tile_places(tmp_path / "tiles", "val")} == {"scene4"}
        assert len({stem for stem, *_ in tile_places(tmp_path / "tiles", "train")}) == 5

    def test_without_validation_all_trains(self, scene, tmp_path):
        cut(scene, tmp_path / "tiles", hold_out=False)
        assert not (tmp_path / "tiles" / "val").exists()
        assert covered_pixels(tile_places(tmp_path / "tiles", "train")).all()

    def test_a_raster_at_the_same_place_shows_nothing_that_is_held_out(self, tmp_path):
        (tmp_path / "rasters").mkdir()
        for name, left in (("a", 0), ("b", 200)):
            transform = NORTH_UP * NORTH_UP.translation(left, 0)
            noise(tmp_path / "rasters" / f"{name}.tif", transform=transform)
        shapes = [shapely.Point(x, 100).buffer(9) for x in range(20, 690, 40)]
        labels = write_polygons(tmp_path / "labels.gpkg", shapes)
        options = dict(is_detector=True, tile=100, overlap=0)
        cut_rasters(tmp_path / "rasters", labels, tmp_path / "tiles", **options)
        held_out = geopandas.read_file(tmp_path / "tiles" / "held_out.gpkg").geometry
        areas = held_out.affine_transform((~NORTH_UP).to_shapely()).union_all()
        for stem, row, column in tile_places(tmp_path / "tiles", "train"):
            image = cv2.imread(str(tmp_path / "tiles" / "train" / f"{stem}-{row}-{column}.png"))
            left = column + (200 if stem == "b" else 0)
            tile = shapely.box(left, row, left + 100, row + 100)
            seen = np.count_nonzero(image.any(axis=2))
            assert seen == pytest.approx(tile.difference(areas).area, abs=201)


class TestArea:
    AREA = shapely.box(60, 30, 300, 170)

    @pytest.mark.parametrize("is_detector", [True, False])
    def test_only_tiles_in_the_area_are_cut_and_pixels_outside_ignored(self, is_detector, tmp_path):
        raster = noise(tmp_path / "a.tif")
        shapes = [shapely.Point(x, 100).buffer(9) for x in range(20, 490, 40)]
        labels = write_polygons(tmp_path / "labels.gpkg", shapes)
        aoi = write_polygons(tmp_path / "aoi.gpkg", [self.AREA])
        options = dict(is_detector=is_detector, tile=100, overlap=0, hold_out=False)
        cut_rasters(raster, labels, tmp_path / "tiles", aoi=aoi, **options)
        split = tmp_path / "tiles" / ("train" if is_detector else "annotations/train")
        places = tile_places(split.parent, "train")
        assert max(column for *_, column in places) == 200
        for stem, row, column in places:
            file = cv2.imread(str(split / f"{stem}-{row}-{column}.png"), cv2.IMREAD_UNCHANGED)
            seen = file.any(axis=2) if is_detector else file != 255
            tile = shapely.box(column, row, column + 100, row + 100)
            assert seen.sum() == tile.intersection(self.AREA).area

    def test_rasters_beside_the_area_are_left_out(self, scene, tmp_path):
        shape = shapely.affinity.affine_transform(
            shapely.box(100, 100, 500, 300), scene.transforms[1].to_shapely()
        )
        geopandas.GeoSeries([shape], crs="EPSG:32633").to_file(tmp_path / "aoi.gpkg")
        cut(scene, tmp_path / "tiles", aoi=tmp_path / "aoi.gpkg")
        for split in ("train", "val"):
            places = tile_places(tmp_path / "tiles", split)
            assert {stem for stem, *_ in places} == {"scene1"}

    def test_tiles_without_valid_pixels_are_counted(self, tmp_path, capsys):
        values = np.random.default_rng(0).integers(1, 250, (3, 100, 500)).astype(np.uint8)
        values[:, :, 250:] = 0
        raster = save(tmp_path / "a.tif", values, nodata=0, **UTM)
        labels = write_polygons(tmp_path / "labels.gpkg", [shapely.box(0, 20, 500, 70)])
        options = dict(is_detector=False, tile=100, overlap=0, hold_out=False)
        cut_rasters(raster, labels, tmp_path / "tiles", **options)
        assert "left out tiles: 2 without valid pixels\n" in capsys.readouterr().err

    def test_no_polygon_on_any_raster_is_an_error_with_both_extents(self, tmp_path):
        raster = noise(tmp_path / "a.tif")
        labels = write_polygons(tmp_path / "labels.gpkg", [shapely.box(9000, 0, 9100, 9)])
        message = (
            r"\(x 504500 to .* in EPSG:32633\) has no polygon in the area "
            r"\(x 500000 to 500250, y 5399900 to 5400000 in EPSG:32633\)$"
        )
        with pytest.raises(ValueError, match=message):
            cut_rasters(raster, labels, tmp_path / "tiles", is_detector=True)
        assert not (tmp_path / "tiles").exists()


class TestReading:
    def test_four_bands_keep_their_values_in_placed_files(self, tmp_path):
        scene = make_scene(tmp_path, SIZE, bands=4, step=80)
        options = dict(channels=4, raw=True, bands=[1, 2, 3, 4])
        tiles = cut(scene, tmp_path / "tiles", **options)
        assert tiles.settings["bands"] == [1, 2, 3, 4] and "bounds" not in tiles.settings
        values = []
        for path in sorted((tmp_path / "tiles" / "train").iterdir()):
            stem, row, column = path.stem.rsplit("-", 2)
            with rasterio.open(path) as tile, rasterio.open(scene.rasters[int(stem[-1])]) as source:
                window = rasterio.windows.Window(int(column), int(row), 200, 200)
                expected = source.read(window=window)
                np.testing.assert_array_equal(tile.read()[:, :, : expected.shape[2]], expected)
                assert tile.crs == source.crs
                assert tile.transform.almost_equals(source.window_transform(window))
            values.append(expected.reshape(4, -1))
        mean, deviation = tiles.statistics
        np.testing.assert_allclose(mean, np.concatenate(values, axis=1).mean(axis=1), rtol=1e-4)
        np.testing.assert_allclose(deviation, np.concatenate(values, axis=1).std(axis=1), rtol=1e-4)

    def test_larger_pixels_halve_the_shapes(self, scene, tmp_path):
        tiles = cut(scene, tmp_path / "tiles", gsd=1.0, tile=128, hold_out=False)
        assert tiles.settings["gsd"] == 1.0
        areas = [annotation["area"] for *_, annotation in read_objects(tmp_path / "tiles")]
        largest = max(shapely.area(shapes).max() for shapes in scene.shapes)
        assert max(areas) == pytest.approx(largest / 4, rel=0.01)

    def test_all_rasters_have_one_scale(self, scene, tmp_path):
        tiles = cut(scene, tmp_path / "tiles")
        low, high = np.reshape(tiles.settings["bounds"], (3, 2)).T
        assert (low > 2500).all() and (low < 2800).all() and (high > 4000).all()

    def test_rasters_of_8_and_of_16_bits_need_bounds(self, scene, tmp_path):
        folder = tmp_path / "rasters"
        folder.mkdir()
        noise(folder / "a.tif")
        (folder / "b.tif").symlink_to(scene.rasters[0])
        with pytest.raises(
            ValueError, match=r"a\.tif has 8 bits, and other rasters have more: give"
        ):
            cut_rasters(folder, scene.labels, tmp_path / "tiles", is_detector=True)


def test_a_kill_leaves_nothing_that_looks_whole(scene, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr("xcit_mm.utils.atomic.shutil.rmtree", kill)
    monkeypatch.setattr("xcit_mm.rasters.cutting.TileWriter.finish", kill)
    monkeypatch.setattr("xcit_mm.rasters.cutting.ObjectTiles.finish", kill)
    with pytest.raises(Killed):
        cut(scene, tmp_path / "tiles")
    monkeypatch.undo()
    assert not (tmp_path / "tiles").exists()
    cut(scene, tmp_path / "tiles")
    with pytest.raises(FileExistsError, match=r"tiles exists: remove it"):
        cut(scene, tmp_path / "tiles")
