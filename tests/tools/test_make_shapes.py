"""tools/make_shapes.py: reproducible files, correct rasters, and errors of one line that leave
nothing behind.
"""

from pathlib import Path

import cv2
import numpy as np
import pytest
from make_shapes import CLASSES, write_dataset


def files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def rasters(tmp_path_factory) -> Path:
    pytest.importorskip("rasterio")
    root = tmp_path_factory.mktemp("rasters") / "shapes"
    write_dataset(root, train=24, val=2, size=64, rasters=True)
    return root


def test_files_are_reproducible_and_do_not_depend_on_rasters(rasters, tmp_path):
    write_dataset(tmp_path / "plain", train=24, val=2, size=64)
    found = files(rasters)
    added = {
        name.replace("images/", "rasters/").replace(".jpg", ".tif")
        for name in found
        if name.startswith("images/")
    }
    assert files(tmp_path / "plain") == {
        name: content for name, content in found.items() if name not in added
    }
    assert added < found.keys()


def test_rasters_are_the_images_with_an_infrared_band_by_class(rasters):
    import rasterio

    infrared: dict[int, list[np.ndarray]] = {}
    for path in sorted((rasters / "rasters" / "training").iterdir()):
        with rasterio.open(path) as file:
            assert (file.count, set(file.dtypes), file.crs.to_epsg(), file.res) == (
                4,
                {"uint16"},
                32632,
                (1.0, 1.0),
            )
            assert [color.name for color in file.colorinterp] == [
                "red",
                "green",
                "blue",
                "undefined",
            ]
            assert file.bounds.left == 500000 + 64 * int(path.stem)
            *rgb, fourth = file.read()
        image = cv2.imread(str(rasters / "images" / "training" / f"{path.stem}.jpg"))[..., ::-1]
        np.testing.assert_allclose(np.dstack(rgb).mean((0, 1)) / 257, image.mean((0, 1)), atol=2)
        labels = cv2.imread(
            str(rasters / "annotations" / "training" / f"{path.stem}.png"), cv2.IMREAD_UNCHANGED
        )
        for label in np.unique(labels):
            infrared.setdefault(label, []).append(fourth[labels == label])
    brightness = {label: np.concatenate(values).mean() for label, values in infrared.items()}
    by_class = {name: brightness[label] for label, name in enumerate(CLASSES, start=2)}
    assert sorted(by_class, key=by_class.get) == ["square", "star", "triangle", "circle"]


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["shapes", "--seed", -1], "ValueError: expected non-negative integer"),
        (["shapes", "--size", 8], "ValueError: --size 8: must be 16 or more"),
        (["file/shapes"], "FileExistsError: [Errno 17] File exists: 'file'"),
        (["."], "FileExistsError: . exists: remove it first"),
    ],
)
def test_invalid_arguments_end_in_one_line_and_leave_nothing(
    arguments, line, refusal, tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert refusal("make_shapes", *arguments, "--train", 1, "--val", 1) == line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
