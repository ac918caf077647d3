"""Random data sets of objects or maps, and writers of each format, not the package's own."""

import json
import os
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import supervision as sv
import yaml
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as rle

WIDTH = 32
HEIGHT = 24
NAMES = [
    "car",
    "no",
    "on",
    "null",
    "1",
    "0x10",
    "~",
    "é",
    "e\u0301",
    "two words",
    " x ",
    "a: b",
    "犬",
]
STEMS = ["a", "no", "1", "é", "e\u0301", "b c", "IMG.1", "x_mask", "val", "label", "000"]
FOLDERS = ["", "", "a", "1", "é/deep", "some images"]
WORDS = {
    "train": ["train", "Training", "train2017", "TRAIN"],
    "val": ["val", "valid", "Validation", "dev"],
    "test": ["test", "Testing"],
}
EXTRA_FILES = {
    "README.md": "# names: car",
    "README.txt": "read me",
    "scene.jpg.aux.xml": "<PAMDataset></PAMDataset>",
    "captions_train2017.json": '{"images": [], "annotations": [{"image_id": 1, "caption": "a"}]}',
    "package.json": '{"shape": 1}',
    "train.cache": "\0\1",
    ".DS_Store": "\0",
    "Thumbs.db": "\0",
    "._a.jpg": "\0",
    "__MACOSX/._a.jpg": "\0",
}
Columns = dict[str, Counter]
"""Label, box and area of the objects of each photo, by its real path."""


@dataclass(frozen=True)
class Thing:
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
    def column(self) -> tuple:
        """Return what must be read."""
        area = self.box[2] * self.box[3] / (2 if self.has_outline else 1)
        return composed(self.label), *map(float, self.box), area


@dataclass
class Photo:
    """A photo with its label file, if its format has one for each."""

    split: str
    path: Path
    label: Path
    things: list[Thing]


@st.composite
def objects(draw: st.DrawFn, names: list[str]) -> Thing:
    """Draw an object inside a photo."""
    x = draw(st.integers(0, WIDTH - 2))
    y = draw(st.integers(0, HEIGHT - 2))
    width = draw(st.integers(2, WIDTH - x))
    height = draw(st.integers(2, HEIGHT - y))
    return Thing(draw(st.sampled_from(names)), (x, y, width, height), draw(st.booleans()))


@st.composite
def splits(draw: st.DrawFn, labels: st.SearchStrategy, stems: list[str]) -> dict[str, dict]:
    """Draw the label of each photo of each split. That of the first photo is not empty."""
    data: dict[str, dict[str, Any]] = {}
    for split in draw(
        st.sampled_from([("train",), ("train", "val"), ("train", "test"), (*WORDS,)])
    ):
        names = st.lists(st.sampled_from(stems), min_size=1, max_size=4, unique_by=composed)
        data[split] = {}
        for stem in draw(names):
            folder = draw(st.sampled_from(FOLDERS))
            suffix = draw(st.sampled_from([".jpg", ".JPG", ".jpeg", ".png", ".tif", ".webp"]))
            label = draw(labels if any(data.values()) else labels.filter(bool))
            data[split][f"{folder}/{stem}{suffix}".lstrip("/")] = label
    return data


