"""Generated results and labels: what is scored and what is left out add up, and a score stays what
it is when only the form of its input changes.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas
import shapely
from helpers.pixel_segmentor import PixelSegmentor
from helpers.raster_files import UTM, in_pixels, noise, save
from hypothesis import given, settings
from hypothesis import strategies as st
from rasterio import open as open_map

from xcit_mm import predict_raster, score_raster

HEIGHT, WIDTH = 60, 90
KNOWN = ("oak", "fir")
quick = settings(max_examples=12, deadline=None, derandomize=True, database=None)


@st.composite
def boxes(draw: Any, names: tuple[str | None, ...]) -> Any:
    """Draw polygons of boxes with a class, whose edges pass no centre of a pixel, and whose centres
    lie on no edge of one.
    """
    corner = st.tuples(st.integers(-5, WIDTH - 6), st.integers(-5, HEIGHT - 6))
    side = st.sampled_from(range(3, 31, 2))
    drawn = draw(
        st.lists(st.tuples(corner, st.tuples(side, side), st.sampled_from(names)), max_size=12)
    )
    shapes = [shapely.box(x, y, x + w, y + h) for (x, y), (w, h), _ in drawn]
    first = shapely.box(3, 3, 20, 20)  # a label that counts, in any case
    return in_pixels([first, *shapes], species=[KNOWN[0], *(name for *_, name in drawn)])


@st.composite
def forms(draw: Any) -> dict[str, Any]:
    """Draw a format, a coordinate system and an order of features."""
    return dict(
        suffix=draw(st.sampled_from(["gpkg", "geojson", "parquet", "fgb"])),
        crs=draw(st.sampled_from(["EPSG:32633", "EPSG:4326", "EPSG:3857"])),
        seed=draw(st.integers(0, 9)),
    )


def write(table: Any, path: Path, suffix: str, crs: str, seed: int) -> Path:
    """Write a table in a form, and return its path."""
    path = path.with_suffix(f".{suffix}")
    table = table.sample(frac=1, random_state=seed).to_crs(crs)
    table.to_parquet(path) if suffix == "parquet" else table.to_file(path)
    return path


def assert_equal(first: Any, second: Any) -> None:
    pandas.testing.assert_frame_equal(first, second, rtol=1e-6)
    assert first.attrs == second.attrs


@quick
@given(
    labels=boxes((*KNOWN, "river", None)),
    form=forms(),
    tiling=st.sampled_from([(32, 0), (40, 12), (256, 64)]),
    nodata=st.sampled_from([None, 3]),
)
def test_pixels_of_a_map_add_up_whatever_the_form_of_labels_and_tiles(labels, form, tiling, nodata):
    with TemporaryDirectory() as folder:
        root = Path(folder)
        bands = noise(1, HEIGHT, WIDTH, high=9).repeat(3, 0)
        raster = save(root / "a.tif", bands, nodata=nodata, **UTM)
        model = PixelSegmentor([*KNOWN, "background"])
        whole = predict_raster(raster, model, root / "whole.tif", tile=128)
        tile, overlap = tiling
        tiled = predict_raster(raster, model, root / "tiled.tif", tile=tile, overlap=overlap)
        with open_map(whole) as first, open_map(tiled) as second:
            stored = first.read(1)
            assert np.array_equal(stored, second.read(1))
        path = write(labels, root / "plain", "gpkg", "EPSG:32633", 0)
        scores = score_raster(whole, path, class_column="species", raster=raster)
        other = write(labels, root / "other", **form)
        assert_equal(scores, score_raster(tiled, other, class_column="species", raster=raster))
    counts = scores.attrs["pixels"]
    assert counts["total"] == HEIGHT * WIDTH == sum(counts.values()) - counts["total"]
    assert counts["scored"] == scores.loc["mean", "pixels"] == scores["pixels"][:-1].sum()
    assert counts.get("without a class in the map", 0) == (stored == 255).sum()


@quick
@given(
    labels=boxes((*KNOWN, "river", None)),
    found=boxes(KNOWN),
    form=forms(),
    copied=st.integers(0, 3),
    hole=st.integers(30, WIDTH),
    scores=st.permutations([0.3, 0.5, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.91, 0.92, 0.93, 0.94, 0.95]),
)
def test_labels_and_objects_add_up_whatever_their_form(labels, found, form, copied, hole, scores):
    labels = pandas.concat([labels, labels.iloc[:copied]], ignore_index=True)
    bands = noise(3, HEIGHT, WIDTH)
    bands[:, :, hole:] = 0
    with TemporaryDirectory() as folder:
        root = Path(folder)
        raster = save(root / "a.tif", bands, nodata=0, **UTM)
        columns = {"class": found["species"], "score": scores[: len(found)], "cut": False}
        found = found.drop(columns="species").assign(**columns, area=1.0)
        found.to_file(root / "plain.gpkg", layer="plain")
        found.sample(frac=1, random_state=form["seed"]).to_parquet(root / "other.parquet")
        path = write(labels, root / "labels", "gpkg", "EPSG:32633", 0)
        table = score_raster(root / "plain.gpkg", path, class_column="species", raster=raster)
        other = write(labels, root / "other_labels", **form)
        again = score_raster(root / "other.parquet", other, class_column="species", raster=raster)
    assert_equal(table, again)
    total = table.loc["all"]
    for name, drawn in (("labels", labels), ("objects", found)):
        counts = table.attrs[name]
        assert counts["total"] == len(drawn) == sum(counts.values()) - counts["total"]
    assert table.attrs["labels"]["scored"] == total["objects"] == total["matched"] + total["missed"]
    assert total["matched"] + total["false"] <= table.attrs["objects"]["scored"]
    left_out = table.attrs["labels"]
    assert left_out.get("without a class", 0) <= labels["species"].isna().sum()
    assert left_out.get("drawn twice", 0) == labels.duplicated().sum()
