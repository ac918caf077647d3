"""Layouts of data that people have: every image and label is used, or counted as left out."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers.doctor_data import edit_json
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from xcit_mm.launch.dataset import Photo
from xcit_mm.launch.formats import read_objects
from xcit_mm.launch.maps import read_maps

LABEL = "0 0.5 0.5 0.25 0.25\n"
XML = (
    "<annotation><object><name>thing</name><bndbox><xmin>13</xmin><ymin>13</ymin>"
    "<xmax>20</xmax><ymax>20</ymax></bndbox></object></annotation>"
)
SHAPES = [dict(label="thing", points=[[12, 12], [20, 20]], shape_type="rectangle")]
POINT = dict(label="thing", points=[[12, 12]], shape_type="point")
BOX = [12.0, 12.0, 8.0, 8.0]  # the object of all labels above


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_photo(path: Path, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (32, 32), 1 if mode == "L" else (90, 120, 60)).save(path)


def write_coco(path: Path, names: list[str]) -> None:
    images = [
        dict(id=n, file_name=name, width=32, height=32) for n, name in enumerate(names, start=1)
    ]
    objects = [
        dict(id=n, image_id=n, category_id=1, bbox=BOX, area=64, iscrowd=0, segmentation=[])
        for n in range(1, len(names) + 1)
    ]
    content = dict(images=images, annotations=objects, categories=[dict(id=1, name="thing")])
    write(path, json.dumps(content))


def write_labelled_photos(photos: Path, labels: Path) -> None:
    for number in range(3):
        write_photo(photos / f"{number}.jpg")
        write(labels / f"{number}.txt", LABEL)


def yolo_in_folders(root: Path) -> None:
    for place in ("a/1", "b/1", "top"):
        write_photo(root / f"images/train/{place}.jpg")
        write(root / f"labels/train/{place}.txt", LABEL)
    write(root / "data.yaml", "path: .\ntrain: images/train\nnames: [thing]\n")


def yolo_below_a_folder_images(root: Path) -> None:
    write_labelled_photos(root / "images-2026/train", root / "images-2026/train")
    write(root / "images-2026/data.yaml", "train: train\nnames: [thing]\n")


def yolo_with_lists(root: Path) -> None:
    write_labelled_photos(root / "images/train", root / "labels/train")
    lines = "".join(f"data\\images\\train\\{number}.jpg\n" for number in range(3))
    write(root / "train.txt", f"\ufeff{lines}")
    write(root / "data.yaml", "path: /home/someone/data\ntrain: [train.txt]\nnames: {'0': thing}\n")


def yolo_of_another_machine(root: Path) -> None:
    write_labelled_photos(root / "images", root / "labels")
    write(root / "data.yaml", "train: D:\\data\\images\nnames: [thing]\n")


def yolo_of_supervision(root: Path) -> None:
    write_labelled_photos(root / "images/train", root / "labels/train")
    write(root / "data.yaml", "names: [thing]\nnc: 1\n")


def yolo_whose_photos_lie_elsewhere(root: Path) -> None:
    place = root.parent / "elsewhere/images/train"
    write_labelled_photos(place, root.parent / "elsewhere/labels/train")
    write(root / "data.yaml", f"train: {place}\nnames: [thing]\n")


def yolo_with_classes_txt(root: Path) -> None:
    write_labelled_photos(root / "images", root / "labels")
    write(root / "classes.txt", "thing\n")
    write(root / "notes.json", "{}")  # of Label Studio


def yolo_of_all_suffixes(root: Path) -> None:
    for name in ("1.jpg", "2.JPG", "3.jpeg", "4.PNG", "5.webp", "6.bmp", "7.tif"):
        write_photo(root / "images" / name)
        write(root / "labels" / f"{name[0]}.txt", LABEL)
    for name in ("._1.jpg", ".DS_Store", "Thumbs.db"):
        (root / "images" / name).write_bytes(b"\0")
    write(root / "data.yaml", "train: images\nnames: [thing]\n")


def voc_in_folders(root: Path) -> None:
    for place in ("a/1", "b/1", "b/2"):
        write_photo(root / f"train/{place}.jpg")
        write(root / f"train/{place}.xml", XML)


def voc_devkits(root: Path) -> None:
    for year in ("VOC2007", "VOC2012"):
        for number in range(2):
            write_photo(root / year / f"JPEGImages/{number}.jpg")
            write_photo(root / year / f"SegmentationClass/{number}.png", "L")
            write(root / year / f"Annotations/{number}.xml", XML)
        write(root / year / "ImageSets/Main/train.txt", "0\n")
        write(root / year / "ImageSets/Main/val.txt", "1\n")
        write(root / year / "ImageSets/Main/trainval.txt", "0\n1\n")


def labelme(root: Path) -> None:
    for number in range(3):
        write_photo(root / f"train/{number}.jpg")
        write(root / f"train/{number}.json", json.dumps(dict(shapes=SHAPES)))
    write(root / "train/2.json", json.dumps(dict(shapes=[*SHAPES, POINT])))


def cvat(root: Path) -> None:
    for split in ("Train", "Validation"):
        for number in range(2):
            write_photo(root / "images" / split / f"{number}.jpg")
        write_coco(root / f"annotations/instances_{split}.json", ["0.jpg", "1.jpg"])


def coco_of_another_machine(root: Path) -> None:
    for number in range(3):
        write_photo(root / f"images/{number}.jpg")
    names = ["C:\\me\\0.jpg", "/home/me/1.jpg", "../../label-studio/upload/2.jpg"]
    write_coco(root / "result.json", names)


@pytest.mark.parametrize(
    "layout, description",
    [
        (yolo_in_folders, "3 photos, 3 objects"),
        (yolo_below_a_folder_images, "3 photos, 3 objects"),
        (yolo_with_lists, "3 photos, 3 objects"),
        (yolo_of_another_machine, "3 photos, 3 objects"),
        (yolo_of_supervision, "3 photos, 3 objects"),
        (yolo_whose_photos_lie_elsewhere, "3 photos, 3 objects"),
        (yolo_with_classes_txt, "3 photos, 3 objects"),
        (yolo_of_all_suffixes, "7 photos, 7 objects"),
        (voc_in_folders, "3 photos, 3 objects"),
        (voc_devkits, "2 photos, 2 objects of 1 classes; held out 2 photos"),
        (labelme, "left out: 1 shapes of the type point"),
        (cvat, "2 photos, 2 objects of 1 classes; held out 2 photos"),
        (coco_of_another_machine, "3 photos, 3 objects"),
    ],
)
def test_all_photos_and_boxes_of_a_layout_are_used(
    layout: Callable[[Path], None], description: str, folder
):
    layout(folder / "data")
    dataset = read_objects(folder / "data")
    assert description in dataset.describe()
    for objects in filter(None, (dataset.training, dataset.held_out)):
        assert all(photo.path.is_file() for photo in objects.photos)
        assert all(list(shape.box) == BOX for photo in objects.photos for shape in photo.shapes)


def test_labels_without_a_photo_and_photos_of_no_split_are_counted(folder):
    yolo_in_folders(folder)
    write(folder / "labels/train/gone.txt", LABEL)
    write_photo(folder / "images/extra/1.jpg")
    line = read_objects(folder).describe()
    assert line.endswith("left out: 1 labels without a photo, 1 photos in no split")


def maps(photo: str, label: str) -> Callable[[Path], None]:
    """Return a layout of photos and maps named by these patterns of a split and a number."""

    def layout(root: Path) -> None:
        for split in ("train", "val"):
            for number in range(2):
                write_photo(root / photo.format(split=split, number=number))
                write_photo(root / label.format(split=split, number=number), "L")

    return layout


MAPS = {
    "in folders": maps("images/{split}/a/{number}.jpg", "masks/{split}/a/{number}.png"),
    "images and masks of a split": maps(
        "{split}/images/{number}.jpg", "{split}/masks/{number}.png"
    ),
    "NAME_mask.png": maps("{split}/{number}.jpg", "{split}/{number}_mask.png"),
    "photos as PNG": maps("images/{split}/{number}.png", "labels/{split}/{number}.png"),
    "photos as webp": maps("images/{split}/{number}.webp", "annotations/{split}/{number}.PNG"),
    "maps as tif": maps("images/{split}/{number}.JPG", "annotations/{split}/{number}.tif"),
    "of Cityscapes": maps(
        "leftImg8bit/{split}/a/{number}_leftImg8bit.png",
        "gtFine/{split}/a/{number}_gtFine_labelIds.png",
    ),
    "told apart by channels": maps(
        "{split}/photo/{number}.png", "{split}/masks/photo/{number}.png"
    ),
}


@pytest.mark.parametrize("layout", MAPS.values(), ids=MAPS)
def test_all_photos_with_maps_of_a_layout_are_used(layout, folder):
    layout(folder / "data")
    dataset = read_maps(folder / "data")
    assert dataset.describe() == "2 photos with maps of 2 classes; held out 2 photos"
    for photo, label in dataset.training.pairs:
        assert Image.open(photo).mode == "RGB" and Image.open(label).mode == "L"


def test_lists_divide_the_maps_of_pascal_voc(folder):
    for number in range(3):
        write_photo(folder / f"VOC2012/JPEGImages/{number}.jpg")
        write_photo(folder / f"VOC2012/SegmentationClass/{number}.png", "L")
    write(folder / "VOC2012/ImageSets/Segmentation/train.txt", "0\n")
    write(folder / "VOC2012/ImageSets/Segmentation/val.txt", "1\n")
    line = read_maps(folder).describe()
    assert "1 photos with" in line and line.endswith("left out: 1 photos in no split")


def test_test_photos_never_meet_the_maps_of_val(folder):
    MAPS["in folders"](folder)
    for number in range(2):
        write_photo(folder / f"images/test/a/{number}.jpg")
    dataset = read_maps(folder)
    assert dataset.describe().endswith("left out: 2 test photos without a label")


@pytest.mark.parametrize("names", [None, "ground\n"])
def test_maps_of_one_class_are_one_line_with_the_remedy(names, folder):
    write_photo(folder / "images/0.jpg")
    (folder / "masks").mkdir()
    Image.new("L", (32, 32), 255 if names is None else 1).save(folder / "masks/0.png")
    if names:
        write(folder / "classes.txt", names)
    with pytest.raises(ValueError, match=r"has one class, .*: write the labels 0, 1, \.\.\."):
        read_maps(folder)


def test_a_truncated_map_is_one_line_with_its_name(folder):
    write_photo(folder / "images/0.jpg")
    (folder / "masks").mkdir()
    Image.effect_noise((32, 32), 9).save(folder / "masks/0.png")
    whole = (folder / "masks/0.png").read_bytes()
    (folder / "masks/0.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"masks/0\.png cannot be read: "):
        read_maps(folder)


def test_mixed_suffixes_and_endings_are_read_by_the_library(trained_segmentor, started, folder):
    names = {"1.jpg": "1.png", "2.JPG": "2_mask.png", "b/1.jpeg": "b/1.tif"}
    for photo, label in names.items():
        write_photo(folder / "data/images/train" / photo)
        write_photo(folder / "data/masks/train" / label, "L")
    cfg = started(trained_segmentor, "--data", folder / "data", "--skip-checks")
    init_default_scope("mmseg")
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    images = [dataset.get_data_info(index) for index in range(len(dataset))]
    photos = [Path(image["img_path"]) for image in images]
    assert photos == [folder / "data/images/train" / name for name in names]
    labels = [np.asarray(Image.open(image["seg_map_path"])) for image in images]
    assert all((label == 1).all() for label in labels)


TEXT_IDS = dict(images="im-{}", annotations="ann-{}", categories="c{}")


def with_text_ids(content: dict) -> None:
    for name, pattern in TEXT_IDS.items():
        for entry in content[name]:
            entry["id"] = pattern.format(entry["id"])
    for annotation in content["annotations"]:
        annotation["image_id"] = TEXT_IDS["images"].format(annotation["image_id"])
        annotation["category_id"] = TEXT_IDS["categories"].format(annotation["category_id"])


def with_ids_from_zero(content: dict) -> None:
    for annotation in content["annotations"]:
        annotation["id"] -= content["annotations"][0]["id"]


def with_numbers_as_text(content: dict) -> None:
    for annotation in content["annotations"]:
        annotation["bbox"] = [str(value) for value in annotation["bbox"]]
        annotation["image_id"] = str(annotation["image_id"])
        del annotation["area"], annotation["iscrowd"]
    for image in content["images"]:
        image["width"] = str(image["width"])


def without_sizes(content: dict) -> None:
    for image in content["images"]:
        image.update(width=0, height=0)


def with_a_category_twice(content: dict) -> None:
    content["categories"].append(dict(id=9, name=content["categories"][0]["name"]))
    for annotation in content["annotations"][::2]:
        if annotation["category_id"] == content["categories"][0]["id"]:
            annotation["category_id"] = 9


def in_another_order(content: dict) -> None:
    content["categories"].reverse()


def numbered_otherwise(content: dict) -> None:
    ids = {1: 2, 2: 1}
    for annotation in content["annotations"]:
        annotation["category_id"] = ids[annotation["category_id"]]
    for category in content["categories"]:
        category["id"] = ids[category["id"]]


def objects_of(photos: Sequence[Photo]) -> list[tuple]:
    """Return photos with the class and box of each object."""
    return [
        (photo.path, photo.size, [(shape.label, shape.box) for shape in photo.shapes])
        for photo in photos
    ]


@pytest.mark.parametrize(
    "spoil",
    [
        with_text_ids,
        with_ids_from_zero,
        with_numbers_as_text,
        without_sizes,
        with_a_category_twice,
        in_another_order,
        numbered_otherwise,
    ],
)
def test_a_json_that_would_be_misread_is_read_as_it_is_meant(spoil, data):
    original = read_objects(data)
    edit_json(data / "annotations/instances_validation.json", spoil)
    dataset = read_objects(data)
    assert dataset.classes == original.classes
    assert objects_of(dataset.held_out.photos) == objects_of(original.held_out.photos)


def test_some_annotations_without_a_mask_are_named_and_the_user_chooses(
    trained, data, refused, started
):
    path = data / "annotations/instances_training.json"
    edit_json(path, lambda content: content["annotations"][3].update(segmentation=[]))
    annotation = json.loads(path.read_text())["annotations"][3]
    message = refused(trained, "--data", data)
    assert "1 of " in message and f"have no mask: {annotation['id']} of 0000" in message
    assert started(trained, "--data", data, "--boxes").model.type == "FasterRCNN"


def test_the_copy_follows_corrected_labels(trained, started, folder, capsys):
    yolo_in_folders(folder / "data")
    write(folder / "data/data.yaml", "train: images/train\nnames: [thing, other]\n")
    started(trained, "--data", folder / "data")
    write(folder / "data/labels/train/top.txt", LABEL.replace("0", "1", 1))
    capsys.readouterr()
    cfg = started.again(folder / "data.py")
    content = json.loads(Path(cfg.train_dataloader.dataset.ann_file).read_text())
    assert sorted(entry["category_id"] for entry in content["annotations"]) == [1, 1, 2]
    assert "data has changed" in capsys.readouterr().err
    started.again(folder / "data.py")
    assert "has changed" not in capsys.readouterr().err
    shutil.rmtree(folder / "data-coco")
    started.again(folder / "data.py")
    assert "data-coco is missing" in capsys.readouterr().err


def test_other_classes_need_another_config(trained, started, folder):
    yolo_in_folders(folder / "data")
    started(trained, "--data", folder / "data")
    write(folder / "data/data.yaml", "train: images/train\nnames: [thing, other]\n")
    with pytest.raises(SystemExit, match="write another config by --from"):
        started.again(folder / "data.py")


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("data.yaml", b"names: [thing\ntrain: a", "data.yaml cannot be read"),
        ("data.yaml", b"text", "data.yaml cannot be read"),
        ("0.xml", b"<annotation>", "0.xml cannot be read"),
        ("0.json", b'{"shapes": [1', "0.json cannot be read"),
        ("classes.txt", "Böden\n".encode("latin-1"), "classes.txt cannot be read"),
        ("result.json", b'{"annotations": [', "result.json is not in COCO's format"),
    ],
)
def test_a_broken_file_is_one_line_with_its_name(name, content, message, folder):
    write_photo(folder / "0.jpg")
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError) as error:
        read_objects(folder)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_link_to_a_folder_above_ends(folder):
    yolo_in_folders(folder / "data")
    (folder / "data/images/train/loop").symlink_to(folder / "data")
    shutil.move(folder / "data/images/train/a", folder / "elsewhere")
    (folder / "data/images/train/a").symlink_to(folder / "elsewhere")
    assert "3 photos, 3 objects" in read_objects(folder / "data").describe()
