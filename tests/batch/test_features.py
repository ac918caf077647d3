"""tools/features.py: descriptors of the model, nearest neighbours, and DINO's weighted votes."""

import cv2
import numpy as np
import pytest
import torch
from golden import fill
from PIL import Image

from xcit_mm import XCiTClassifier
from xcit_mm.batch.features import extract_features, gem
from xcit_mm.batch.neighbours import contact_sheet, find_nearest, knn_accuracy
from xcit_mm.models.backbone import Trunk

ARCH = dict(embed_dim=32, depth=6, num_heads=4, eta=1.0)
COLOURS = dict(red=(0, 0, 200), blue=(200, 0, 0))


@pytest.fixture(scope="module")
def model() -> XCiTClassifier:
    return fill(XCiTClassifier(ARCH, 16, num_classes=3, norm_cfg=dict(type="BN")))


@pytest.fixture
def folder(tmp_path):
    """Red and blue noise, as train/CLASS/ and val/CLASS/."""
    rng = np.random.default_rng(0)
    for split, count in dict(train=4, val=2).items():
        for name, colour in COLOURS.items():
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for number in range(count):
                image = (np.array(colour) + rng.integers(0, 50, (70, 90, 3))).astype(np.uint8)
                cv2.imwrite(str(tmp_path / "images" / split / name / f"{number}.png"), image)
    return tmp_path / "images"


@pytest.fixture
def weights(model, tmp_path):
    torch.save(dict(model=model.state_dict()), tmp_path / "weights.pth")
    return tmp_path / "weights.pth"


def test_descriptors_are_those_of_the_model(model, tmp_path):
    """An image whose shorter side is 8/7 of the size is cropped without resizing. Channels are RGB, normalised."""
    image = np.random.default_rng(0).integers(0, 256, (128, 200, 3)).astype(np.uint8)
    Image.fromarray(image).save(tmp_path / "a.png")
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    cv2.imwrite(str(tmp_path / "thin.png"), np.zeros((1, 20000, 3), np.uint8))
    found = extract_features(model, tmp_path, size=112, workers=0, patches=True)
    assert found.paths == ["a.png"]
    assert [line.split(":")[0].split("/")[-1] for line in found.failures] == ["broken.jpg", "thin.png"]
    mean, std = torch.tensor([123.675, 116.28, 103.53]), torch.tensor([58.395, 57.12, 57.375])
    x = ((torch.from_numpy(image[8:120, 44:156]).float() - mean) / std).permute(2, 0, 1)[None]
    with torch.no_grad():
        cls, tokens = model.forward_features(x)
    for name, expected in dict(cls=cls, mean=tokens.mean(dim=(2, 3)), gem=gem(tokens)).items():
        assert np.allclose(found.descriptors[name], expected, atol=1e-4)
    assert np.allclose(found.patches, tokens, atol=1e-4)


def test_descriptors_of_several_scales_are_the_mean_of_unit_vectors(model, folder):
    single = [extract_features(model, folder, size, workers=0).descriptors for size in (64, 32)]
    found = extract_features(model, folder, size=64, workers=0, scales=(1, 0.5)).descriptors
    for name, values in found.items():
        units = [each[name] / np.linalg.norm(each[name], axis=1, keepdims=True) for each in single]
        assert np.abs(units[0] - units[1]).max() > 0.05  # the scales differ
        assert np.allclose(values, (units[0] + units[1]) / 2, atol=0.03)  # 32 pixels resized from the file, or from 64
        assert not np.allclose(values, units[0], atol=0.03)


@pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "P", "I;16"])
def test_images_of_every_mode_are_read(mode, model, tmp_path):
    grey = Image.fromarray(np.full((40, 40), 100, np.uint8))
    image = Image.fromarray(np.full((40, 40), 100 * 257, np.uint16)) if mode == "I;16" else grey.convert(mode)
    image.save(tmp_path / ("a.jpg" if mode == "CMYK" else "a.png"))
    (tmp_path / "reference").mkdir()
    grey.save(tmp_path / "reference" / "b.png")
    found = extract_features(model, tmp_path, size=32, workers=0)
    assert not found.failures
    assert np.allclose(*found.descriptors["cls"], atol=0.05)


def test_exif_orientation_is_applied(model, tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 6  # turn it by a quarter to the right to see it upright
    image.save(tmp_path / "a.png", exif=turned)
    image.transpose(Image.Transpose.ROTATE_270).save(tmp_path / "b.png")
    assert np.allclose(*extract_features(model, tmp_path, size=32, workers=0).descriptors["cls"])


def test_the_contact_sheet_shows_neighbours_without_the_query(folder):
    paths = [f"{name}/{number}.png" for name in ("blue", "red") for number in (0, 1)]
    descriptors = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], np.float32)
    sheet = contact_sheet(folder / "val", paths, descriptors, queries=4, count=1)
    titles = [axis.get_title() for axis in sheet.axes]
    assert titles[::2] == paths
    assert titles[1::2] == ["0.995"] * 4
    for number in range(0, 8, 2):  # each beside the other image of its color
        image, other = (axis.images[0].get_array() for axis in sheet.axes[number : number + 2])
        assert not np.array_equal(image, other)
        assert np.abs(image.mean(axis=(0, 1)) - other.mean(axis=(0, 1))).max() < 5
    with pytest.raises(ValueError, match="4 neighbours of 4 images: must be 1 to 3"):
        contact_sheet(folder / "val", paths, descriptors, queries=4, count=4)


