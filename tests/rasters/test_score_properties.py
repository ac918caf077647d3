"""Generated results and labels: what is scored and what is left out add up, and a score stays what
it is when only the form of its labels changes.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas
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


@quick
@given(
    labels=boxes((*KNOWN, "river", None)),
    found=boxes(KNOWN),
    form=forms(),
    scores=st.permutations([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.91, 0.92, 0.93, 0.94, 0.95]),
)
def test_labels_and_objects_add_up_whatever_their_form(labels, found, form, scores):
    suffix, crs, seed = form
    with TemporaryDirectory() as folder:
        raster = save(Path(folder, "a.tif"), noise(3, HEIGHT, WIDTH), **UTM)
        out = Path(folder, "out.gpkg")
        found = found.assign(score=scores[: len(found)], cut=False, area=1.0)
        found.to_file(out, layer="objects")
        labels.to_file(Path(folder, "plain.gpkg"))
        other = Path(folder, f"other.{suffix}")
        labels.sample(frac=1, random_state=seed).to_crs(crs).to_file(other)
        table = score_raster(out, Path(folder, "plain.gpkg"), raster=raster)
        again = score_raster(out, other, raster=raster)
    pandas.testing.assert_frame_equal(table, again, rtol=1e-6)
    assert table.attrs == again.attrs
    total = table.loc["all"]
    for name, drawn in (("labels", labels), ("objects", found)):
        counts = table.attrs[name]
        assert counts["total"] == len(drawn) == sum(counts.values()) - counts["total"]
    counted = table.attrs["labels"]["counted"]
    assert counted == total["objects"] == total["matched"] + total["missed"]
    assert total["matched"] + total["false"] <= table.attrs["objects"]["counted"]
    assert table.attrs["labels"].get("without a class", 0) == labels["class"].isna().sum()
