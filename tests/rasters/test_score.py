"""Scores of results against labels, as a user counts them by hand."""

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rasterio")
geopandas = pytest.importorskip("geopandas")
import shapely  # noqa: E402
from helpers.perfect_detector import CLASSES, PerfectDetector, Scene, class_of  # noqa: E402
from helpers.pixel_segmentor import PixelSegmentor  # noqa: E402
from helpers.raster_files import NORTH_UP, UTM, save  # noqa: E402
from rasterio.transform import Affine  # noqa: E402
from shapely.affinity import translate  # noqa: E402

from xcit_mm import predict_raster, score_raster  # noqa: E402
from xcit_mm.prediction.seams import outline  # noqa: E402


def in_pixels(shapes: Any, **columns: Any) -> Any:
    """Return shapes in pixels of a raster at `NORTH_UP` as a GeoDataFrame."""
    placed = geopandas.GeoSeries(list(shapes)).affine_transform(NORTH_UP.to_shapely())
    return geopandas.GeoDataFrame(columns, geometry=placed, crs="EPSG:32633")


def write(path: Path, shapes: Any, crs: str = "EPSG:4326", **columns: Any) -> Path:
    """Write labels in pixels to a vector file."""
    labels = in_pixels(shapes, **columns).to_crs(crs)
    labels.to_parquet(path) if path.suffix == ".parquet" else labels.to_file(path)
    return path


def write_objects(path: Path, shapes: Any, scores: Any, classes: Any) -> Path:
    """Write a result in pixels."""
    columns = {"class": classes, "score": scores, "area": 1.0, "cut": False}
    in_pixels(shapes, **columns).to_file(path, layer=path.stem)
    return path


def boxes(*lefts: float, size: float = 10) -> list[shapely.Geometry]:
    return [shapely.box(left, 0, left + size, size) for left in lefts]


