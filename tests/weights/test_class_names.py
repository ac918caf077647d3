"""A class is its name: a checkpoint of other classes is refused, or a training starts its heads."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import small_models
from helpers.weight_files import load_in_runner, same
from mmengine.runner import BaseLoop

from xcit_mm.prediction import Predictor
from xcit_mm.utils.config_data import metainfo
from xcit_mm.weights import StrictLoadHook
from xcit_mm.weights.class_names import learned_classes

CLASSIFIER = ("decode_head.conv_seg.weight", "decode_head.conv_seg.bias")
LABELS = ("background", "circle", "square", "triangle", "star")
ROAD = ("road", *LABELS[1:])


def saved(model: torch.nn.Module, classes: Sequence[str] | None) -> dict[str, Any]:
    """Return the checkpoint of a training on classes."""
    return dict(state_dict=model.state_dict(), meta=dict(dataset_meta=dict(classes=classes)))


def test_names_are_found_where_a_checkpoint_has_them():
    for meta in (dict(CLASSES=LABELS), dict(dataset_meta=dict(classes=LABELS))):
        assert learned_classes(dict(state_dict={}, meta=meta)) == LABELS


def test_heads_of_other_classes_keep_initial_values_in_one_line(capsys):
    model = small_models.build(small_models.semantic_fpn())
    other = small_models.build(small_models.semantic_fpn(decode_head=dict(num_classes=3)))
    for built in (model, other):  # its name begins with that of a tensor with another shape
        built.decode_head.conv_seg.register_buffer("bias_2", torch.rand(1))
    initial = {key: other.state_dict()[key].clone() for key in CLASSIFIER}
    load_in_runner(other, saved(model, LABELS), classes=LABELS[:3], strict_heads=False)
    assert same(other.state_dict(), model.state_dict() | initial)
    printed = capsys.readouterr().out
    assert "has learned other classes, background, circle, square and 2 more" in printed
    assert f"so they keep their initial values: {', '.join(CLASSIFIER)}" in printed


@pytest.mark.parametrize(
    "learned, classes, options, message",
    [
        (LABELS, LABELS[::-1], {}, "class 0 is background, not star"),
        (LABELS, LABELS[:-1], dict(resume=True), "class 4 is star, not None"),
    ],
)
def test_a_checkpoint_of_other_classes_is_refused(learned, classes, options, message):
    model = small_models.build(small_models.semantic_fpn())
    with pytest.raises(ValueError, match=f"{message}.*to fine-tune: strict_heads=False"):
        load_in_runner(model, saved(model, learned), classes=classes, **options)


def test_predictions_of_other_classes_are_refused(models, tmp_path):
    content = torch.load(models["seg"][1]) | dict(meta=dict(dataset_meta=dict(classes=ROAD)))
    checkpoint = tmp_path / "trained.pth"
    torch.save(content, checkpoint)
    refusal = "has learned other classes than the config, .*: class 0 is road, not background;"
    with pytest.raises(ValueError, match=f"trained.pth {refusal}"):
        Predictor.from_pretrained(models["seg"][0], checkpoint)


class Loop(BaseLoop):
    """A test on data of some classes."""

    def __init__(self, classes: Sequence[str]) -> None:
        data = SimpleNamespace(metainfo=dict(classes=classes))
        self.dataloader = SimpleNamespace(dataset=data)

    def run(self) -> None: ...


def test_a_test_on_other_classes_is_refused():
    test = SimpleNamespace(_train_loop=None, _val_loop=None, _test_loop=Loop(ROAD))
    checkpoint = dict(state_dict={}, meta=dict(dataset_meta=dict(classes=LABELS)))
    with pytest.raises(ValueError, match="class 0 is background, not road"):
        StrictLoadHook().after_load_checkpoint(test, checkpoint)


def test_names_in_a_file_are_those_of_a_data_set(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("\n".join(LABELS))
    dataset = dict(type="mmseg.BaseSegDataset", metainfo=dict(classes=str(path)))
    assert metainfo(dataset)["classes"] == list(LABELS)


def test_the_heads_of_another_model_are_refused_though_classes_may_differ():
    model = small_models.build(small_models.semantic_fpn())
    checkpoint = saved(model, LABELS)
    state = {
        key.replace("decode_head.", "decodehead."): value
        for key, value in checkpoint["state_dict"].items()
    }
    with pytest.raises(ValueError, match=r"holds decodehead\."):
        load_in_runner(model, checkpoint | dict(state_dict=state), strict_heads=False)