@st.composite
def object_sets(draw: st.DrawFn) -> dict[str, dict[str, list[Thing]]]:
    """Draw the objects of each photo of each split."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    return draw(splits(st.lists(objects(names), max_size=5), STEMS))


def map_sets() -> st.SearchStrategy[dict[str, dict[str, list[int]]]]:
    """Draw the labels of the map of each photo of each split, in any order."""
    stems = [stem for stem in STEMS if stem != "x_mask"]  # beside photos, it would name a map
    return splits(st.permutations([0, 1, 2, 255]), stems)


def composed(name: str) -> str:
    """Return the name of a class as a user sees it."""
    return unicodedata.normalize("NFC", name).strip()


def write(path: Path, text: str, random: Random) -> None:
    """Write a text as some editor does."""
    newline = random.choice(["\n", "\r\n"])
    path.parent.mkdir(parents=True, exist_ok=True)
    encoding = random.choice(["utf-8", "utf-8-sig", "utf-16"])
    path.write_bytes(text.replace("\n", newline).encode(encoding))


def write_photos(data: Mapping, root: Path, suffix: str, random: Random) -> list[Photo]:
    """Write the photos in one of the usual folders, in any order, without their labels."""
    pattern = random.choice(["{split}", "images/{split}", "{split}/images", "JPEGImages/{split}"])
    labels = random.choice(["labels", "Annotations", "masks"])
    suffix = random.choice([suffix, suffix.upper()])
    photos = []
    for split, things_of_photos in data.items():
        word = random.choice(WORDS[split] + [""] * (len(data) == 1))
        folder = root / pattern.format(split=word).strip("/")
        for name, things in things_of_photos.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (WIDTH, HEIGHT), (90, 120, 60)).save(path)
            parts = path.relative_to(root).parts
            apart = [labels if part in ("images", "JPEGImages") else part for part in parts]
            label = root.joinpath(*apart).with_suffix(suffix)
            form = random.choice(["NFC", "NFD"])  # in which a Mac writes names
            label = label.with_name(unicodedata.normalize(form, label.name))
            photos.append(Photo(split, path, label, things))
    random.shuffle(photos)
    return photos


def to_supervision(photos: list[Photo], names: list[str]) -> sv.DetectionDataset:
    """Return the boxes of photos as a data set of supervision."""
    detections = {}
    for photo in photos:
        boxes = np.array([thing.box for thing in photo.things], float).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = np.array([names.index(thing.label) for thing in photo.things], int)
        detections[str(photo.path)] = sv.Detections(xyxy=boxes, class_id=labels)
    return sv.DetectionDataset(names, list(detections), detections)


def shuffled_names(data: Mapping, random: Random) -> list[str]:
    """Return the names of the classes in any order."""
    photos = [things for photos in data.values() for things in photos.values()]
    names = sorted({thing.label for things in photos for thing in things})
    random.shuffle(names)
    return names


def write_coco(data: Mapping, root: Path, random: Random) -> list[Photo]:
    """Write supervision's jsons, with outlines, RLE of pycocotools, and ids of other tools."""
    photos = write_photos(data, root, ".json", random)
    names = shuffled_names(data, random)
    place = random.choice(["{}.json", "annotations/instances_{}.json", "labels/{}/labels.json"])
    for split in data:
        of_split = [photo for photo in photos if photo.split == split]
        path = root / place.format(random.choice(WORDS[split]))
        to_supervision(of_split, names).as_coco(annotations_path=str(path))
        content = json.loads(path.read_bytes())
        for image, photo in zip(content["images"], of_split, strict=True):
            image["file_name"] = file_name(photo.path, root, random)
        things = [thing for photo in of_split for thing in photo.things]
        for annotation, thing in zip(content["annotations"], things, strict=True):
            add_outline(annotation, thing, random)
        rename_ids(content, random)
        text = json.dumps(content, ensure_ascii=random.choice([True, False]), indent=1)
        write(path, text, random)
    return photos


def file_name(path: Path, root: Path, random: Random) -> str:
    """Return the path of a photo as a tool writes it."""
    name = path.relative_to(root).as_posix()
    names = [name, f"/home/me/{name}", f"./{name}", f"../../label-studio/{name}"]
    return random.choice([*names, name.replace("/", "\\"), f"D:\\data\\{name}"])


def add_outline(annotation: dict[str, Any], thing: Thing, random: Random) -> None:
    """Write an outline, or an RLE, into an annotation of COCO."""
    annotation["area"] = thing.column[-1]
    annotation["segmentation"] = [thing.outline] if thing.has_outline else []
    if thing.has_outline and random.choice([True, False]):
        code = rle.merge(rle.frPyObjects([thing.outline], HEIGHT, WIDTH))
        annotation["segmentation"] = dict(size=code["size"], counts=code["counts"].decode())


def rename_ids(content: dict[str, Any], random: Random) -> None:
    """Give ids of other types, and any order, to the lists of a COCO json."""
    rename = random.choice([int, str, "id {}".format, lambda number: number - 1, float])
    for key in ("images", "categories", "annotations"):
        random.shuffle(content[key])
        for entry in content[key]:
            for name in ("id", "image_id", "category_id"):
                if name in entry:
                    entry[name] = rename(entry[name])


