"""The doctor compares the data sets of a config with each other, and checks those of the test."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from helpers.doctor_data import (
    MASK_RCNN,
    SEMANTIC_FPN,
    SHAPES,
    VAL_JSON,
    assert_named,
    edit_json,
    failures,
    findings,
    make_crowds,
    write_segmentation_maps,
)
from mmengine.config import Config

from xcit_mm.checks.doctor import check_test
from xcit_mm.checks.findings import Finding

pytestmark = pytest.mark.usefixtures("doctors_place")


def test_other_names_of_the_same_classes_are_a_note():
    option = "val_dataloader.dataset.metainfo.classes=({},square,triangle,star)"
    assert failures(SHAPES, option.format("ground,disc")) == []
    found = failures(SHAPES, option.format("circle,background"))
    assert_named(found, [("D305", "train", "val")])


def test_data_sets_in_wrappers_are_checked(own_config):
    config = own_config(
        "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=2, "
        "dataset=dict(type='ConcatDataset', "
        "datasets=[dict(type='BaseSegDataset', data_root='nowhere')])))"
    )
    expected = [("D311", "train", "nowhere"), ("D302", "classes=None", "train")]
    assert_named(failures(config), expected)


def checked_test(config: Path, checkpoint: str | None = None, **options: object) -> list[Finding]:
    """Return notes and failures of a test."""
    cfg = Config.fromfile(config)
    cfg.merge_from_dict(options)
    return [finding for finding in check_test(cfg, checkpoint) if finding.level != "ok"]


PREFIXES = {
    MASK_RCNN: {
        "ann_file": "annotations/instances_train2017.json",
        "data_prefix.img": "train2017/",
    },
    SEMANTIC_FPN: {
        "data_prefix.img_path": "images/training",
        "data_prefix.seg_map_path": "annotations/training",
    },
}


@pytest.mark.parametrize("config", PREFIXES, ids=["COCO", "maps"])
def test_validation_and_test_on_training_images_are_a_note(config):
    options = [f"val_dataloader.dataset.{key}={value}" for key, value in PREFIXES[config].items()]
    notes = findings(config, *options, level="note")
    assert_named([note for note in notes if note.code == "D319"], [("D319", "3 of 3", "val")])
    options = {f"test_dataloader.dataset.{key}": value for key, value in PREFIXES[config].items()}
    assert_named(checked_test(config, **options), [("D319", "3 of 3", "test split")])


def save_classes(classes: Sequence[str]) -> str:
    torch.save(dict(state_dict={}, meta=dict(dataset_meta=dict(classes=classes))), "trained.pth")
    return "trained.pth"


NAMES = ("background", "circle", "square", "triangle", "star")


@pytest.mark.parametrize(
    "learned, levels",
    [(NAMES, []), (("background", "disc", *NAMES[2:]), ["note"]), (NAMES[::-1], ["FAIL"])],
    ids=["the same", "another name", "another order"],
)
def test_classes_of_the_tested_checkpoint_are_compared_with_the_data(learned, levels):
    found = checked_test(SHAPES, save_classes(learned))
    assert [finding.level for finding in found] == levels
    assert_named(found, [("D305", "checkpoint", "test")] * len(levels))


def repeat_objects(content: dict) -> None:
    first = content["annotations"]
    content["annotations"] = [dict(each, id=each["id"] + 80, image_id=0) for each in first] + first


TEST_BREAKS = {
    "more objects than mAP counts": (repeat_objects, "note", "D419"),
    "crowds only": (make_crowds, "FAIL", "D409"),
}


@pytest.mark.parametrize("name", TEST_BREAKS)
def test_data_that_change_a_score_in_silence_are_named_before_the_test(name):
    change, level, code = TEST_BREAKS[name]
    edit_json(VAL_JSON, change)
    assert (level, code) in [(finding.level, finding.code) for finding in checked_test(MASK_RCNN)]


def test_maps_one_label_too_high_are_named_before_the_test():
    write_segmentation_maps(Path("data/shapes"), [2, 3, 4, 5, 6])
    assert_named(checked_test(SHAPES), [("D506", "test", "label 5 (1842 pixels")])


def test_images_without_labels_whose_predictions_are_only_formatted_are_tested():
    """COCO's test-dev has no annotations."""
    edit_json(VAL_JSON, lambda content: content.pop("annotations"))
    assert [finding.code for finding in checked_test(MASK_RCNN)] == ["D401"]
    found = checked_test(MASK_RCNN, **{"test_evaluator.format_only": True})
    assert [finding.level for finding in found] == ["note"]


def test_doctor_checks_the_data_of_the_test_too():
    option = "test_dataloader.dataset.ann_file=annotations/none.json"
    assert_named(failures(MASK_RCNN, option), [("D311", "test", "none.json")])
