"""Random data sets: what is written for a training is what was drawn, and what is lost is named."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as rle

from xcit_mm.datasets import Dataset, read_maps, read_objects
from xcit_mm.datasets.old_writing import write_dataset

WIDTH = 32
HEIGHT = 24
NAMES = ["car", "no", "1", "0x10", "~", "two words", "a: b", "犬"]
STEMS = ["a", "no", "1", "é", "b c", "IMG.1", "folder/a", "folder/000"]


class Thing(NamedTuple):
    """An object: x, y, width and height of its box. Its outline is a half of the box."""

    label: str
    box: tuple[int, int, int, int]
    has_outline: bool

    @property
    def outline(self) -> list[int]:
        """Return the corners of a triangle."""
        x, y, width, height = self.box
        return [x, y, x + width, y, x + width, y + height]

    @property
    def area(self) -> float:
        return self.box[2] * self.box[3] / (2 if self.has_outline else 1)


@st.composite
def things(draw: st.DrawFn) -> Thing:
    """Draw an object inside a photo."""
    x = draw(st.integers(0, WIDTH - 2))
    y = draw(st.integers(0, HEIGHT - 2))
    width = draw(st.integers(2, WIDTH - x))
    height = draw(st.integers(2, HEIGHT - y))
    return Thing(draw(st.sampled_from(NAMES)), (x, y, width, height), draw(st.booleans()))


def photos(labels: st.SearchStrategy) -> st.SearchStrategy[dict[str, list]]:
    """Draw the labels of photos, each below the folder of its split."""
    names = [f"{split}/{stem}.jpg" for split in ("train", "val") for stem in STEMS]
    labelled = st.dictionaries(st.sampled_from(names[:4]), labels.filter(bool), min_size=2)
    others = st.dictionaries(st.sampled_from(names[4:]), labels, max_size=6)
    return st.builds(lambda first, more: first | more, labelled, others)


def write_photos(data: dict, root: Path) -> None:
    for name in data:
        (root / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (WIDTH, HEIGHT), (90, 120, 60)).save(root / "images" / name)


def write_coco(data: dict[str, list[Thing]], root: Path, random: Random) -> None:
    """Write a json for each split, with outlines, RLE of pycocotools, and ids in any order."""
    ids = count(random.randrange(10**9))
    numbers = {name: next(ids) for name in random.sample(NAMES, len(NAMES))}
    for split in {name.split("/")[0] for name in data}:
        images = []
        annotations = []
        for name, objects in data.items():
            if not name.startswith(split):
                continue
            number = next(ids)
            size = dict(width=WIDTH, height=HEIGHT)
            images.append(dict(id=number, file_name=f"images/{name}", **size))
            for thing in objects:
                outline = [thing.outline] if thing.has_outline else []
                if outline and random.choice([True, False]):
                    code = rle.merge(rle.frPyObjects(outline, HEIGHT, WIDTH))
                    outline = dict(size=code["size"], counts=code["counts"].decode())
                shape = dict(bbox=thing.box, area=thing.area, segmentation=outline, iscrowd=0)
                labels = dict(image_id=number, category_id=numbers[thing.label])
                annotations.append(dict(id=next(ids), **labels, **shape))
        random.shuffle(images)
        random.shuffle(annotations)
        categories = [dict(id=number, name=name) for name, number in numbers.items()]
        content = dict(images=images, annotations=annotations, categories=categories)
        (root / f"{split}.json").write_text(json.dumps(content))


def write_yolo(data: dict[str, list[Thing]], root: Path, random: Random) -> None:
    """Write boxes and polygons, and a description."""
    names = random.sample(NAMES, len(NAMES))
    for photo, objects in data.items():
        lines = []
        for thing in objects:
            x, y, width, height = thing.box
            box = [x + width / 2, y + height / 2, width, height]
            values = np.array(thing.outline if thing.has_outline else box).reshape(-1, 2)
            scaled = (values / (WIDTH, HEIGHT)).ravel()
            lines.append(" ".join([str(names.index(thing.label)), *map(str, scaled)]))
        label = (root / "labels" / photo).with_suffix(".txt")
        label.parent.mkdir(parents=True, exist_ok=True)
        if lines or random.choice([True, False]):  # a photo without objects needs no file
            label.write_text("\n".join(lines))
    splits = {split: f"images/{split}" for split in {name.split("/")[0] for name in data}}
    listed = random.choice([names, dict(enumerate(names))])
    (root / "data.yaml").write_text(yaml.safe_dump(splits | dict(names=listed)), encoding="utf-8")


def written_objects(dataset: Dataset, root: Path) -> dict[str, Counter]:
    """Return name, box and area of the objects of each photo in the jsons for mmdet."""
    objects = {}
    for arguments in write_dataset(dataset, root, root.parent / "copies").values():
        content = json.loads(Path(arguments["ann_file"]).read_text())
        classes = {category["id"]: category["name"] for category in content["categories"]}
        paths = {image["id"]: Path(image["file_name"]) for image in content["images"]}
        names = {key: str(path.relative_to(root / "images")) for key, path in paths.items()}
        objects |= {name: Counter() for name in names.values()}
        for entry in content["annotations"]:
            values = [round(value, 1) for value in (*entry["bbox"], entry["area"])]
            objects[names[entry["image_id"]]][classes[entry["category_id"]], *values] += 1
        ids = {entry["id"] for entry in content["annotations"]}
        assert len(ids) == len(content["annotations"])
    return objects


@pytest.mark.parametrize("write", [write_coco, write_yolo])
@given(data=photos(st.lists(things(), max_size=5)), random=st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True, max_examples=15)
def test_objects_are_written_as_drawn_and_a_missing_photo_is_named(write, data, random):
    with TemporaryDirectory() as folder:
        root = Path(folder, "data").resolve()
        write_photos(data, root)
        write(data, root, random)
        drawn = {
            name: Counter((thing.label, *map(float, thing.box), thing.area) for thing in objects)
            for name, objects in data.items()
        }
        dataset = read_objects(root)
        assert written_objects(dataset, root) == drawn and str(dataset.left_out) == ""
        assert dataset.count_labels() == sum(map(len, data.values()))
        trained = [name for name in data if name.startswith("train") and data[name]]
        missing = random.choice(trained)
        (root / "images" / missing).unlink()
        drawn.pop(missing)
        dataset = read_objects(root)
        assert written_objects(dataset, root) == drawn
        assert str(Path(missing).with_suffix("")) in str(dataset.left_out)


def write_label_of_no_class(photo: Path, label: Path) -> None:
    labels = np.array(Image.open(label))
    labels[0, 0] = 7
    Image.fromarray(labels).save(label)


def enlarge(photo: Path, label: Path) -> None:
    Image.open(label).resize((64, 48), Image.Resampling.NEAREST).save(label)


FAULTS: dict[str, Callable[[Path, Path], object]] = {
    "a label of no class": write_label_of_no_class,
    "another size": enlarge,
    "another name": lambda photo, label: label.rename(label.with_stem("other")),
    "no map": lambda photo, label: label.unlink(),
    "no photo": lambda photo, label: photo.unlink(),
}


@pytest.mark.parametrize("spoil", FAULTS.values(), ids=FAULTS)
@given(data=photos(st.permutations([0, 1, 2, 255])), random=st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True, max_examples=6)
def test_maps_belong_to_their_photos_and_a_faulty_one_is_named(spoil, data, random):
    with TemporaryDirectory() as folder:
        root = Path(folder, "data").resolve()
        write_photos(data, root)
        palette = random.sample(range(256), 256) * 3
        pairs = {
            root / "images" / name: (root / "masks" / name).with_suffix(".png") for name in data
        }
        for labels, path in zip(data.values(), pairs.values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(np.resize(np.array(labels, np.uint8), (HEIGHT, WIDTH)))
            if random.choice([True, False]):
                image.putpalette(palette)
            image.save(path)
        names = tuple(random.sample(NAMES, 3))
        (root / "classes.txt").write_text("\n".join(names), encoding="utf-8")
        dataset = read_maps(root)
        splits = dataset.splits.values()
        read = [
            (image.path, path)
            for split in splits
            for image, path in zip(split.images, split.maps, strict=True)
        ]
        assert dict(read) == pairs and len(read) == len(pairs)
        assert dataset.classes == names and str(dataset.left_out) == ""
        photo, label = random.choice(list(pairs.items()))
        spoil(photo, label)
        try:
            dataset = read_maps(root)
            line = str(dataset.left_out)
        except ValueError as error:
            line = str(error)
        assert photo.stem in line and "\n" not in line
