"""The doctor compares the data sets of a config with each other."""

from collections.abc import Iterable, Sequence
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
    write_segmentation_maps,
)
from mmengine.config import Config

from xcit_mm.checks.doctor import check_test
from xcit_mm.checks.findings import Finding

pytestmark = pytest.mark.usefixtures("doctors_place")


def test_other_names_of_the_same_classes_are_a_note():
    labels = ["val_dataloader.dataset.metainfo.classes=(ground,disc,square,triangle,star)"]
    assert failures(SHAPES, *labels) == []
    assert_named(
        failures(SHAPES, labels[0].replace("ground,disc", "circle,background")),
        [("D305", "train", "val")],
    )


def test_data_sets_in_wrappers_are_checked(own_config):
    config = own_config(
        "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=2, "
        "dataset=dict(type='ConcatDataset', "
        "datasets=[dict(type='BaseSegDataset', data_root='nowhere')])))"
    )
    assert_named(
        failures(config), [("D311", "train", "nowhere"), ("D302", "classes=None", "train")]
    )


@pytest.mark.parametrize(
    "config, changes",
    [
        (
            MASK_RCNN,
            ["ann_file=annotations/instances_train2017.json", "data_prefix.img=train2017/"],
        ),
        (
            SEMANTIC_FPN,
            [
                "data_prefix.img_path=images/training",
                "data_prefix.seg_map_path=annotations/training",
            ],
        ),
    ],
)
def test_validation_and_test_on_training_images_are_a_note(config, changes):
    options = [f"val_dataloader.dataset.{change}" for change in changes]
    found = [
        finding for finding in findings(config, *options, level="note") if finding.code == "D319"
    ]
    assert_named(found, [("D319", "3 of 3")])
    assert "D319" not in [finding.code for finding in findings(config)]
    cfg = Config.fromfile(config)
    cfg.merge_from_dict(
        {
            f"test_dataloader.dataset.{change.split('=')[0]}": change.split("=")[1]
            for change in changes
        }
    )
    assert_named(noted(check_test(cfg)), [("D319", "3 of 3", "test split")])


def noted(found: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.level != "ok"]


def save_classes(classes: Sequence[str]) -> str:
    torch.save(dict(state_dict={}, meta=dict(dataset_meta=dict(classes=classes))), "trained.pth")
    return "trained.pth"


NAMES = ("background", "circle", "square", "triangle", "star")


@pytest.mark.parametrize(
    "learned, level",
    [(NAMES, None), (("background", "disc", *NAMES[2:]), "note"), (NAMES[::-1], "FAIL")],
    ids=["the same", "another name", "another order"],
)
def test_classes_of_the_tested_checkpoint_are_compared_with_the_data(learned, level):
    found = noted(check_test(Config.fromfile(SHAPES), save_classes(learned)))
    assert [finding.level for finding in found] == [level] * (level is not None)
    assert_named(found, [("D305", "checkpoint", "test")] * len(found))


def repeat_objects(content: dict) -> None:
    first = content["annotations"]
    content["annotations"] = [dict(each, id=each["id"] + 80, image_id=0) for each in first] + first


TEST_BREAKS = {
    "id 0": (lambda content: content["annotations"][0].update(id=0), "FAIL", "D418"),
    "more objects than mAP counts": (repeat_objects, "note", "D419"),
    "a degenerate box": (
        lambda content: content["annotations"][0].update(bbox=[5, 5, 0.5, 0.5]),
        *("note", "D408"),
    ),
    "crowds only": (
        lambda c: (c.pop("info"), [each.update(iscrowd=1) for each in c["annotations"]]),
        *("FAIL", "D409"),
    ),
    "categories in another order": (
        lambda content: content["categories"].reverse(),
        *("FAIL", "D406"),
    ),
}


@pytest.mark.parametrize("name", TEST_BREAKS)
def test_data_that_change_a_score_in_silence_are_named_before_the_test(name):
    change, level, code = TEST_BREAKS[name]
    edit_json(VAL_JSON, change)
    found = noted(check_test(Config.fromfile(MASK_RCNN)))
    assert (level, code) in [(finding.level, finding.code) for finding in found]


def test_maps_one_label_too_high_are_named_before_the_test():
    write_segmentation_maps(Path("data/shapes"), [2, 3, 4, 5, 6])
    found = noted(check_test(Config.fromfile(SHAPES)))
    assert_named(found, [("D506", "test", "label 5 (1842 pixels")])


def test_images_without_labels_whose_predictions_are_only_formatted_are_tested():
    """COCO's test-dev has no annotations."""
    edit_json(VAL_JSON, lambda content: content.pop("annotations"))
    cfg = Config.fromfile(MASK_RCNN)
    assert [finding.code for finding in noted(check_test(cfg))] == ["D401"]
    cfg.test_evaluator.format_only = True
    assert [finding.level for finding in noted(check_test(cfg))] == ["note"]


def test_doctor_checks_the_data_of_the_test_too():
    option = "test_dataloader.dataset.ann_file=annotations/none.json"
    assert_named(failures(MASK_RCNN, option), [("D311", "test", "none.json")])
