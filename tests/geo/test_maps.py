"""Results on a map: every pixel where it was, areas as they are, files whole or not there, in memory of a few rows."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

rasterio = pytest.importorskip("rasterio")
from pycocotools import mask as coco  # noqa: E402
from rasterio.crs import CRS  # noqa: E402
from rasterio.transform import Affine  # noqa: E402

from xcit_mm.geo import Raster  # noqa: E402
from xcit_mm.geo.geojson import MapInstance, write_instances  # noqa: E402
from xcit_mm.geo.geotiff import join_maps, no_class, open_map  # noqa: E402
from xcit_mm.geo.raster import Georeference  # noqa: E402
from xcit_mm.utils.run_lengths import decode_crop, encode_mask, parse_counts  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
NORTH_UP = Affine(0.5, 0, 500000, 0, -0.5, 5400000)
TURNED = Affine(0.3, 0.4, 500000, 0.4, -0.3, 5400000)  # pixels of 0.25 square metres
UTM = CRS.from_epsg(32633)
CLASSES = ["road", "house", "Bäume"]
PALETTE = [[128, 64, 128], [70, 70, 70], [107, 142, 35]]


def blobs(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A map of three classes in large pieces."""
    noise = np.random.default_rng(seed).random((height // 8 + 1, width // 8 + 1), np.float32)
    smooth = cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.digitize(smooth, [0.33, 0.66]).astype(np.uint8)


def write_map(path: Path, labels: np.ndarray, scene: Georeference, valid: np.ndarray | None = None, **kwargs) -> Path:
    with open_map(path, scene, kwargs.pop("classes", CLASSES), **kwargs) as writer:
        for start in range(0, len(labels), 100):
            there = None if valid is None else valid[start : start + 100]
            writer.write(labels[start : start + 100], there)
    return path


class TestMaps:
    @pytest.mark.parametrize("transform", [NORTH_UP, TURNED])
    def test_what_is_written_is_read(self, transform, tmp_path):
        labels, valid = blobs(1300, 700), blobs(1300, 700, seed=1) > 0
        write_map(tmp_path / "map.tif", labels, Georeference(1300, 700, UTM, transform), valid, palette=PALETTE)
        assert os.listdir(tmp_path) == ["map.tif"]
        with rasterio.open(tmp_path / "map.tif") as file:
            found = file.read(1)
            np.testing.assert_array_equal(file.read_masks(1) > 0, valid)
            assert file.crs == UTM and file.transform.almost_equals(transform, 1e-9)
            assert file.nodata == 255 and file.dtypes == ("uint8",)
            assert file.block_shapes == [(512, 512)] and file.compression.name == "deflate"
            assert [file.colormap(1)[number][:3] for number in range(3)] == [tuple(colour) for colour in PALETTE]
            assert json.loads(file.tags()["CLASSES"]) == CLASSES
        np.testing.assert_array_equal(found, np.where(valid, labels, 255))

    @pytest.mark.parametrize(
        "count, value, dtype", [(255, 255, "uint8"), (256, 65535, "uint16"), (900, 65535, "uint16")]
    )
    def test_no_class_is_none_of_the_classes(self, count, value, dtype, tmp_path):
        classes = [f"class {number}" for number in range(count)]
        labels = np.arange(count).reshape(1, -1).repeat(2, axis=0)
        valid = np.array([[True], [False]]).repeat(count, axis=1)
        write_map(tmp_path / "map.tif", labels, Georeference(2, count, UTM, NORTH_UP), valid, classes=classes)
        with rasterio.open(tmp_path / "map.tif") as file:
            assert file.nodata == value and file.dtypes == (dtype,)
            assert file.read(1).tolist() == [list(range(count)), [value] * count]
            colours = file.colormap(1)
            assert len({colours[number] for number in range(count)}) > 0.9 * min(count, 250)
        with pytest.raises(ValueError, match=r"70000 classes: .* has room for 65535"):
            no_class(["a"] * 70000)

    def test_without_a_place(self, tmp_path):
        scene = Raster(
            write_map(tmp_path / "a.tif", blobs(30, 40), Georeference(30, 40, None, Affine.identity()))
        ).georeference
        assert scene == Georeference(30, 40, None, Affine.identity())

    @pytest.mark.parametrize("transform", [NORTH_UP, TURNED, Affine.identity()])
    def test_parts_join_to_the_map_that_was_cut(self, transform, tmp_path):
        scene = Georeference(1700, 600, UTM, transform)
        labels, valid = blobs(1700, 600), blobs(1700, 600, seed=1) > 0
        cuts = [0, 1, 513, 513 + 512, 1690, 1700]
        parts = []
        for first, stop in pairwise(cuts):
            path = tmp_path / "parts" / f"{first}.tif"
            there = labels[first:stop], scene, valid[first:stop]
            parts.append(write_map(path, *there, rows=(first, stop), palette=PALETTE))
            with rasterio.open(path) as part:
                for corner in ((0, 0), (600, stop - first)):
                    np.testing.assert_allclose(part.transform @ corner, transform @ (corner[0], corner[1] + first))
        join_maps(tmp_path / "joined.tif", parts, scene, CLASSES, PALETTE)
        write_map(tmp_path / "whole.tif", labels, scene, valid, palette=PALETTE)
        assert (tmp_path / "joined.tif").read_bytes() == (tmp_path / "whole.tif").read_bytes()

    def test_parts_that_do_not_fit(self, tmp_path):
        scene = Georeference(1000, 60, UTM, NORTH_UP)
        labels = blobs(1000, 60)
        one = write_map(tmp_path / "1.tif", labels[:600], scene, rows=(0, 600))
        two = write_map(tmp_path / "2.tif", labels[600:], scene, rows=(600, 1000))
        other = write_map(tmp_path / "3.tif", labels[600:], scene, rows=(600, 1000), classes=["a", "b", "c"])
        narrow = write_map(tmp_path / "4.tif", labels[600:, :50], scene._replace(width=50), rows=(600, 1000))
        for parts, told in (
            ([two, one], r"2\.tif begins with row 600, but row 0 comes next"),
            ([one, one], r"1\.tif begins with row 0, but row 600 comes next"),
            ([one], "600 of its 1000 rows were written"),
            ([one, other], r'3\.tif is 60 wide and has the classes \["a", "b", "c"\]: of another raster'),
            ([one, narrow], r"4\.tif is 50 wide .*: of another raster"),
        ):
            with pytest.raises(ValueError, match=told):
                join_maps(tmp_path / "out" / "all.tif", parts, scene, CLASSES)
        two.write_bytes(two.read_bytes()[:-100])
        with pytest.raises(OSError, match=r"2\.tif cannot be read: "):
            join_maps(tmp_path / "out" / "all.tif", [one, two], scene, CLASSES)
        assert os.listdir(tmp_path / "out") == []

    @pytest.mark.parametrize(
        "labels, valid, told",
        [
            (np.zeros((5, 9)), None, r"rows of \(5, 9\), for a map that is 8 wide"),
            (np.zeros((5, 8)), np.ones((5, 1)), r"with a mask of \(5, 1\)"),
            (np.zeros((11, 8)), None, "11 rows for a map that is 10 high"),
            (np.full((5, 8), 3), None, "labels from 3 to 3, for 3 classes"),
            (np.full((5, 8), -1), None, "labels from -1 to -1, for 3 classes"),
        ],
    )
    def test_rows_that_do_not_fit(self, labels, valid, told, tmp_path):
        with (
            pytest.raises(ValueError, match=told),
            open_map(tmp_path / "map.tif", Georeference(10, 8, UTM, NORTH_UP), CLASSES) as writer,
        ):
            writer.write(labels.astype(int), None if valid is None else valid.astype(bool))
        assert os.listdir(tmp_path) == []

    def test_an_earlier_file_stays_until_the_new_one_is_whole(self, tmp_path):
        scene = Georeference(600, 40, UTM, NORTH_UP)
        path = write_map(tmp_path / "map.tif", blobs(600, 40), scene)
        before = path.read_bytes()
        with pytest.raises(KeyboardInterrupt), open_map(path, scene, CLASSES) as writer:
            writer.write(np.zeros((550, 40), np.uint8))
            raise KeyboardInterrupt
        assert path.read_bytes() == before and os.listdir(tmp_path) == ["map.tif"]

    def test_a_disk_that_is_full_at_any_moment(self, tmp_path):
        """Also when GDAL has the last block or the header still to write, and tells nobody."""
        script = (
            "import resource, signal, sys, numpy as np\n"
            "from pathlib import Path\n"
            "from rasterio.transform import Affine\n"
            "from xcit_mm.geo.geotiff import open_map\n"
            "from xcit_mm.geo.raster import Georeference\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "labels = np.random.default_rng(0).integers(0, 3, (700, 600))\n"
            "def write(path):\n"
            "    with open_map(path, Georeference(700, 600, None, Affine.identity()), list('abc')) as writer:\n"
            "        writer.write(labels)\n"
            "folder = Path(sys.argv[1])\n"
            "write(folder / 'whole.tif')\n"
            "whole = (folder / 'whole.tif').stat().st_size\n"
            "for room in [*range(0, whole, whole // 20), whole - 1]:\n"
            "    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))\n"
            "    try:\n"
            "        write(folder / 'full.tif')\n"
            "        sys.exit(f'{room} of {whole} bytes were enough')\n"
            "    except OSError as error:\n"
            "        assert 'full.tif cannot be written: ' in str(error), error\n"
            "    assert [one.name for one in folder.iterdir()] == ['whole.tif'], room\n"
        )
        command = [sys.executable, "-W", "ignore", "-c", script, tmp_path]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr[-1000:]


def instance(mask: np.ndarray, corner: tuple[int, int], scene: Georeference, **values) -> MapInstance:
    code = encode_mask(mask, corner, (scene.height, scene.width))["counts"]
    return MapInstance(**{**dict(id=1, label=0, score=0.5, box=[0, 0, 1, 1], mask=code.decode()), **values})


def write_and_read(path: Path, scene: Georeference, *found: MapInstance) -> dict:
    assert write_instances(path, scene, CLASSES, found) == len(found)
    return json.loads(path.read_text())


RING = ["111111", "100001", "101101", "100001", "111111", "000001"]
SHAPES = {
    "pixel": ["1"],
    "hole": ["1111", "1001", "1111"],
    "two": ["1101", "1101"],
    "hole at a corner": ["111", "101", "110"],
    "diagonal": ["101", "010", "101"],
    "island in a hole": RING,
}


class TestInstances:
    @pytest.mark.parametrize(
        "transform", [NORTH_UP, TURNED, Affine(0.5, 0, 0, 0, 0.5, 0), Affine(0, -0.5, 9, 0.5, 0, 9)]
    )
    @pytest.mark.parametrize("name", [*SHAPES, "noise", "blob"])
    def test_polygons_cover_what_the_mask_does(self, name, transform, tmp_path):
        shapely = pytest.importorskip("shapely")
        if name == "noise":
            mask = np.random.default_rng(0).random((30, 40)) > 0.5
        elif name == "blob":
            mask = blobs(60, 50) > 0
        else:
            mask = np.array([[pixel == "1" for pixel in row] for row in SHAPES[name]])
        scene = Georeference(200, 150, UTM, transform)
        told = write_and_read(tmp_path / "a.geojson", scene, instance(mask, (120, 70), scene))
        place = shapely.geometry.shape(told["features"][0]["geometry"])
        assert place.is_valid
        # In pixels and less the corner, since far from the origin areas are differences of large products.
        (a, b, _, d, e, _), corner = tuple(transform)[:6], transform @ (70, 120)
        near = shapely.affinity.translate(place, -corner[0], -corner[1])
        assert near.area == pytest.approx(0.25 * mask.sum(), rel=1e-6)
        for number, there in np.ndenumerate(mask):
            x, y = number[1] + 0.5, number[0] + 0.5
            assert near.contains(shapely.Point(a * x + b * y, d * x + e * y)) == there
        polygons = place.geoms if hasattr(place, "geoms") else [place]
        for polygon in polygons:
            assert polygon.exterior.is_ccw and not any(hole.is_ccw for hole in polygon.interiors)
        assert len(polygons) == cv2.connectedComponents(mask.astype(np.uint8), connectivity=4)[0] - 1

    def test_pixels_of_an_image_without_a_place(self, tmp_path):
        scene = Georeference(20, 30, None, Affine.identity())
        one = instance(np.ones((2, 3), bool), (5, 7), scene, id=4, label=2)
        told = write_and_read(tmp_path / "a.geojson", scene, one)
        (feature,) = told["features"]
        assert feature["geometry"]["type"] == "Polygon"
        (ring,) = feature["geometry"]["coordinates"]
        assert ring[0] == ring[-1] and sorted(ring[:4]) == [[7, 5], [7, 7], [10, 5], [10, 7]]
        assert feature["properties"] == {"id": 4, "class": "Bäume", "label": 2, "score": 0.5}
        assert "crs" not in told and told["properties"]["coordinates"].startswith("pixels of the image: x to the right")

    def test_a_transform_of_an_unknown_system_is_kept_and_said(self, tmp_path):
        scene = Georeference(20, 30, None, NORTH_UP)
        told = write_and_read(tmp_path / "a.geojson", scene, MapInstance(1, 0, 0.5, [0, 0, 1, 1]))
        assert [500000, 5400000] in told["features"][0]["geometry"]["coordinates"][0]
        assert "crs" not in told and told["properties"]["coordinates"].endswith("in an unknown coordinate system")

    def test_boxes_where_there_are_no_masks(self, tmp_path):
        scene = Georeference(20, 30, UTM, NORTH_UP)
        told = write_and_read(tmp_path / "a.geojson", scene, MapInstance(1, 0, 0.5, [2.5, 4, 6, 10]))
        ring = told["features"][0]["geometry"]["coordinates"][0]
        assert sorted(ring[:4]) == [
            [500001.25, 5399995.0], [500001.25, 5399998.0], [500003.0, 5399995.0], [500003.0, 5399998.0]
        ]  # fmt: skip

    def test_nothing_is_null_and_not_lost(self, tmp_path):
        scene = Georeference(20, 30, UTM, NORTH_UP)
        empty = instance(np.zeros((2, 2), bool), (0, 0), scene)
        told = write_and_read(tmp_path / "a.geojson", scene, empty, MapInstance(2, 1, 0.1, [3, 3, 3, 9]))
        assert [one["geometry"] for one in told["features"]] == [None, None]

    @pytest.mark.parametrize(
        "crs", ["EPSG:32633", "EPSG:4326", "OGC:CRS84", "EPSG:4258", "EPSG:32633+5773", "custom", None]
    )
    def test_other_readers_find_the_place(self, crs, tmp_path):
        geopandas = pytest.importorskip("geopandas")
        custom = "+proj=laea +lat_0=10 +lon_0=20 +ellps=GRS80 +units=m"
        given = crs and CRS.from_string(custom if crs == "custom" else crs)
        scene = Georeference(20, 30, given, Affine(0.1, 0, 11, 0, -0.1, 48))
        write_and_read(
            tmp_path / "a.geojson", scene, *(MapInstance(n, n % 3, n / 10, [n, 2, n + 2, 6]) for n in range(5))
        )
        table = geopandas.read_file(tmp_path / "a.geojson")
        assert len(table) == 5 and list(table["class"][:3]) == CLASSES and list(table["id"]) == list(range(5))
        np.testing.assert_allclose(table.score, np.arange(5) / 10)
        assert table.total_bounds == pytest.approx([11, 47.4, 11.6, 47.8])
        if crs is not None:
            import pyproj

            expected = pyproj.CRS("EPSG:4326" if crs == "OGC:CRS84" else custom if crs == "custom" else crs)
            assert pyproj.CRS(table.crs).equals(expected, ignore_axis_order=True) or (
                crs == "custom" and "laea" in table.crs.to_proj4()
            )

    def test_no_instances(self, tmp_path):
        told = write_and_read(tmp_path / "a.geojson", Georeference(20, 30, UTM, NORTH_UP))
        assert told["features"] == [] and told["crs"]["properties"]["name"] == "urn:ogc:def:crs:EPSG::32633"

    def test_as_a_stream_and_whole_or_not_at_all(self, tmp_path):
        scene, path = Georeference(20, 30, UTM, NORTH_UP), tmp_path / "a.geojson"
        one = MapInstance(1, 0, 0.5, [0, 0, 1, 1])
        write_and_read(path, scene, one)
        before = path.read_bytes()

        def stopping():
            for _ in range(30_000):
                yield one
            assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 5_000_000  # not held back
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_instances(path, scene, CLASSES, stopping())
        for broken, told in (
            (one._replace(label=3), "instance 1 has the label 3, of 3 classes"),
            (one._replace(score=float("nan")), "not JSON compliant"),
            (one._replace(mask="0"), "a run-length code of 0 pixels for an image of 20 x 30"),
            (one._replace(mask="a b"), "not a run-length code: a b"),
        ):
            with pytest.raises(ValueError, match=told):
                write_instances(path, scene, CLASSES, [one, broken])
        assert path.read_bytes() == before and len(os.listdir(tmp_path)) == 1


class TestRunLengths:
    @pytest.mark.parametrize("seed", range(20))
    def test_as_pycocotools_has_them(self, seed):
        rng = np.random.default_rng(seed)
        mask = rng.random(rng.integers(1, 60, 2)) > rng.random()
        code = coco.encode(np.asfortranarray(mask, np.uint8))
        lengths = parse_counts(code["counts"])
        np.testing.assert_array_equal(lengths, parse_counts(code["counts"].decode()))
        turns = np.arange(len(lengths)) % 2 == 1
        np.testing.assert_array_equal(turns.repeat(lengths), mask.ravel(order="F"))
        found = decode_crop(lengths, *mask.shape)
        whole = np.zeros_like(mask)
        if found is not None:
            height, width = found.mask.shape
            whole[found.top : found.top + height, found.left : found.left + width] = found.mask
            left, top, wide, high = coco.toBbox(code)
            assert (found.left, found.top, width, height) == (left, top, wide, high)
        np.testing.assert_array_equal(whole, mask)

    def test_scenes_of_more_than_32_bits(self):
        """10 gigapixels, of which a disk near the end is covered: the memory is that of the disk."""
        side, start = 100_000, 99_900 * 100_000 + 500
        lengths = np.array([start, 3, side - 3, 3, side**2 - start - side - 3])
        found = decode_crop(lengths, side, side)
        assert found.mask.shape == (3, 2) and (found.top, found.left) == (500, 99_900) and found.mask.all()

    def test_a_code_that_is_broken_off(self):
        code = encode_mask(np.ones((5, 5), bool), (100, 100), (1000, 1000))["counts"]
        with pytest.raises(ValueError, match="run-length code"):
            decode_crop(code[:1], 1000, 1000)
