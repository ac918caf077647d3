"""Labelled rasters as tiles: each label in its place, each value as stored."""

import json
import re

import numpy as np
import pytest
import rasterio
import shapely
from helpers.cut_tiles import (
    SIZE,
    cut,
    cut_scene,
    discs,
    place_of,
    read_objects,
    read_tiles,
    write_labels,
)
from helpers.labelled_scene import CLASSES, make_scene, rasterized
from helpers.raster_files import UTM, noise, save, write_shapes
from pycocotools import mask as rle

from xcit_mm.datasets.old_writing import is_current, read_state, write_dataset


class TestObjects:
    def test_polygons_laid_over_the_raster_are_those_of_the_labels(self, scene, tiles, capsys):
        cut_scene(scene, tiles, hold_out=False)  # whose border cuts objects
        assert not (tiles / "val").exists()
        lines = capsys.readouterr().err
        total = sum(map(len, [*scene.shapes, *scene.ignored])) + scene.outside
        assert f"{scene.outside} of {total} polygons lie outside" in lines
        assert "without --aoi, labels count as complete" in lines
        (line,) = re.findall("the tiles show (.*)", lines)
        count = r"(\d+)(?= of| labels| outside| without| in no)"
        number_shown, number, *left_out = map(int, re.findall(count, line))
        assert number_shown == sum(map(len, scene.shapes)) and number == total
        assert number_shown + sum(left_out) == number
        shown = [set(), set()]
        ignored = set()
        for stem, row, column, annotation in read_objects(tiles):
            (ring,) = annotation["segmentation"]
            shape = shapely.Polygon(np.reshape(ring, (-1, 2)) + np.array([column, row]))
            index = int(stem[-1])
            if shape.centroid.intersects(shapely.union_all(scene.ignored[index])):
                ignored.add((index, annotation["category_id"]))
                assert annotation["iscrowd"]
                continue
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
        # What has no class is ignored in every class.
        assert ignored == {(index, number) for index in (0, 1) for number in (1, 2, 3)}

    @pytest.mark.parametrize("suffix", ["gpkg", "shp"])
    def test_corrected_classes_are_noticed(self, suffix, raster, tmp_path):
        labels = write_shapes(tmp_path / f"l.{suffix}", [shapely.box(9, 9, 60, 60)], name=["oak"])
        dataset = cut(raster, labels).dataset
        write_dataset(dataset, raster, tmp_path / "copies")
        state = read_state(tmp_path / "copies")
        assert is_current(state, str(raster))
        write_shapes(labels, [shapely.box(9, 9, 60, 60)], name=["fir"])
        assert not is_current(state, str(raster))

    def test_boxes_have_no_masks(self, raster, tiles, tmp_path):
        labels = write_labels(tmp_path, *(shapely.box(x, 20, x + 30, 60) for x in (0, 110, 220)))
        cut(raster, labels)
        with pytest.raises(FileExistsError, match="tiles exists: remove it"):
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
        assert "left out: 1 in no tile by more than a third\n" in capsys.readouterr().err

    def test_objects_on_nodata_are_ignored_and_counted(self, tiles, tmp_path, capsys):
        bands = noise(3, 100, 300)
        bands[:, :, 150:] = 0
        raster = save(tmp_path / "a.tif", bands, nodata=0, **UTM)
        shapes = (shapely.box(x, 20, x + 40, 60) for x in (20, 125, 135, 220))
        cut(raster, write_labels(tmp_path, *shapes))
        objects = [annotation for *_, annotation in read_objects(tiles)]
        assert [annotation["iscrowd"] for annotation in objects] == [0, 0, 1]
        lines = capsys.readouterr().err
        assert "left out tiles: 1 without valid pixels\n" in lines
        assert "show 2 of 4 labels (50.0%); left out: 2 without data in the raster\n" in lines

    def test_labels_without_data_alone_are_an_error(self, tiles, tmp_path):
        bands = noise(3, 100, 100)
        bands[:, :, 50:] = 0
        raster = save(tmp_path / "a.tif", bands, nodata=0, **UTM)
        with pytest.raises(
            ValueError, match=r"show 0 of 1 labels .*: 1 without data in the raster"
        ):
            cut(raster, write_labels(tmp_path, shapely.box(60, 20, 90, 60)))
        assert not tiles.exists()

    def test_tiles_without_an_object_stay_up_to_the_number_of_others(
        self, raster, tiles, tmp_path, capsys
    ):
        cut(raster, write_labels(tmp_path, shapely.Point(150, 150).buffer(9)))
        dataset = json.loads((tiles / "train.json").read_text())
        assert len(dataset["images"]) == 2 and len(dataset["annotations"]) == 1
        assert "left out tiles: 8 without an object\n" in capsys.readouterr().err

    def test_an_object_on_nodata_keeps_no_tile_without_an_object(self, tiles, tmp_path, capsys):
        bands = noise(3, 100, 600)
        bands[:, 50:, :200] = 0
        raster = save(tmp_path / "a.tif", bands, nodata=0, **UTM)
        shapes = (shapely.box(x, 60, x + 30, 90) for x in (20, 120, 220))
        cut(raster, write_labels(tmp_path, *shapes))
        assert len(json.loads((tiles / "train.json").read_text())["images"]) == 4
        assert "left out tiles: 2 without an object\n" in capsys.readouterr().err


