"""Generated results and labels: what is scored and what is left out add up, and a score stays what
it is when only the form of its labels changes.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas
import rasterio
import shapely
from helpers.raster_files import UTM, in_pixels, noise, save
from hypothesis import given, settings
from hypothesis import strategies as st

from xcit_mm import score_raster

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
    names = [KNOWN[0], *(name for *_, name in drawn)]
    return in_pixels([first, *shapes], **{"class": names})


@st.composite
def forms(draw: Any) -> tuple[str, str, int]:
    """Draw a format, a coordinate system and an order of features."""
    suffix = draw(st.sampled_from(["gpkg", "geojson", "fgb"]))
    crs = draw(st.sampled_from(["EPSG:32633", "EPSG:4326", "EPSG:3857"]))
    return suffix, crs, draw(st.integers(0, 9))


def score_forms(out: Path, labels: Any, form: tuple[str, str, int], **options: Any) -> Any:
    """Score a result against labels in two forms, which makes no difference."""
    suffix, crs, seed = form
    plain = out.with_name("plain.gpkg")
    other = out.with_name(f"other.{suffix}")
    labels.to_file(plain)
    labels.sample(frac=1, random_state=seed).to_crs(crs).to_file(other)
    scores = score_raster(out, plain, **options)
    again = score_raster(out, other, **options)
    pandas.testing.assert_frame_equal(scores, again, rtol=1e-6)
    assert scores.attrs == again.attrs
    return scores


@quick
@given(labels=boxes((*KNOWN, "river", None)), form=forms())
def test_pixels_of_a_map_add_up_whatever_the_form_of_labels(labels, form):
    classes = noise(HEIGHT, WIDTH, high=4) - 1
    classes[:10] = 255
    with TemporaryDirectory() as folder:
        out = save(Path(folder, "map.tif"), classes, nodata=255, **UTM)
        with rasterio.open(out, "r+") as file:
            file.update_tags(CLASSES=json.dumps([*KNOWN, "background"]))
        scores = score_forms(out, labels, form)
    counts = scores.attrs["pixels"]
    assert counts["total"] == HEIGHT * WIDTH == sum(counts.values()) - counts["total"]
    assert counts["counted"] == scores.loc["mean", "pixels"] == scores["pixels"][:-1].sum()
    assert counts["without a class in the map"] == np.count_nonzero(classes == 255)


@quick
@given(
    labels=boxes((*KNOWN, "river", None)),
    found=boxes(KNOWN),
    form=forms(),
    scores=st.permutations([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.91, 0.92, 0.93, 0.94, 0.95]),
)
def test_labels_and_objects_add_up_whatever_their_form(labels, found, form, scores):
    with TemporaryDirectory() as folder:
        raster = save(Path(folder, "a.tif"), noise(3, HEIGHT, WIDTH), **UTM)
        out = Path(folder, "out.gpkg")
        found.assign(score=scores[: len(found)], cut=False, area=1.0).to_file(out, layer="objects")
        table = score_forms(out, labels, form, raster=raster)
    total = table.loc["all"]
    for name, drawn in (("labels", labels), ("objects", found)):
        counts = table.attrs[name]
        assert counts["total"] == len(drawn) == sum(counts.values()) - counts["total"]
    counted = table.attrs["labels"]["counted"]
    assert counted == total["objects"] == total["matched"] + total["missed"]
    assert total["matched"] + total["false"] <= table.attrs["objects"]["counted"]
    assert table.attrs["labels"].get("without a class", 0) == labels["class"].isna().sum()
