"""Parts of labelled rasters: each pixel in one split, and none outside the area."""

import geopandas
import numpy as np
import pytest
import rasterio
import shapely
from helpers.cut_tiles import (
    SIZE,
    covered_pixels,
    cut,
    cut_scene,
    discs,
    read_tiles,
    tile_places,
    write_labels,
)
from helpers.labelled_scene import make_scene
from helpers.raster_files import NORTH_UP, UTM, noise, save, write_shapes


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

    def test_no_polygon_on_any_raster_is_an_error_with_both_extents(self, raster, tiles, tmp_path):
        labels = write_labels(tmp_path, shapely.box(9000, 0, 9100, 9))
        message = r"x 504500 to .* in EPSG:32633.*x 500000 to 500250, y .* in EPSG:32633"
        with pytest.raises(ValueError, match=message):
            cut(raster, labels)
        assert not tiles.exists()