class TestMaps:
    def test_maps_are_the_polygons_in_their_classes(self, scene, tiles):
        cut_scene(scene, tiles, is_detector=False)
        assert (tiles / "classes.txt").read_text().split() == ["background", *sorted(CLASSES)]
        for split in ("train", "val"):
            for stem, row, column, labels in read_tiles(tiles / "annotations" / split):
                expected = rasterized(scene, int(stem[-1]), SIZE)
                expected = expected[row : row + 200, column : column + 200]
                height, width = expected.shape
                assert labels.shape == (200, 200)
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

    def test_class_numbers_beyond_8_bits_leave_no_tiles(self, raster, tiles, tmp_path):
        classes = save(tmp_path / "classes.tif", np.full((200, 500), 300, np.uint16), **UTM)
        with pytest.raises(ValueError, match="classes from 300 to 300: give 0 to 254"):
            cut(raster, classes, is_detector=False)
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
                assert tile.shape == (200, 200)
                window = rasterio.windows.Window(column, row, 200, 200)
                expected = source.read(window=window)
                np.testing.assert_array_equal(tile.read()[:, :, : expected.shape[2]], expected)
                assert tile.crs == source.crs
                assert tile.transform.almost_equals(source.window_transform(window))
            pixels.append(expected.reshape(4, -1))
        mean, deviation = result.statistics
        np.testing.assert_allclose(mean, np.concatenate(pixels, axis=1).mean(axis=1), rtol=1e-4)
        np.testing.assert_allclose(deviation, np.concatenate(pixels, axis=1).std(axis=1), rtol=1e-4)

    def test_all_rasters_have_one_size_of_pixels_and_one_scale(self, scene, tiles):
        settings = cut_scene(scene, tiles, gsd=1.0, tile=128, hold_out=False).settings
        areas = [annotation["area"] for *_, annotation in read_objects(tiles)]
        largest = max(shapely.area(shapes).max() for shapes in scene.shapes)
        assert settings["gsd"] == 1.0 and max(areas) == pytest.approx(largest / 4, rel=0.01)
        low, high = np.reshape(settings["bounds"], (3, 2)).T
        assert (low > 2500).all() and (low < 2900).all() and (high > 4000).all()

    def test_rasters_of_8_and_of_16_bits_need_bounds(self, scene, tmp_path):
        folder = tmp_path / "rasters"
        folder.mkdir()
        save(folder / "a.tif", noise(3, 20, 50), **UTM)
        (folder / "b.tif").symlink_to(scene.rasters[0])
        with pytest.raises(ValueError, match=r"a\.tif has 8 bits.*: give --bounds"):
            cut(folder, scene.labels)


@pytest.mark.parametrize(
    ("names", "place", "message"),
    [
        ([], {}, "has no rasters"),
        (["a.tif", "a.tiff"], UTM, "rasters of the same name"),
        (["a.tif", "b.tif"], {}, "rasters without a place: cut each by itself"),
    ],
)
def test_folders_that_cannot_be_cut_are_one_line(names, place, message, tmp_path):
    (tmp_path / "rasters").mkdir()
    for name in names:
        save(tmp_path / "rasters" / name, noise(3, 20, 50), **place)
    with pytest.raises((ValueError, OSError), match=message):
        cut(tmp_path / "rasters", tmp_path / "labels.gpkg")