class TestObjects:
    @pytest.fixture(scope="class")
    def scene(self, tmp_path_factory) -> tuple[Path, Path, list, list[str]]:
        """A raster, the objects that a perfect detector finds, and its shapes and classes."""
        folder = tmp_path_factory.mktemp("scene")
        scene = Scene(300, 400).add_random(6, 60, 120).add_random(120, 8, 30)
        raster = save(folder / "a.tif", scene.image[..., ::-1].transpose(2, 0, 1), **UTM)
        out = predict_raster(raster, PerfectDetector(), folder / "a.gpkg", tile=96, overlap=24)
        numbers = range(1, scene.count + 1)
        shapes = [outline(scene.numbers == number, (0, 0)) for number in numbers]
        return raster, out, shapes, [CLASSES[class_of(number)] for number in numbers]

    @pytest.mark.parametrize(
        ("suffix", "crs"), [("gpkg", "EPSG:4326"), ("parquet", "EPSG:3857"), ("shp", "EPSG:32633")]
    )
    def test_a_perfect_detector_misses_nothing(self, suffix, crs, scene, tmp_path):
        raster, out, shapes, classes = scene
        labels = write(tmp_path / f"labels.{suffix}", shapes, crs, label=classes)
        scores = score_raster(out, labels, raster=raster)
        assert list(scores.index) == [*sorted(set(classes)), "all"]
        assert (scores[["AP50", "precision", "recall", "F1"]] == 1).all(axis=None)
        assert scores["objects"].tolist() == [*map(classes.count, sorted(set(classes))), 120]
        assert (scores["matched"] == scores["objects"]).all()
        assert (scores[["missed", "false"]] == 0).all(axis=None)
        assert len(geopandas.read_file(out, layer="matched")) == 120

    def test_labels_shifted_by_half_their_width_are_all_missed(self, scene, tmp_path):
        *_, shapes, classes = scene
        squares = [shape.envelope for shape in shapes]
        result = write_objects(tmp_path / "b.gpkg", squares, 0.9, classes)
        widths = [square.bounds[2] - square.bounds[0] for square in squares]
        shifted = [translate(*each) for each in zip(squares, np.divide(widths, 2), strict=True)]
        scores = score_raster(result, write(tmp_path / "labels.gpkg", shifted, label=classes))
        assert scores.loc["all", ["AP50", "matched"]].tolist() == [0, 0]
        assert scores.loc["all", ["objects", "missed"]].tolist() == [120, 120]

    def test_counts_and_layers_are_those_by_hand(self, tmp_path):
        """Of three oaks, one is found twice, one badly and one as a birch; a birch is invented."""
        out = write_objects(
            tmp_path / "out.gpkg",
            boxes(0, 1, 26, 40, 60, 80),
            [0.9, 0.8, 0.7, 0.6, 0.5, 0.4],
            ["oak", "oak", "oak", "birch", "birch", "oak"],
        )
        labels = write(
            tmp_path / "labels.gpkg",
            boxes(0, 20, 40, 80, 100),
            Class=["oak", "oak", "oak", "oak", "birch"],
        )
        scores = score_raster(out, labels)
        # 2 of 6 objects are right, the last of which has the score of the best F1.
        assert scores.loc["all"].to_dict() == pytest.approx(
            dict(
                AP50=(26 + 25 * 0.5) / 101 / 2,
                precision=2 / 6,
                recall=2 / 5,
                F1=4 / 11,
                objects=5,
                matched=2,
                missed=3,
                false=4,
                score=0.4,
            )
        )
        assert scores.loc["birch", "AP50"] == 0 and scores.loc["oak", "matched"] == 2
        layers = {name: geopandas.read_file(out, layer=name) for name in ("missed", "false")}
        assert sorted(layers["missed"]["class"]) == ["birch", "oak", "oak"]
        assert layers["false"]["score"].tolist() == [0.8, 0.7, 0.6, 0.5]
        missed = in_pixels(boxes(20, 100)).total_bounds
        np.testing.assert_allclose(layers["missed"].total_bounds, missed, atol=0.01)
        assert score_raster(out, labels).equals(scores)  # whose layers replace those before

    def test_a_full_disk_leaves_the_result_as_it_was(self, tmp_path):
        out = write_objects(tmp_path / "o.gpkg", boxes(0, 20), [0.9, 0.8], ["oak", "fir"])
        labels = write(tmp_path / "labels.geojson", boxes(0, 20))
        before = out.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5000, limits[1]))
        try:
            with pytest.raises(OSError, match=r"^[^\n]*o\.gpkg cannot be written [^\n]*$"):
                score_raster(out, labels)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert out.read_bytes() == before
        assert score_raster(out, labels).loc["all", "F1"] == 1
        assert sorted(tmp_path.iterdir()) == [labels, out]

    def test_average_precision_is_that_of_pycocotools(self, tmp_path):
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        rng = np.random.default_rng(0)
        lefts = np.arange(0, 60 * 20, 20)
        found = lefts + rng.integers(-6, 7, 60)
        scores = rng.permutation(60) / 100 + 0.1
        classes = np.array(CLASSES)[rng.integers(0, 4, 60)]
        out = write_objects(tmp_path / "a.gpkg", boxes(*found), scores, classes)
        labels = write(tmp_path / "labels.gpkg", boxes(*lefts[10:]), type=classes[10:])
        result = score_raster(out, labels)
        truth = COCO()
        names = sorted(set(classes))
        truth.dataset = dict(
            images=[dict(id=1)],
            categories=[dict(id=number) for number in range(4)],
            annotations=[
                dict(
                    id=number + 1,
                    image_id=1,
                    category_id=names.index(name),
                    iscrowd=0,
                    area=100,
                    bbox=[left, 0, 10, 10],
                )
                for number, (left, name) in enumerate(
                    zip(lefts[10:].tolist(), classes[10:], strict=True)
                )
            ],
        )
        truth.createIndex()
        predictions = truth.loadRes(
            [
                dict(image_id=1, category_id=names.index(name), score=score, bbox=[left, 0, 10, 10])
                for left, name, score in zip(found.tolist(), classes, scores, strict=True)
            ]
        )
        evaluation = COCOeval(truth, predictions, "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        expected = evaluation.eval["precision"][0, :, :, 0, 2].mean(axis=0)
        np.testing.assert_allclose(result.loc[names, "AP50"], expected)
        assert 0.2 < result.loc["all", "AP50"] < 0.9

    @pytest.mark.parametrize("limit", ["aoi", "raster", "both"])
    def test_only_what_has_its_centre_in_the_area_counts(self, limit, tmp_path, capsys):
        raster = save(tmp_path / "a.tif", np.zeros((3, 20, 50), np.uint8), **UTM)
        out = write_objects(tmp_path / "o.gpkg", boxes(0, 20, 44, 60), [0.9] * 4, ["oak"] * 4)
        labels = write(tmp_path / "labels.gpkg", boxes(0, 20, 44, 80), name=["oak"] * 4)
        aoi = write(tmp_path / "area.gpkg", [shapely.box(16, -5, 90, 40)])
        places = dict(aoi=dict(aoi=aoi), raster=dict(raster=raster))
        places["both"] = places["aoi"] | places["raster"]
        scores = score_raster(out, labels, **places[limit]).loc["all"]
        counted = dict(aoi=[3, 2, 1, 1], raster=[3, 3, 0, 0], both=[2, 2, 0, 0])[limit]
        assert scores[["objects", "matched", "missed", "false"]].tolist() == counted
        line = f"--labels {labels}: {4 - counted[0]} of 4 polygons lie outside of the area\n"
        assert line in capsys.readouterr().err

    def test_labels_without_a_column_of_classes_are_of_any_class(self, tmp_path):
        out = write_objects(tmp_path / "o.gpkg", boxes(0, 20), [0.9, 0.8], ["oak", "fir"])
        scores = score_raster(out, write(tmp_path / "labels.geojson", boxes(0, 20)))
        assert list(scores.index) == ["object", "all"] and scores.loc["all", "F1"] == 1

    def test_what_is_no_label_is_counted_in_a_line(self, tmp_path, capsys):
        out = write_objects(tmp_path / "o.gpkg", boxes(0, 20), [0.9, 0.8], ["1", "2"])
        crossing = shapely.Polygon([(20, 0), (29, 10), (30, 10), (30, 0), (29, 0), (20, 10)])
        shapes = [*boxes(0), crossing, *boxes(40), shapely.Point(0, 0), shapely.Polygon()]
        labels = write(tmp_path / "labels.gpkg", shapes, number=[1, 2, None, 1, 1])
        scores = score_raster(out, labels, class_column="number")
        assert scores.loc["all", ["objects", "matched"]].tolist() == [2, 2]
        lines = capsys.readouterr().err
        for line in (
            "1 empty shapes are left out",
            "1 points or lines are left out",
            "1 shapes cross themselves and are repaired",
            "1 polygons have no number and are left out",
        ):
            assert f"--labels {labels}: {line}\n" in lines

    def test_no_label_in_the_area_is_an_error_with_both_extents(self, tmp_path):
        raster = save(tmp_path / "a.tif", np.zeros((3, 20, 50), np.uint8), **UTM)
        out = write_objects(tmp_path / "o.gpkg", boxes(0), [0.9], ["oak"])
        labels = write(tmp_path / "labels.gpkg", boxes(200), "EPSG:32633")
        area = r"\(x 500000 to 500025, y 5399990 to 5400000 in EPSG:32633\)"
        with pytest.raises(ValueError, match=rf"\(x 500100 to .*\) has no polygon in .* {area}$"):
            score_raster(out, labels, raster=raster)

    @pytest.mark.parametrize(
        ("columns", "class_column", "message"),
        [
            (
                dict(kind=["a"]),
                "species",
                r"--class-column species: .* no such column, give .*kind",
            ),
            (dict(type=[None]), None, "no polygon has a type: give --class-column"),
        ],
    )
    def test_labels_without_a_class_are_an_error(self, columns, class_column, message, tmp_path):
        out = write_objects(tmp_path / "o.gpkg", boxes(0), [0.9], ["oak"])
        labels = write(tmp_path / "labels.gpkg", boxes(0), **columns)
        with pytest.raises(ValueError, match=message):
            score_raster(out, labels, class_column=class_column)

    @pytest.mark.parametrize("suffix", [".gpkg", ".geojson", ".parquet"])
    def test_a_result_without_objects_misses_all(self, suffix, tmp_path):
        raster = save(tmp_path / "a.tif", np.zeros((3, 40, 50), np.uint8), **UTM)
        out = predict_raster(raster, PerfectDetector(), tmp_path / f"o{suffix}", tile=64)
        labels = write(tmp_path / "labels.gpkg", boxes(0, 20), name=["oak", "fir"])
        scores = score_raster(out, labels, raster=raster).loc["all"]
        assert scores[["AP50", "recall", "missed", "false"]].tolist() == [0, 0, 2, 0]

    def test_a_file_that_is_no_result_is_an_error(self, tmp_path):
        labels = write(tmp_path / "labels.gpkg", boxes(0), label=["oak"])
        with pytest.raises(
            ValueError, match=r"labels\.gpkg is no table of objects: it lacks class"
        ):
            score_raster(labels, labels)

    @pytest.mark.parametrize("suffix", [".geojson", ".parquet"])
    def test_other_formats_are_scored_and_stay_as_they_are(self, suffix, tmp_path):
        scene = Scene(100, 120).add_random(9, 12, 30)
        raster = save(tmp_path / "a.tif", scene.image[..., ::-1].transpose(2, 0, 1), **UTM)
        out = predict_raster(raster, PerfectDetector(), tmp_path / f"o{suffix}", tile=128)
        before = out.read_bytes()
        shapes = [outline(scene.numbers == number, (0, 0)) for number in range(1, 10)]
        labels = write(tmp_path / "labels.gpkg", shapes)
        assert score_raster(out, labels).loc["all", "F1"] == 1 and out.read_bytes() == before


class TestMaps:
    NAMES = ("background", "road", "house")

    @pytest.fixture(params=[NORTH_UP, Affine(0.3, 0.4, 5e5, 0.4, -0.3, 54e5)])
    def predicted(self, request, tmp_path) -> tuple[Path, np.ndarray]:
        """A map of three classes with 300 pixels without data, and its class numbers."""
        values = np.random.default_rng(0).integers(1, 9, (3, 12, 15)).repeat(20, 1).repeat(20, 2)
        values[:, :10, :30] = 0
        place = dict(crs="EPSG:32633", transform=request.param)
        raster = save(tmp_path / "a.tif", values.astype(np.uint8), nodata=0, **place)
        segmentor = PixelSegmentor(list(self.NAMES))
        out = predict_raster(raster, segmentor, tmp_path / "map.tif", tile=128)
        classes = segmentor.classes_of(values.transpose(1, 2, 0))
        return out, np.where(values[0], classes, 255)

    def polygons(self, folder: Path, out: Path, classes: np.ndarray, shift: int = 0) -> Path:
        """Write each class of a map, moved to the right by some pixels, as a polygon."""
        import rasterio

        with rasterio.open(out) as file:
            transform = file.transform.to_shapely()
        shapes = [outline(classes == number, (shift, 0)) for number in (1, 2)]
        placed = geopandas.GeoSeries(shapes, crs="EPSG:32633").affine_transform(transform)
        labels = geopandas.GeoDataFrame(dict(label=self.NAMES[1:]), geometry=placed)
        labels.to_crs("EPSG:3857").to_file(folder / "labels.gpkg")
        return folder / "labels.gpkg"

    def test_the_polygons_of_a_map_have_an_iou_of_1(self, predicted, tmp_path):
        out, classes = predicted
        scores = score_raster(out, self.polygons(tmp_path, out, classes))
        assert list(scores.index) == [*self.NAMES, "mean"]
        np.testing.assert_allclose(scores["IoU"], 1, atol=0.001)
        expected = [*np.bincount(classes.ravel())[:3], 240 * 300 - 300]
        np.testing.assert_allclose(scores["pixels"], expected, atol=3)

    @pytest.mark.parametrize("kind", ["polygons", "raster"])
    def test_iou_is_that_of_the_pixels(self, kind, predicted, tmp_path):
        out, classes = predicted
        moved = np.roll(classes, 7, axis=1)
        moved[:, :7] = 255
        if kind == "polygons":
            labels = self.polygons(tmp_path, out, classes, shift=7)
            moved = np.where(moved == 255, 0, moved)  # the rest is background
        else:
            labels = self.raster(tmp_path, out, moved)
        scores = score_raster(out, labels)
        counted = (moved != 255) & (classes != 255)
        for number, name in enumerate(self.NAMES):
            both = ((classes == number) & (moved == number) & counted).sum()
            either = (((classes == number) | (moved == number)) & counted).sum()
            assert scores.loc[name, "IoU"] == pytest.approx(both / either, abs=0.001)
        assert scores.loc["mean", "IoU"] == pytest.approx(scores["IoU"][:-1].mean())

    def raster(self, folder: Path, out: Path, classes: np.ndarray, side: int = 2) -> Path:
        """Write a raster of classes with smaller pixels and a margin."""
        import rasterio

        with rasterio.open(out) as file:
            transform = file.transform * Affine.translation(-3, -3) * Affine.scale(1 / side)
        fine = np.pad(classes, 3, constant_values=1).repeat(side, 0).repeat(side, 1)
        place = dict(crs="EPSG:32633", transform=transform)
        return save(folder / "labels.tif", fine.astype(np.uint8), **place)

    @pytest.mark.parametrize("nodata", [None, 2])
    def test_nodata_and_255_of_a_raster_of_classes_do_not_count(self, nodata, predicted, tmp_path):
        out, classes = predicted
        labels = self.raster(tmp_path, out, np.where(classes == 0, 255, classes))
        if nodata is not None:
            import rasterio

            with rasterio.open(labels, "r+") as file:
                file.nodata = nodata
        scores = score_raster(out, labels)
        numbers = [number for number in (1, 2) if number != nodata]
        assert scores.loc["mean", "pixels"] == np.isin(classes, numbers).sum()

    def test_an_area_limits_the_pixels(self, predicted, tmp_path):
        out, classes = predicted
        labels = self.polygons(tmp_path, out, classes)
        import rasterio

        with rasterio.open(out) as file:
            transform = file.transform.to_shapely()
        area = geopandas.GeoSeries([shapely.box(100, 50, 180, 90)], crs="EPSG:32633")
        area.affine_transform(transform).to_file(tmp_path / "area.gpkg")
        scores = score_raster(out, labels, tmp_path / "area.gpkg")
        assert scores.loc["mean", "pixels"] == 80 * 40

    def test_the_smaller_of_two_polygons_counts(self, tmp_path):
        values = np.random.default_rng(0).integers(1, 9, (3, 40, 40)).astype(np.uint8)
        raster = save(tmp_path / "a.tif", values, **UTM)
        out = predict_raster(raster, PixelSegmentor(["road", "house"]), tmp_path / "m.tif", tile=64)
        shapes = [shapely.box(5, 5, 15, 15), shapely.box(0, 0, 30, 30)]
        for order in (1, -1):
            names = ["house", "road"][::order]
            labels = write(tmp_path / f"order{order + 1}.gpkg", shapes[::order], label=names)
            assert score_raster(out, labels)["pixels"].to_dict() == dict(
                road=800, house=100, mean=900
            )

    def test_classes_that_the_map_does_not_have_are_missed(self, predicted, tmp_path):
        out, _ = predicted
        labels = write(tmp_path / "labels.gpkg", [shapely.box(100, 20, 110, 40)], label=["river"])
        scores = score_raster(out, labels)
        assert scores.loc["river", "IoU"] == 0 and scores.loc["river", "pixels"] > 0

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            ("number", r"the labels have a class 7, but .*map\.tif has 3, from 0 on"),
            ("nothing", r"--labels .*labels\.tif has no labelled pixel that counts"),
            ("place", r"--labels .* has no place on the raster, and another size"),
            ("polygons", r"has no polygon in the area \(x .* in EPSG:32633\)"),
            ("gone", r"gone\.tif cannot be read|gone\.tif: No such file"),
        ],
    )
    def test_labels_that_do_not_match_are_one_line(self, labels, message, predicted, tmp_path):
        out, classes = predicted
        paths = dict(
            number=lambda: self.raster(tmp_path, out, np.where(classes == 1, 7, classes)),
            nothing=lambda: self.raster(tmp_path, out, np.where(classes == 255, 0, 255)),
            place=lambda: save(tmp_path / "b.tif", np.zeros((9, 9), np.uint8)),
            polygons=lambda: write(tmp_path / "far.gpkg", boxes(9000), label=["road"]),
            gone=lambda: tmp_path / "gone.tif",
        )
        with pytest.raises((ValueError, OSError), match=message) as error:
            score_raster(out, paths[labels]())
        assert "\n" not in str(error.value)