def write_yolo(data: Mapping, root: Path, random: Random) -> list[Photo]:
    """Write supervision's texts, or polygons by hand, and a description."""
    photos = write_photos(data, root, ".txt", random)
    names = shuffled_names(data, random)
    for photo in photos:
        if any(thing.has_outline for thing in photo.things):
            text = "\n".join(yolo_line(thing, names) for thing in photo.things)
        else:
            with TemporaryDirectory() as folder:
                to_supervision([photo], names).as_yolo(annotations_directory_path=folder)
                text = Path(folder, f"{photo.path.stem}.txt").read_text()
        if text or random.choice([True, False]):  # a photo without objects needs no file
            write(photo.label, text, random)
    describe_yolo(photos, names, root, random)
    return photos


def yolo_line(thing: Thing, names: list[str]) -> str:
    """Return a line with a box or a polygon."""
    x, y, width, height = thing.box
    values = thing.outline if thing.has_outline else [x + width / 2, y + height / 2, width, height]
    scaled = np.array(values).reshape(-1, 2) / (WIDTH, HEIGHT)
    return " ".join([str(names.index(thing.label)), *map(str, scaled.ravel())])


def describe_yolo(photos: list[Photo], names: list[str], root: Path, random: Random) -> None:
    """Write data.yaml. Splits are lists of photos, or those of the folders."""
    entries: dict[str, Any] = dict(nc=len(names))
    entries["names"] = random.choice([names, dict(enumerate(names))])
    if random.choice([True, False]):
        for split in dict.fromkeys(photo.split for photo in photos):
            paths = [photo.path for photo in photos if photo.split == split]
            names_of_files = [file_name(path, root, random) for path in paths]
            write(root / f"{split}.txt", "\n".join(names_of_files), random)
            entries[split] = random.choice([f"{split}.txt", [f"./{split}.txt"]])
    text = yaml.safe_dump(entries, allow_unicode=random.choice([True, False]))
    write(root / "data.yaml", text, random)


WRITERS = dict(coco=write_coco, yolo=write_yolo)


def write_maps(data: Mapping, root: Path, random: Random) -> tuple[list[Photo], tuple[str, ...]]:
    """Write maps in greys or with one palette, and perhaps the names of their three classes."""
    photos = write_photos(data, root, random.choice([".png", ".tif", ".bmp"]), random)
    palette = random.sample(range(256), 256) * 3
    for photo in photos:
        if photo.label.parent == photo.path.parent:
            photo.label = photo.label.with_stem(f"{photo.label.stem}_mask")
        else:
            words = [word for word in WORDS[photo.split] if word.isalpha()]
            parts = photo.label.relative_to(root).parts
            parts = tuple(random.choice(words) if part in words else part for part in parts)
            photo.label = root.joinpath(*parts)
        photo.label.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(np.resize(np.array(photo.things, np.uint8), (HEIGHT, WIDTH)))
        if random.choice([True, False]):
            image.putpalette(palette)
        image.save(photo.label)
    if random.choice([True, False]):
        return photos, ("class 0", "class 1", "class 2")
    names = random.sample(sorted(set(map(composed, NAMES))), 3)
    write(root / "classes.txt", "\n".join(names), random)
    return photos, tuple(names)


def add_extra_files(root: Path, random: Random) -> None:
    """Write files that no training needs."""
    for name in random.sample(sorted(EXTRA_FILES), random.randint(0, 3)):
        folder = random.choice([path for path in [root, *root.rglob("*")] if path.is_dir()])
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(EXTRA_FILES[name])


def replace_by_link(path: Path, store: Path) -> None:
    """Move a file or a folder elsewhere, and leave a link."""
    store.mkdir(exist_ok=True)
    target = store / f"{len(list(store.iterdir()))}{path.suffix}"
    path.rename(target)
    path.symlink_to(target, path.is_dir())


def meaning(photos: list[Photo]) -> Columns:
    """Return what must be read."""
    return {
        os.path.realpath(photo.path): Counter(thing.column for thing in photo.things)
        for photo in photos
    }