def test_gem_of_known_values():
    """The cubic mean weighs large values more. Negative values count as 0."""
    features = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]], [[2.0, 2.0], [2.0, 2.0]], [[-5.0, -1.0], [-1.0, 2.0]]]])
    expected = [[(100 / 4) ** (1 / 3), 2, 2 ** (1 / 3)]]  # 1 + 8 + 27 + 64 = 100; 8 / 4 = 2
    assert np.allclose(gem(features), expected, atol=1e-5)
    assert np.allclose(gem(features, power=1), [[2.5, 2, 0.5]], atol=1e-5)


def test_nearest_neighbours_are_sorted_by_cosine():
    rng = np.random.default_rng(0)
    gallery, queries = (
        rng.standard_normal((50, 8)).astype(np.float32),
        rng.standard_normal((3000, 8)).astype(np.float32),
    )
    numbers, similarities = find_nearest(queries, gallery, 4)
    cosines = (queries @ gallery.T) / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(gallery, axis=1)
    assert np.allclose(similarities, -np.sort(-cosines, axis=1)[:, :4], atol=1e-5)
    assert np.allclose(np.take_along_axis(cosines, numbers, axis=1), similarities, atol=1e-5)
    with pytest.raises(ValueError, match="51 neighbours of 50"):
        find_nearest(queries, gallery, 51)


def test_votes_are_weighted_by_similarity():
    def at(*degrees: float) -> np.ndarray:
        angle = np.radians(degrees)
        return np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)

    # A very near neighbour of class 0 against two of class 1: exp(-0.0004 / T) against 2 exp(-0.134 / T).
    train, labels = at(1.6, 30, -30), [0, 1, 1]
    assert knn_accuracy(train, labels, at(0), [0], k=3, temperature=0.07) == 1
    # A high temperature makes it a plain majority.
    assert knn_accuracy(train, labels, at(0), [1], k=3, temperature=10) == 1
    assert knn_accuracy(train, labels, at(0), [0], k=1) == 1


def test_extract_knn_and_neighbours(call, folder, weights, tmp_path):
    size = ("--size", 64, "--workers", 0)
    code, printed, _ = call("features", "knn", folder, weights, *size, "-k", 1, 3)
    assert code == 0
    lines = printed.splitlines()
    assert "2 classes, 8 training images, 4 classified images" in lines
    assert [line.split() for line in lines[-3:]] == [[name, "100.0%", "100.0%"] for name in ("cls", "mean", "gem")]

    (folder / "val" / "red" / "empty.png").touch()
    out = tmp_path / "out" / "f.npz"
    code, printed, errors = call("features", "extract", folder / "val", weights, "--out", out, *size)
    assert code == 1 and "empty.png" in errors and "4 images, cls, mean, gem of 32 numbers each" in printed
    content = np.load(out)
    assert content["paths"].tolist() == ["blue/0.png", "blue/1.png", "red/0.png", "red/1.png"]
    assert {name: content[name].shape for name in ("cls", "mean", "gem")} == dict.fromkeys(
        ["cls", "mean", "gem"], (4, 32)
    )

    sheet = tmp_path / "sheet.jpeg"
    assert call("features", "neighbours", folder / "val", out, "--out", sheet, "--count", 2)[0] == 0
    picture = cv2.imread(str(sheet)).reshape(-1, 3).astype(int)
    assert (picture[:, 2] - picture[:, 0] > 150).any() and (picture[:, 0] - picture[:, 2] > 150).any()


def test_errors_are_one_line(refusal, folder, weights, tmp_path):
    torch.save(Trunk(ARCH).state_dict(), tmp_path / "trunk.pth")
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    (tmp_path / "none").mkdir()
    (folder / "val" / "green").mkdir()
    for arguments, message in [
        (("extract", folder, tmp_path / "trunk.pth", "--out", "a.npz"), "has no class attention"),
        (("extract", folder, weights, "--out", "a.txt"), "name it .npz"),
        (("extract", folder, weights, "--out", "a.npz", "--scales", 1, 0), "--scales 1.0 0.0: must be positive"),
        (("extract", folder, weights, "--out", "a.npz", "--scales", 1, 2, "--patches"), "patches have one scale"),
        (("extract", folder, weights, "--out", "a.npz", "--scales", 0.01), "at least"),
        (("extract", folder, weights, "--out", "a.npz", "--device", "cuda:99"), "--device cuda:99 cannot be used"),
        (("neighbours", folder, tmp_path / "other.npz", "--out", "a.txt"), "name a .png"),
        (("extract", tmp_path / "none", weights, "--out", "a.npz"), "no images below"),
        (
            ("neighbours", folder, tmp_path / "other.npz", "--out", "a.png"),
            "is not a file of `tools/features.py extract`",
        ),
        (("neighbours", folder, tmp_path / "broken.npz", "--out", "a.png"), "is not a file of"),
        (("knn", tmp_path / "none", weights), "the layout must be train/CLASS/ and val/CLASS/"),
        (("knn", folder, weights), "must be 1 to 8"),  # the default asks for 10 and 20 neighbours
    ]:
        assert message in refusal("features", *arguments)
    cv2.imwrite(str(folder / "val" / "green" / "0.png"), np.zeros((40, 40, 3), np.uint8))
    assert "0.png is not in a class of" in refusal("features", "knn", folder, weights)