class TestCommand:
    OBJECTS = (
        "AP50",
        "precision",
        "recall",
        "F1",
        "objects",
        "matched",
        "missed",
        "false",
        "score",
    )

    @pytest.mark.parametrize(
        ("name", "model", "columns"),
        [("a.gpkg", "det", OBJECTS), ("a.tif", "seg", ("IoU", "pixels"))],
    )
    def test_it_predicts_and_scores(self, name, model, columns, models, call, tmp_path):
        values = np.random.default_rng(0).integers(0, 256, (3, 100, 120), np.uint8)
        raster = save(tmp_path / "a.tif", values, **UTM)
        labels = write(tmp_path / "labels.gpkg", boxes(0, 20, 200), label=["circle"] * 3)
        options = "--out", tmp_path / "out" / name, "--tile", 96, "--labels", labels
        code, printed, errors = call("raster", raster, *models[model], *options)
        path, head, *_ = printed.splitlines()
        assert code == 0 and path == str(tmp_path / "out" / name)
        assert tuple(head.split()) == columns
        assert f"--labels {labels}: 1 of 3 polygons lie outside of the area" in errors

    def test_labels_are_not_replaced(self, models, refusal, tmp_path):
        raster = save(tmp_path / "a.tif", np.zeros((3, 20, 50), np.uint8), **UTM)
        labels = write(tmp_path / "labels.gpkg", boxes(0))
        options = "--labels", labels, "--out", labels, "--overwrite"
        assert "is the input" in refusal("raster", raster, *models["det"], *options)
