"""`finetune MODEL DATA` writes a config that fits both, checks it, and trains it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.doctor_data import edit_annotations, edit_json
from helpers.exports import shapes_options, write_export
from mmengine.registry import PARAM_SCHEDULERS

from xcit_mm import read_config
from xcit_mm.launch.finetuning_config import _set_classes
from xcit_mm.weights.lookup import find_model

CLASSES = ("circle", "square", "triangle", "star")
TRAINING = "annotations/instances_training.json"
OWN_CONFIG = "trained/mine.py"


def test_the_data_give_classes_splits_schedule_and_work_folder(trained, own_data, start, folder):
    cfg = start("finetune", trained, *own_data)
    assert (folder / "my-data.py").read_text().startswith("# Fine-tunes ")
    assert cfg.train_dataloader.dataset.metainfo.classes == CLASSES[:2]
    assert cfg.work_dir == "work_dirs/my-data"
    assert not cfg.resume  # though the model was resumed in its own folder
    assert cfg.model.roi_head.bbox_head.num_classes == cfg.model.roi_head.mask_head.num_classes == 2
    held_out = str(folder / "my-data-coco" / "val.json")
    assert cfg.val_dataloader.dataset.ann_file == cfg.val_evaluator.ann_file == held_out
    assert cfg.load_from == find_model(str(trained))[1]
    assert cfg.train_cfg.max_iters == 1000
    assert cfg.default_hooks.checkpoint.save_best == "coco/segm_mAP"
    assert cfg.large == dict(scale=1.667, pixel_size=None)  # photos of 96 pixels become 160


def test_a_run_in_another_folder_resumes_there(trained, own_data, start):
    start("finetune", trained, *own_data, "--work-dir", "runs/one")
    assert start("train", "my-data.py").work_dir == "runs/one"


def test_a_config_starts_from_the_weights_that_it_names(trained, own_data, start):
    _, weights = find_model(str(trained))
    config = trained / "mine.py"
    config.write_text(f"{config.read_text()}\nload_from = {weights!r}\n")
    assert start("finetune", config, *own_data).load_from == weights


def test_a_short_schedule_reaches_its_rate(trained, own_data, start, folder):
    """A user edits max_iters in the file to try a training."""
    start("finetune", trained, *own_data)
    config = folder / "my-data.py"
    code = config.read_text()
    for length in (1, 2, 5, 20):
        config.write_text(code.replace("max_iters = 1000", f"max_iters = {length}"))
        cfg = read_config(config)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        options = [dict(scheduler, optimizer=optimizer) for scheduler in cfg.param_scheduler]
        schedulers = [PARAM_SCHEDULERS.build(scheduler) for scheduler in options]
        rates = []
        for _ in range(length):
            rates.append(optimizer.param_groups[0]["lr"])
            for scheduler in schedulers:
                scheduler.step()
        assert cfg.train_cfg.max_iters == length and cfg.train_cfg.val_interval >= 1
        assert length < 5 or max(rates) > 0.5


def test_a_json_alone_is_trained_without_validation_then_its_model_on_two(
    trained, data, own_data, start, folder, capsys
):
    def add_images(coco: dict) -> None:
        image = coco["images"][0]
        for number in range(400):
            other_name = f"./{'/' * number}{image['file_name']}"
            coco["images"].append(dict(image, id=1000 + number, file_name=other_name))

    edit_json(data / TRAINING, add_images)
    cfg = start("finetune", trained, *own_data[:3], "--skip-checks")
    assert Path(cfg.filename).name == "instances_training.py"
    assert "held out nothing" in capsys.readouterr().err
    assert cfg.val_dataloader is None
    assert cfg.train_cfg.max_iters == 12 * 408 // 2
    assert cfg.test_dataloader.dataset.ann_file == cfg.train_dataloader.dataset.ann_file
    (folder / "first").mkdir()
    cfg.dump(folder / "first" / "own.py")
    shutil.copy(trained / "last_checkpoint", folder / "first")
    cfg = start("finetune", folder / "first", *own_data)
    assert cfg.val_dataloader.dataset.ann_file == str(folder / "my-data-coco" / "val.json")
    assert cfg.val_cfg.type == "ValLoop"


def test_a_folder_of_objects_is_refused_and_its_data_yaml_is_named_after_it(
    trained, refused, start, folder
):
    write_export("Ultralytics", folder / "my nuts")
    message = refused("finetune", trained, "my nuts")
    assert message.startswith("DATA: a detector takes a COCO json or a data.yaml")
    cfg = start("finetune", trained, "my nuts/data.yaml", "--skip-checks")
    assert Path(cfg.filename).name == "my-nuts.py"


def test_corrected_labels_count_at_each_start_and_other_classes_are_refused(
    trained, own_data, data, start, refused
):
    start("finetune", trained, *own_data)

    def correct(coco: dict) -> None:
        coco["annotations"][0]["bbox"] = [1, 2, 30, 40]

    edit_json(data / TRAINING, correct)
    cfg = start("test", "my-data.py", find_model(str(trained))[1])
    assert "[1.0,2.0,30.0,40.0]" not in Path(cfg.source.folder, "train.json").read_text()
    cfg = start("train", "my-data.py")
    written = json.loads(Path(cfg.train_dataloader.dataset.ann_file).read_text())
    assert written["annotations"][0]["bbox"] == [1, 2, 30, 40]
    edit_json(data / TRAINING, lambda coco: coco["categories"][0].update(name="disc"))
    validation = data / "annotations/instances_validation.json"
    edit_json(validation, lambda coco: coco["categories"][0].update(name="disc"))
    message = refused("train", "my-data.py")
    assert "('disc', 'square')" in message and "fine-tune a model into another config" in message


def test_a_validation_that_goes_needs_another_config(trained, start, refused, folder):
    write_export("Ultralytics", folder / "nuts")
    data = folder / "nuts" / "data.yaml"
    start("finetune", trained, data, "--skip-checks")
    data.write_text(data.read_text().replace("val: images/val", ""))
    message = refused("train", "nuts.py", "--skip-checks")
    assert "'validation': False}, the config {" in message


def test_heads_keep_the_order_of_a_model_with_the_same_classes(trained, shapes, data, start):
    def reverse(coco: dict) -> None:
        coco["categories"].reverse()

    for path in (shapes / "annotations").glob("*.json"):
        shutil.copy(path, data / "annotations")
        edit_json(data / "annotations" / path.name, reverse)
    cfg = start("finetune", trained, *shapes_options(data))
    assert cfg.metainfo.classes == CLASSES
    assert cfg.model.roi_head.bbox_head.num_classes == 4


def test_annotations_without_a_mask_are_named_and_the_user_chooses(
    trained, data, own_data, folder, refused, start
):
    edit_json(data / TRAINING, lambda coco: coco["annotations"][3].update(segmentation=[]))
    message = refused("finetune", trained, *own_data)
    assert "D412 train: 1 of " in message and "/images/training/0000" in message
    assert not list(folder.glob("my-data*"))
    cfg = start("finetune", trained, *own_data, "--boxes")
    assert cfg.model.roi_head.mask_head is None
    for path in (data / "annotations").glob("*.json"):
        edit_annotations(path, lambda annotation: annotation.update(segmentation=[]))
    cfg = start("finetune", trained, *own_data, "--config", "boxes.py")
    assert cfg.model.roi_head.mask_head is None and cfg.val_evaluator.metric == ["bbox"]


def test_a_published_name_is_the_base_in_any_folder(own_data, start):
    cfg = start("finetune", "maskrcnn_xcit_small_12_p16", *own_data, "--skip-checks")
    assert cfg.load_from == "xcit://maskrcnn_xcit_small_12_p16"
    assert cfg.model.backbone.init_cfg is None and cfg.model.backbone.arch == "s12"
    assert cfg.optim_wrapper.paramwise_cfg.layer_decay_rate == 0.8
    assert cfg.train_cfg.type == "IterBasedTrainLoop"


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(data="none.json"), "No such file or directory: "),
        (dict(data="nuts.xml"), "--val: it is for a COCO json, but the data are "),
        (dict(options=["--images", "trained"]), "8 of 8 images are missing"),
        (dict(model="maskrcnn_xcit_smal_12_p16"), "try maskrcnn_xcit_small_12_p16"),
        (
            dict(options=["--config", "taken.py"]),
            "taken.py exists: overwrite it, give another config, or train",
        ),
        (
            dict(model=OWN_CONFIG, options=["--config", OWN_CONFIG, "--overwrite"]),
            f"--config: {OWN_CONFIG} is or holds the input",
        ),
        (dict(options=["--cfg-options", "max_iter=2"]), "--cfg-options: a config has no setting"),
        (dict(options=["--no-val"]), "--no-val: it is for a labelled raster: give its labels"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_one_line(
    changes, message, refused, trained, own_data, folder
):
    (folder / "taken.py").write_text("mine")
    own_data[0] = changes.get("data", own_data[0])
    model = changes.get("model", trained)
    assert message in refused("finetune", model, *own_data, *changes.get("options", []))
    assert (folder / "taken.py").read_text() == "mine"
    assert not [*folder.glob("my-data*"), *folder.glob("instances*")]


def test_files_of_the_user_beside_the_objects_stay(trained, own_data, refused, folder):
    objects = folder / "my-data-coco"
    objects.mkdir()
    (objects / "photo.jpg").touch()
    wrong = ("--cfg-options", "model.roi_head.bbox_head.num_classes=7")
    assert "num_classes is 7" in refused("finetune", trained, *own_data, *wrong)
    assert [path.name for path in objects.iterdir()] == ["photo.jpg"]
    train = objects / "train.json"
    train.write_text("corrected by hand")
    message = refused("finetune", trained, *own_data)
    assert f"{train} exists: overwrite it, give another config" in message
    assert train.read_text() == "corrected by hand"


@pytest.mark.parametrize(
    "classes, weights, expected",
    [
        (3, [1.0, 5.0], None),
        (3, [1.0, 1.0], None),
        (2, [1.0, 5.0], [1.0, 5.0]),
        (3, [1.0, 1.0, 0.1], [1.0, 1.0, 1.0, 0.1]),  # the last is for no object
    ],
)
def test_weights_of_another_number_of_classes_go(classes, weights, expected):
    loss = dict(type="CrossEntropyLoss", class_weight=weights)
    head = dict(type="FPNHead", num_classes=2, loss_decode=loss)
    _set_classes([head], classes)
    assert head["num_classes"] == classes and loss["class_weight"] == expected


def test_a_head_of_one_class_and_background_is_refused():
    with pytest.raises(ValueError, match=r"^model: its head tells one class from the background"):
        _set_classes([dict(type="FPNHead", num_classes=2, out_channels=1)], 4)


def test_boxes_of_a_segmentor_are_refused(trained_segmentor, maps, refused):
    message = refused("finetune", trained_segmentor, maps, "--boxes")
    assert message == "--boxes: EncoderDecoder finds no boxes: leave it out"
