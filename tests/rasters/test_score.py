"""Scores of objects against labels, as a user counts them by hand."""

import resource
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import shapely
from helpers.perfect_detector import CLASSES, PerfectDetector, Scene
from helpers.raster_files import NORTH_UP, UTM, in_pixels, noise, save, save_image, write_shapes
from rasterio.transform import Affine
from shapely.affinity import translate

from xcit_mm import predict_raster, score_raster


def write_objects(path: Path, shapes: Any, classes: Any, scores: Any = 0.9) -> Path:
    """Write a result in pixels."""
    columns = {"class": classes, "score": scores, "area": 1.0, "cut": False}
    in_pixels(shapes, **columns).to_file(path, layer=path.stem)
    return path


def boxes(*lefts: float) -> list[shapely.Geometry]:
    return [shapely.box(left, 0, left + 10, 10) for left in lefts]


class TestObjects:
    @pytest.fixture
    def result(self, tmp_path) -> Path:
        return write_objects(tmp_path / "o.gpkg", boxes(0, 20), ["oak", "fir"], [0.9, 0.8])

    @pytest.mark.parametrize(
        ("suffix", "crs"), [("gpkg", "EPSG:4326"), ("parquet", "EPSG:3857"), ("shp", "EPSG:32633")]
    )
    def test_counts_and_layers_are_those_by_hand(self, suffix, crs, tmp_path):
        """Of three oaks, one is found twice, one badly and one as a birch; a birch is invented."""
        names = ["oak", "oak", "oak", "birch", "birch", "oak"]
        scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
        out = write_objects(tmp_path / "out.gpkg", boxes(0, 1, 26, 40, 60, 80), names, scores)
        classes = ["oak", "oak", "oak", "oak", "birch"]
        shapes = boxes(0, 20, 40, 80, 100)
        labels = write_shapes(tmp_path / f"labels.{suffix}", shapes, crs, Class=classes)
        scores = score_raster(out, labels)
        # 2 of 6 objects are right, the last of which has the score of the best F1.
        counts = dict(objects=5, matched=2, missed=3, false=4)
        rates = dict(AP50=(26 + 25 * 0.5) / 101 / 2, precision=2 / 6, recall=2 / 5, F1=4 / 11)
        assert scores.loc["all"].to_dict() == pytest.approx(counts | rates | dict(score=0.4))
        assert scores.loc["birch", "AP50"] == 0 and scores.loc["oak", "matched"] == 2
        layers = {name: geopandas.read_file(out, layer=name) for name in ("missed", "false")}
        assert sorted(layers["missed"]["class"]) == ["birch", "oak", "oak"]
        assert layers["false"]["score"].tolist() == [0.8, 0.7, 0.6, 0.5]
        missed = in_pixels(boxes(20, 100)).total_bounds
        np.testing.assert_allclose(layers["missed"].total_bounds, missed, atol=0.01)
        assert score_raster(out, labels).equals(scores)  # whose layers replace those before

    def test_a_full_disk_leaves_the_result_as_it_was(self, result, tmp_path):
        labels = write_shapes(tmp_path / "labels.geojson", boxes(0, 20))
        before = result.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5000, limits[1]))
        try:
            with pytest.raises(OSError, match=r"^[^\n]*o\.gpkg cannot be written [^\n]*$"):
                score_raster(result, labels)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert result.read_bytes() == before
        assert score_raster(result, labels).loc["all", "F1"] == 1
        assert sorted(tmp_path.iterdir()) == [labels, result]

    def test_average_precision_is_that_of_pycocotools(self, tmp_path):
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        rng = np.random.default_rng(0)
        lefts = np.arange(0, 60 * 20, 20)
        moved = lefts + rng.integers(-6, 7, 60)
        scores = rng.permutation(60) / 100 + 0.1
        numbers = rng.integers(0, 4, 60)
        classes = np.array(sorted(CLASSES))[numbers]
        out = write_objects(tmp_path / "a.gpkg", boxes(*moved), classes, scores)
        labels = write_shapes(tmp_path / "labels.gpkg", boxes(*lefts[10:]), type=classes[10:])

        def entries(lefts: np.ndarray) -> list[dict[str, Any]]:
            rows = zip(range(1, 61), lefts.tolist(), numbers.tolist(), scores.tolist(), strict=True)
            entry = dict(image_id=1, area=100, iscrowd=0)
            return [
                entry | dict(id=i, bbox=[left, 0, 10, 10], category_id=number, score=score)
                for i, left, number, score in rows
            ]

        truth = COCO()
        categories = [dict(id=number) for number in range(4)]
        truth.dataset = dict(
            images=[dict(id=1)], categories=categories, annotations=entries(lefts)[10:]
        )
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(entries(moved)), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        expected = evaluation.eval["precision"][0, :, :, 0, 2].mean(axis=0)
        result = score_raster(out, labels)
        np.testing.assert_allclose(result.loc[sorted(CLASSES), "AP50"], expected)
        assert 0.2 < result.loc["all", "AP50"] < 0.9

    @pytest.mark.parametrize(
        ("limits", "counts"),
        [(["aoi"], [3, 2, 1, 1]), (["raster"], [3, 3, 0, 0]), (["aoi", "raster"], [2, 2, 0, 0])],
    )
    def test_only_what_has_its_centre_in_the_area_counts(self, limits, counts, tmp_path, capsys):
        out = write_objects(tmp_path / "o.gpkg", boxes(0, 20, 44, 60), ["oak"] * 4)
        labels = write_shapes(tmp_path / "labels.gpkg", boxes(0, 20, 44, 80), name=["oak"] * 4)
        places = dict(
            aoi=write_shapes(tmp_path / "area.gpkg", [shapely.box(16, -5, 90, 40)]),
            raster=save(tmp_path / "a.tif", noise(3, 20, 50), **UTM),
        )
        places = {name: places[name] for name in limits}
        scores = score_raster(out, labels, **places).loc["all"]
        assert scores[["objects", "matched", "missed", "false"]].tolist() == counts
        assert f"{4 - counts[0]} of 4 polygons lie outside of the area" in capsys.readouterr().err

    @pytest.mark.parametrize("place", ["UTM", "across 180 degrees", "pole"])
    def test_tables_in_degrees_are_scored_on_the_raster(self, place, few, tmp_path):
        transform = {
            "UTM": NORTH_UP,
            "across 180 degrees": Affine(3000, 0, 100000, 0, -3000, 5400000),
            "pole": Affine(3000, 0, -150000, 0, -3000, 150000),
        }[place]
        crs = "EPSG:3413" if place == "pole" else "EPSG:32601"
        raster = save_image(tmp_path / "a.tif", few.image, crs=crs, transform=transform)
        out = predict_raster(raster, PerfectDetector(), tmp_path / "o.geojson", tile=128)
        table = predict_raster(raster, PerfectDetector(), tmp_path / "l.gpkg", tile=128)
        scores = score_raster(out, table, raster=raster).loc["all"]
        assert scores[["AP50", "matched", "missed"]].tolist() == [1, 5, 0]

    def test_a_label_without_a_class_protects_objects_wherever_its_centre_lies(self, tmp_path):
        out = write_objects(tmp_path / "o.gpkg", boxes(0, 20, 40), ["oak"] * 3)
        shapes = [*boxes(0), shapely.box(15, 0, 500, 20)]
        labels = write_shapes(tmp_path / "labels.gpkg", shapes, **{"class": ["oak", None]})
        raster = save_image(tmp_path / "r.tif", np.ones((60, 60, 3), np.uint8))
        scores = score_raster(out, labels, raster=raster)
        assert scores.loc["all", ["AP50", "false"]].tolist() == [1, 0]
        assert scores.attrs["objects"]["on labels without a class"] == 2

    def test_a_table_made_within_an_area_needs_the_area(self, few, tmp_path):
        raster = save_image(tmp_path / "a.tif", few.image)
        area = write_shapes(tmp_path / "area.gpkg", [shapely.box(0, 0, 50, 100)])
        out = predict_raster(raster, PerfectDetector(), tmp_path / "o.gpkg", aoi=area, tile=128)
        with pytest.raises(ValueError, match="was made within an aoi: give the same aoi"):
            score_raster(out, out, raster=raster)
        assert score_raster(out, out, area, raster=raster).loc["all", "F1"] == 1

    @pytest.mark.parametrize("column", ["class", "score"])
    def test_an_edited_table_without_a_value_is_one_line(self, column, result, tmp_path):
        table = geopandas.read_file(result)
        table.loc[0, column] = None
        table.to_file(result, layer="o")
        with pytest.raises(ValueError, match="has 1 objects without class or score: remove them"):
            score_raster(result, write_shapes(tmp_path / "labels.geojson", boxes(0, 20)))

    def test_labels_that_a_gis_has_dissolved_are_noted(self, result, tmp_path, capsys):
        dissolved = shapely.MultiPolygon(boxes(0, 20, 40))
        score_raster(result, write_shapes(tmp_path / "labels.geojson", [dissolved], name=["oak"]))
        assert "1 labels have up to 3 parts" in capsys.readouterr().err

    def test_labels_without_a_column_of_classes_are_of_any_class(self, result, tmp_path, capsys):
        labels = write_shapes(tmp_path / "labels.geojson", boxes(0, 20), height=[9, 8])
        scores = score_raster(result, labels)
        assert list(scores.index) == ["object", "all"] and scores.loc["all", "F1"] == 1
        assert "no column of classes, all are `object`; columns: height" in capsys.readouterr().err

    def test_what_is_no_label_is_counted_in_a_line(self, tmp_path, capsys):
        out = write_objects(tmp_path / "o.gpkg", boxes(0, 20), ["1", "2"])
        ring = [(0, 0), (9, 10), (10, 10), (10, 0), (9, 0), (0, 10)]
        crossing = shapely.Polygon(ring)
        collection = shapely.GeometryCollection([shapely.Point(0, 0), crossing])
        crossing = translate(crossing, 20)
        shapes = [collection, crossing, *boxes(40), shapely.Point(0, 0), shapely.Polygon()]
        labels = write_shapes(tmp_path / "labels.gpkg", shapes, number=[1, 2, None, 1, 1])
        in_pixels(boxes(0)).to_file(labels, layer="further")
        scores = score_raster(out, labels, class_column="number")
        assert scores.loc["all", ["objects", "matched"]].tolist() == [2, 2]
        lines = capsys.readouterr().err
        for line in (
            "1 empty shapes",
            "1 points or lines",
            "1 shapes cross themselves",
            "1 layers are not read: further",
            "1 polygons have no number",
        ):
            assert f"--labels {labels}: {line}" in lines

    def test_labels_without_a_class_are_neither_objects_nor_background(self, tmp_path, capsys):
        shapes = boxes(0, 20, 40, 60)
        out = write_objects(tmp_path / "o.gpkg", boxes(0, 21, 41, 80), ["oak"] * 4)
        labels = write_shapes(tmp_path / "l.gpkg", shapes, name=["oak", None, "", "oak"])
        scores = score_raster(out, labels)
        counts = scores.loc["all", ["objects", "matched", "missed", "false"]].tolist()
        assert counts == [2, 1, 1, 1]
        assert scores.attrs["labels"] == {"total": 4, "scored": 2, "without a class": 2}
        reason = "on labels without a class"
        assert scores.attrs["objects"] == {"total": 4, "scored": 2, reason: 2}
        lines = capsys.readouterr().err
        assert f"--labels {labels}: classes by name: oak 2\n" in lines
        assert "o.gpkg: the score counts 2 of 4 labels (50.0%); left out: 2 without a cl" in lines

    @pytest.mark.parametrize("is_declared", [True, False])
    def test_a_label_where_the_raster_has_no_data_is_not_missed(self, is_declared, tmp_path):
        scene = Scene(100, 100)
        assert scene.add(np.array([(10, 10), (10, 30), (30, 30), (30, 10)]))
        raster = save_image(tmp_path / "a.tif", scene.image, nodata=0 if is_declared else None)
        option = dict(nodata=None if is_declared else 0)
        out = predict_raster(raster, PerfectDetector(), tmp_path / "o.gpkg", tile=128, **option)
        shapes = [shapely.box(10, 10, 31, 31), shapely.box(60, 60, 80, 80)]
        labels = write_shapes(tmp_path / "l.gpkg", shapes)
        scores = score_raster(out, labels, raster=raster)
        assert scores.loc["all", ["objects", "matched", "missed"]].tolist() == [1, 1, 0]
        reason = "without data in the raster"
        assert scores.attrs["labels"] == {"total": 2, "scored": 1, reason: 1}
        with pytest.raises(ValueError, match=f"no label that counts: .*; left out: 1 {reason}"):
            score_raster(out, write_shapes(labels, shapes[1:]), raster=raster)

    def test_a_label_that_is_drawn_twice_counts_once(self, result, tmp_path):
        shapes = [*boxes(0, 20), *(box.reverse() for box in boxes(0, 0))]
        labels = write_shapes(tmp_path / "l.gpkg", shapes, type=["oak", "fir", "oak", "birch"])
        scores = score_raster(result, labels)
        assert scores.loc["all", ["objects", "matched", "missed"]].tolist() == [3, 2, 1]
        assert scores.attrs["labels"] == {"total": 4, "scored": 3, "drawn twice": 1}

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("surface.csv", "surface.csv cannot be read .*: save it with flat polygons"),
            ("latin.geojson", "latin.geojson cannot be read .*: save it .* in UTF-8"),
            ("classes.tif", "--labels .*classes.tif has no polygons: a detector needs some"),
        ],
    )
    def test_files_that_hold_no_polygons_are_one_line(self, name, message, result, tmp_path):
        labels = tmp_path / name
        if name == "surface.csv":  # of a city in 3D
            labels.write_text('WKT\n"POLYHEDRALSURFACE Z (((0 0 0,9 0 0,9 9 0,0 0 0)))"\n')
        elif name == "latin.geojson":
            write_shapes(labels, boxes(0, 20), kind=["fir", "fir"])
            labels.write_bytes(labels.read_bytes().replace(b"fir", b"f\xfcr"))
        else:
            save(labels, noise(1, 20, 50), **UTM)
        with pytest.raises(ValueError, match=message) as error:
            score_raster(result, labels)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (dict(Name=[f"Tree {n}" for n in range(8)]), "8 polygons have 8 values of Name"),
            (dict(name=["a", *[None] * 5, "b", "b"]), "5 of 8 polygons have no name"),
        ],
    )
    def test_a_column_that_holds_no_classes_is_refused_with_those_that_may(
        self, columns, message, result, tmp_path
    ):
        columns |= dict(kind=["oak", "fir"] * 4)
        labels = write_shapes(tmp_path / "l.gpkg", boxes(*range(0, 160, 20)), **columns)
        with pytest.raises(ValueError, match=rf"{message}, .*--class-column, one of .*, kind$"):
            score_raster(result, labels)
        assert score_raster(result, labels, class_column="kind").loc["all", "objects"] == 8
        with pytest.raises(ValueError, match="no such column, give one of "):
            score_raster(result, labels, class_column="species")

    def test_the_layer_with_polygons_is_read_or_the_named_one(self, result, tmp_path, capsys):
        labels = tmp_path / "l.gpkg"
        in_pixels([shapely.Point(5, 5)]).to_file(labels, layer="points")
        in_pixels(boxes(0, 20), type=["oak", "fir"]).to_file(labels, layer="fields")
        in_pixels(boxes(0), type=["oak"]).to_file(labels, layer="plots")
        assert score_raster(result, labels).loc["all", "matched"] == 2
        assert "2 layers are not read: points, plots" in capsys.readouterr().err
        assert score_raster(result, labels, layer="plots").loc["all", "matched"] == 1
        for layer, message in (("roads", "no such layer, give one of"), ("points", "no polygons")):
            with pytest.raises(ValueError, match=message):
                score_raster(result, labels, layer=layer)

    def test_a_raster_that_has_changed_since_is_named(self, tmp_path, capsys):
        raster = save(tmp_path / "a.tif", noise(3, 40, 50, high=3), **UTM)
        out = predict_raster(raster, PerfectDetector(), tmp_path / "o.gpkg", tile=64)
        labels = write_shapes(tmp_path / "l.gpkg", boxes(0, 20))
        score_raster(out, labels, raster=raster)
        assert "has changed" not in capsys.readouterr().err
        save(raster, noise(3, 40, 50, high=4), **UTM)
        score_raster(out, labels, raster=raster)
        assert f"{raster} has changed since {out} was made from a.tif" in capsys.readouterr().err

    @pytest.mark.parametrize("suffix", [".gpkg", ".geojson", ".parquet"])
    def test_a_result_without_objects_is_kept_and_misses_all(self, suffix, tmp_path):
        raster = save(tmp_path / "a.tif", np.zeros((3, 40, 50), np.uint8), **UTM)
        out = predict_raster(raster, PerfectDetector(), tmp_path / f"o{suffix}", tile=64)
        with pytest.raises(ValueError, match="tile was 64, is 32"):
            predict_raster(raster, PerfectDetector(), out, tile=32)
        labels = write_shapes(tmp_path / "labels.gpkg", boxes(0, 20), name=["oak", "fir"])
        scores = score_raster(out, labels, raster=raster).loc["all"]
        assert scores[["AP50", "recall", "missed", "false"]].tolist() == [0, 0, 2, 0]


class TestCommand:
    OBJECTS = "AP50 precision recall F1 objects matched missed false score"

    @pytest.mark.parametrize(
        ("name", "model", "columns"), [("a.gpkg", "det", OBJECTS), ("a.tif", "seg", "IoU pixels")]
    )
    def test_it_predicts_and_scores(self, name, model, columns, models, call, tmp_path):
        raster = save(tmp_path / "a.tif", noise(3, 100, 120), **UTM)
        labels = write_shapes(tmp_path / "l.gpkg", boxes(0, 20, 200), label=["circle"] * 3)
        out = tmp_path / "out" / name
        options = "--out", out, "--tile", 96, "--labels", labels
        code, printed, errors = call("raster", raster, *models[model], *options)
        path, head, *_ = printed.splitlines()
        assert code == 0 and path == str(out) and head.split() == columns.split()
        assert f"--labels {labels}: 1 of 3 polygons lie outside of the area" in errors
