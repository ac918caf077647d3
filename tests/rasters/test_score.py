"""Scores of objects against labels, as a user counts them by hand."""

from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import shapely
from helpers.full_disk import room_for
from helpers.raster_files import NORTH_UP, UTM, in_pixels, noise, save, write_shapes

from xcit_mm import score_raster
from xcit_mm.rasters.labels import LabelFile

COUNTS = ["objects", "matched", "missed", "false"]


def write_objects(path: Path, lefts: Any, classes: Any, scores: Any = 0.9) -> Path:
    """Write a result of boxes."""
    columns = {"class": classes, "score": scores}
    in_pixels(boxes(*lefts), **columns).to_file(path, layer="objects")
    return path


def boxes(*lefts: float) -> list[shapely.Geometry]:
    return [shapely.box(left, 0, left + 10, 10) for left in lefts]


@pytest.fixture
def result(tmp_path) -> Path:
    """A result of an oak and a fir."""
    return write_objects(tmp_path / "o.gpkg", (0, 20), ["oak", "fir"], [0.9, 0.8])


@pytest.fixture
def draw(tmp_path):
    """A function that writes labels, and returns their path."""

    def draw(*lefts: float, **columns: Any) -> Path:
        return write_shapes(tmp_path / "labels.gpkg", boxes(*lefts), "EPSG:4326", **columns)

    return draw


def test_counts_and_layers_are_those_by_hand(tmp_path, draw):
    """Of three oaks, one is found twice, one badly and one as a birch; a birch is invented."""
    names = ["oak", "oak", "oak", "birch", "birch", "oak"]
    scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    out = write_objects(tmp_path / "out.gpkg", (0, 1, 26, 40, 60, 80), names, scores)
    labels = draw(0, 20, 40, 80, 100, **{"class": ["oak", "oak", "oak", "oak", "birch"]})
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
    link = tmp_path / "link.gpkg"
    link.symlink_to(out)
    assert score_raster(link, labels).equals(scores)  # whose layers replace those before
    assert link.is_symlink()
    frame = geopandas.read_file(labels)
    assert score_raster(str(out), frame).equals(scores)


def test_average_precision_is_that_of_pycocotools(tmp_path, draw):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    rng = np.random.default_rng(0)
    lefts = np.arange(0, 60 * 20, 20)
    moved = lefts + rng.integers(-6, 7, 60)
    scores = rng.permutation(60) / 100 + 0.1
    out = write_objects(tmp_path / "a.gpkg", moved, "oak", scores)

    def entries(lefts: np.ndarray, scores: np.ndarray) -> list[dict[str, Any]]:
        entry = dict(image_id=1, category_id=1, area=100, iscrowd=0)
        rows = enumerate(zip(lefts.tolist(), scores.tolist(), strict=True), start=1)
        return [
            entry | dict(id=i, bbox=[left, 0, 10, 10], score=score) for i, (left, score) in rows
        ]

    truth = COCO()
    objects = entries(lefts[10:], scores[10:])
    truth.dataset = dict(images=[dict(id=1)], categories=[dict(id=1)], annotations=objects)
    truth.createIndex()
    evaluation = COCOeval(truth, truth.loadRes(entries(moved, scores)), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    expected = evaluation.eval["precision"][0, :, 0, 0, 2].mean()
    result = score_raster(out, draw(*lefts[10:]), class_name="oak")
    assert result.loc["all", "AP50"] == pytest.approx(expected) and 0.2 < expected < 0.9


@pytest.mark.parametrize(
    ("limits", "counts"),
    [(["aoi"], [3, 2, 1, 1]), (["raster"], [3, 3, 0, 0]), (["aoi", "raster"], [2, 2, 0, 0])],
)
def test_only_what_has_its_centre_in_the_area_counts(limits, counts, tmp_path, draw, capsys):
    out = write_objects(tmp_path / "o.gpkg", (0, 20, 44, 60), ["oak"] * 4)
    places = dict(
        aoi=write_shapes(tmp_path / "area.gpkg", [shapely.box(16, -5, 90, 40)]),
        raster=save(tmp_path / "a.tif", noise(3, 20, 50), **UTM),
    )
    options = {name: places[name] for name in limits}
    scores = score_raster(out, draw(0, 20, 44, 80), class_name="oak", **options)
    assert scores.loc["all", COUNTS].tolist() == counts
    found = counts[1] + counts[3]
    line = f"o.gpkg: {found} of 4 objects and {counts[0]} of 4 labels count; others are outside "
    assert line in capsys.readouterr().err


def test_labels_without_a_class_do_not_count_and_numbers_are_names(tmp_path, draw, capsys):
    out = write_objects(tmp_path / "o.gpkg", (0, 21, 41, 80), ["1", "1", "2", "2"])
    scores = score_raster(out, draw(0, 20, 40, 60, code=[1, None, None, 2]), class_column="code")
    assert scores.loc["all", COUNTS].tolist() == [2, 1, 1, 1]
    assert "2 of 4 objects and 2 of 4 labels count" in capsys.readouterr().err


def test_one_of_several_layers_is_named_and_its_shapes_repaired(result, tmp_path, capsys):
    labels = tmp_path / "l.gpkg"
    in_pixels([shapely.Point(5, 5)]).to_file(labels, layer="points")
    crossing = shapely.Polygon([(0, 0), (9, 10), (10, 10), (10, 0), (9, 0), (0, 10)])
    collapsed = shapely.Polygon([(40, 0), (45, 5), (40, 0)])
    shapes = [crossing, *boxes(20), shapely.Point(0, 0), None, collapsed]
    classes = {"class": ["oak", "fir", "fir", "fir", "fir"]}
    in_pixels(shapes, **classes).to_file(labels, layer="fields")
    for layer, wanted in ((None, "one layer"), ("gone", "gone")):
        found = rf"expected {wanted} with shapes, found \['points', 'fields'\]: name the layer"
        with pytest.raises(ValueError, match=found):
            score_raster(result, labels, layer=layer)
    assert score_raster(result, labels, layer="fields").loc["all", "matched"] == 2
    assert "l.gpkg: 3 of 5 shapes are left out" in capsys.readouterr().err


@pytest.mark.parametrize("crs", [None, 'LOCAL_CS["m",UNIT["metre",1]]'])
def test_labels_in_local_coordinates_fit_their_raster(crs, tmp_path):
    local = dict(crs='LOCAL_CS["m",UNIT["metre",1]]', transform=NORTH_UP)
    raster = save(tmp_path / "a.tif", noise(3, 20, 50), **local)
    labels = in_pixels(boxes(0)).set_crs(crs, allow_override=True)
    LabelFile(labels, class_name="oak").check(raster)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (dict(kind=["oak"] * 2, height=[9, 8]), "no column class, only kind, height: choose one"),
        ({"class": [None, None]}, "none of 2 labels has a class, and its centre in the area"),
    ],
)
def test_labels_without_classes_are_one_line(columns, message, result, draw):
    before = result.read_bytes()
    with pytest.raises(ValueError, match=message):
        score_raster(result, draw(0, 20, **columns))
    assert result.read_bytes() == before


