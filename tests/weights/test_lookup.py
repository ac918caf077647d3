"""A model is a name, a folder with config and weights such as that of a run, wherever it lies, or
one on the Hub.
"""

import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers.golden import PICO
from helpers.weight_files import path_of
from safetensors.torch import load_file, save_file

import xcit_mm
from xcit_mm import XCiT
from xcit_mm.weights.lookup import find_config, find_model, load_checkpoint, lookup
from xcit_mm.weights.published import PUBLISHED

NAME = "maskrcnn_xcit_small_12_p16"

TASKS = {
    "COCO, Mask R-CNN": "mask-rcnn",
    "ADE20k, Semantic FPN": "fpn",
    "ADE20k, UperNet": "upernet",
}


def test_published_detectors_and_segmentors_have_their_configs():
    files = {name: file for name, file in PUBLISHED.items() if file.training in TASKS}
    assert len(files) == 24
    for name, file in files.items():
        config, checkpoint = find_model(name)
        assert checkpoint == f"xcit://{name}"
        assert find_config(name) == config
        assert find_model(Path(config).stem) == find_model(checkpoint) == (config, checkpoint)
        stem = f"{TASKS[file.training]}_xcit-{file.arch}-p{file.patch_size}_"
        assert Path(config).name.startswith(stem)


RETINANET = "retinanet_xcit-s12-p16_fpn_1x_coco"


@pytest.mark.parametrize(
    "name, config, checkpoint",
    [
        ("own.py", "own.py", None),
        (NAME, "mask-rcnn_xcit-s12-p16_fpn_amp-ms-crop-3x_coco.py", f"xcit://{NAME}"),
        (RETINANET, f"{RETINANET}.py", None),
        ("xcit_small_12_p16_224.fb_in1k", None, "xcit://xcit_small_12_p16_224"),
        ("https://host/file", None, "https://host/file"),
    ],
)
def test_a_name_stands_for_a_config_for_weights_or_for_both(name, config, checkpoint):
    found = lookup(name)
    assert (found.config and Path(found.config).name) == config
    assert found.checkpoint == checkpoint
    assert bool(found.problem) == (None in (config, checkpoint))


def test_what_a_name_stands_for_is_reported(capsys):
    config, checkpoint = find_model(NAME)
    assert capsys.readouterr().err == f"{NAME}: {config} with {checkpoint}\n"
    assert find_model(NAME, "my.pth") == (config, "my.pth")
    assert find_model(NAME, "~/my.pth") == (config, os.path.expanduser("~/my.pth"))


@pytest.mark.parametrize(
    "model, named",
    [
        ("maskrcnn_xcit_smal_12_p16", "try maskrcnn_xcit_small_12_p16"),
        ("xyz", "`xcit-mm weights list`"),
        ("config.py", "checkpoint: config.py has no checkpoint: give one"),
        ("xcit://none.pth", "xcit://none.pth is neither a config"),
        ("https://host/file.pth", "file.pth is a file without a config"),
    ],
)
def test_a_wrong_name_is_rejected_with_similar_names(model, named):
    with pytest.raises(ValueError, match=named):
        find_model(model)


@pytest.fixture
def hub(work_dir, tmp_path, monkeypatch) -> Path:
    """The folder of hf://me/model in the cache of huggingface_hub, which is offline."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    cache = tmp_path / "hub" / "models--me--model"
    (cache / "refs").mkdir(parents=True)
    commit = "0123456789" * 4
    (cache / "refs" / "main").write_text(commit)
    (cache / "snapshots").mkdir()
    return Path(shutil.move(work_dir, cache / "snapshots" / commit))


def test_a_config_on_the_hub_is_not_read(hub):
    with pytest.raises(ValueError, match="by `hf download me/model --local-dir FOLDER`, read it"):
        find_model("hf://me/model")


@pytest.mark.parametrize(
    "file, name",
    [
        ("model.safetensors", "hf://me/model"),
        ("pytorch_model.bin", "hf://me/model"),
        ("best_mIoU.pth", "hf://me/model"),
        ("last.pth.tar", "folder"),
    ],
)
def test_weights_alone_are_a_backbone_and_also_beside_a_config_on_the_hub(
    file, name, hub, tmp_path
):
    for path in hub.iterdir():
        if path.suffix != ".py" or name == "folder":
            path.unlink()
    content = load_file(path_of("timm_p16.safetensors", tmp_path))
    if file.endswith(".safetensors"):
        torch.save(dict(other=torch.ones(1)), hub / "pytorch_model.bin")
        save_file(content, hub / file)
    else:
        torch.save(content, hub / file)
    name = str(hub) if name == "folder" else name
    model = XCiT(PICO, init_cfg=dict(type="Pretrained", checkpoint=name))
    model.init_weights()
    for backbone in (xcit_mm.backbone(name), model):
        assert torch.equal(backbone.blocks[3].norm1.bias, content["blocks.3.norm1.bias"])


def test_an_unknown_model_of_the_hub_is_an_error(hub):
    with pytest.raises(OSError):
        load_checkpoint("hf://me/none")


def test_a_folder_in_place_of_a_checkpoint_is_named():
    with pytest.raises(ValueError, match="checkpoint: / is a folder"):
        find_model(NAME, "/")
