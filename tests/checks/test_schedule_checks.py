"""The doctor reports parts of the training loop that cannot be meant, and train.py those that cannot start."""

import pytest
from doctor_data import MASK_RCNN, SEMANTIC_FPN, SHAPES, assert_named, failures, findings
from mmengine.config import Config

from xcit_mm.checks.doctor import check_training
from xcit_mm.checks.schedule import check_input, check_optimizer, check_parts, check_schedule

pytestmark = pytest.mark.usefixtures("doctors_place")

# Options that mmengine or torch could not build.
MISTAKES = {
    "optim_wrapper.optimizer.type=AdmW": ("D208", "AdmW", "optim_wrapper.optimizer"),
    "param_scheduler.0.type=LinearLRR": ("D208", "LinearLRR", "param_scheduler"),
    "default_hooks.logger.type=LogHook": ("D208", "LogHook", "default_hooks.logger"),
    "custom_hooks.0.type=EmaHook": ("D208", "EmaHook", "custom_hooks"),
    "train_dataloader.dataset.pipeline.2.type=Flip": ("D208", "Flip", "the train pipeline"),
    "val_dataloader.num_workers=0": ("D209", "val_dataloader.persistent_workers=True"),
}


@pytest.mark.parametrize("option", MISTAKES)
def test_parts_that_cannot_be_built_do_not_start(option):
    key, _, value = option.partition("=")
    cfg = Config.fromfile(SHAPES)
    cfg.merge_from_dict({"val_dataloader.persistent_workers": True, key: int(value) if value.isdigit() else value})
    assert_named(check_parts(cfg), [MISTAKES[option]])
    with pytest.raises(ValueError, match=f"^{MISTAKES[option][0]} .*{MISTAKES[option][1]}"):
        check_training(cfg)


# Options that train, and hardly as the user means.
UNLIKELY = {
    "optim_wrapper.optimizer.lr=0.1": (check_optimizer, ("D210", "AdamW", "lr=0.1")),
    "param_scheduler.0.by_epoch=True": (check_schedule, ("D211", "scheduler")),
    "default_hooks.checkpoint.by_epoch=True": (check_schedule, ("D211", "checkpoint hook")),
    "param_scheduler.0.end=9000": (check_schedule, ("D212", "9000 iters", 300)),
    "param_scheduler.0.end=90": (check_schedule, ("D212", "90 iters", 210)),
    "train_cfg.val_interval=301": (check_schedule, ("D213", "val_interval=301", "300 iters")),
}


@pytest.mark.parametrize("option", UNLIKELY)
def test_loop_that_cannot_be_meant_is_a_note(option):
    check, expected = UNLIKELY[option]
    key, _, value = option.partition("=")
    cfg = Config.fromfile(SHAPES)
    cfg.train_cfg.update(max_iters=300, val_interval=300)
    cfg.param_scheduler[0].end = 300
    assert check(cfg) == []
    cfg.merge_from_dict({key: {"True": True}.get(value) or float(value)})
    found = check(cfg)
    assert_named(found, [expected])
    assert all(finding.level == "note" and finding.fix for finding in found)


@pytest.mark.parametrize("kind", ["MultiStepLR", "PolyLR", "LinearLR"])
def test_schedules_that_stay_at_a_rate_are_right(kind):
    cfg = Config.fromfile(SHAPES)
    options = dict(MultiStepLR=dict(milestones=[50]), PolyLR={}, LinearLR=dict(end=50))[kind]
    cfg.param_scheduler = [dict(type=kind, by_epoch=False, **options)]
    assert check_schedule(cfg) == []


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"model.data_preprocessor.mean": [0.5] * 3, "model.data_preprocessor.std": [0.2] * 3}, [("D214", "images")]),
        ({"model.data_preprocessor.bgr_to_rgb": False, "load_from": "xcit://fpn_xcit_tiny_12_p16"}, [("D216", "BGR")]),
        ({"load_from": "xcit://fpn_xcit_tiny_12_p16"}, []),
    ],
)
def test_input_of_other_weights_is_a_note(options, expected):
    cfg = Config.fromfile(SHAPES)
    cfg.merge_from_dict(options)
    assert_named(check_input(cfg, with_masks=False), expected)


def test_padding_before_normalisation_is_a_note():
    cfg = Config.fromfile(SHAPES)
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(type="Pad", size_divisor=32))
    assert check_input(cfg, with_masks=False) == []
    cfg.model.backbone.ignore_padding = True
    assert_named(check_input(cfg, with_masks=False), [("D217", "test pipeline")])


def test_pipeline_without_annotations_or_masks_is_a_note():
    cfg = Config.fromfile(MASK_RCNN)
    steps = cfg.train_dataloader.dataset.pipeline
    steps[1].with_mask = False
    assert check_input(cfg, with_masks=False) == []
    assert_named(check_input(cfg, with_masks=True), [("D215", "with_mask")])
    steps.pop(1)
    assert_named(check_input(cfg, with_masks=True), [("D215", "LoadAnnotations")])


@pytest.mark.parametrize(
    "config, changes",
    [
        (MASK_RCNN, ["ann_file=annotations/instances_train2017.json", "data_prefix.img=train2017/"]),
        (SEMANTIC_FPN, ["data_prefix.img_path=images/training", "data_prefix.seg_map_path=annotations/training"]),
    ],
)
def test_validation_images_of_the_training_split_are_a_note(config, changes):
    options = [f"val_dataloader.dataset.{change}" for change in changes]
    found = [finding for finding in findings(config, *options, level="note") if finding.code == "D319"]
    assert_named(found, [("D319", "3 of 3")])
    assert "D319" not in [finding.code for finding in findings(config)]
    assert [finding.code for finding in failures(config, *options)] in ([], ["D416"])