def test_a_result_without_objects_misses_all(tmp_path, draw):
    out = write_objects(tmp_path / "o.gpkg", (), [], [])
    scores = score_raster(out, draw(0, 20), class_name="oak").loc["all"]
    assert scores[["AP50", "recall", "missed", "false"]].tolist() == [0, 0, 2, 0]


def test_a_full_disk_leaves_the_result_as_it_was(result, tmp_path, draw):
    labels = draw(0, 20, **{"class": ["oak", "fir"]})
    before = result.read_bytes()
    with room_for(len(before) + 5000), pytest.raises((OSError, RuntimeError), match=r"^[^\n]+$"):
        score_raster(result, labels)
    assert result.read_bytes() == before
    assert score_raster(result, labels).loc["all", "F1"] == 1
    assert sorted(tmp_path.iterdir()) == [labels, result]


OBJECTS = "AP50 precision recall F1 objects matched missed false score"


@pytest.mark.parametrize(
    ("name", "model", "columns"), [("a.gpkg", "det", OBJECTS), ("a.tif", "seg", "IoU pixels")]
)
def test_the_command_predicts_and_scores(name, model, columns, models, call, tmp_path, draw):
    raster = save(tmp_path / "a.tif", noise(3, 96, 96), **UTM)
    labels = draw(0, 20, 200, species=["circle"] * 3)
    out = tmp_path / "out" / name
    config, checkpoint = models[model]
    command = ("raster", config, raster, "--checkpoint", checkpoint, "--out", out)
    options = ("--tile", 96, "--labels", labels)
    with pytest.raises(SystemExit, match="no column class, only species"):
        call(*command, *options)
    assert not out.exists()
    code, printed, errors = call(*command, *options, "--class-column", "species")
    path, head, *_ = printed.splitlines()
    assert code == 0 and path == str(out) and head.split() == columns.split()
    others = "others are outside" if model == "det" else "they have a label"
    assert f"{out}: " in errors and f" count; {others} " in errors


def test_a_class_with_the_name_of_the_last_row_is_one_line(tmp_path, draw):
    out = write_objects(tmp_path / "o.gpkg", (), [], [])
    before = out.read_bytes()
    with pytest.raises(ValueError, match="have a class 'all', the name of the last row"):
        score_raster(out, draw(0, 20), class_name="all")
    assert out.read_bytes() == before
