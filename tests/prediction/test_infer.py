"""tools/infer.py on images of every kind, and on what is none."""

import json

import cv2
import numpy as np
import pytest
import torch
from demo_runs import DEMO
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from PIL import Image
from pycocotools.coco import COCO

from xcit_mm.prediction.coco_results import CocoFile
from xcit_mm.prediction.inputs import find_inputs
from xcit_mm.prediction.predictor import Predictor
from xcit_mm.prediction.tiling import encode_mask

NAMES = dict(seg="fpn_xcit-n12-p16_shapes", det="mask-rcnn_xcit-n12-p16_shapes")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict:
    """An untrained model of each kind, in a file."""
    folder, files = tmp_path_factory.mktemp("models"), {}
    for kind, name in NAMES.items():
        cfg = Config.fromfile(DEMO / f"{name}.py")
        init_default_scope(cfg.default_scope)
        torch.manual_seed(0)
        files[kind] = folder / f"{kind}.pth"
        torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict(), meta={}), files[kind])
    return files


@pytest.fixture
def images(shapes, tmp_path):
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    image = cv2.imread(str(sorted((shapes / "images" / "validation").iterdir())[0]))
    cv2.imwrite(str(folder / "plain.png"), image)
    cv2.imwrite(str(folder / "grey.png"), image[..., 0])
    cv2.imwrite(str(folder / "deep.png"), image.astype(np.uint16) * 257)
    cv2.imwrite(str(folder / "rgba.png"), np.dstack([image, image[..., 0]]))
    frames = [Image.fromarray(image[..., ::-1]), Image.fromarray(image)]
    frames[0].convert("CMYK").save(folder / "sub" / "cmyk.jpg")
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    cv2.imwrite(str(folder / "thin.png"), np.zeros((2, 20000, 3), np.uint8))
    (folder / "empty.png").touch()
    (folder / "empty.mp4").touch()
    video = cv2.VideoWriter(str(folder / "film.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 5, image.shape[1::-1])
    for _ in range(2):
        video.write(image)
    video.release()
    return folder


READABLE = ["deep.png", "grey.png", "moving.gif", "plain.png", "rgba.png", "sub/cmyk.jpg"]


@pytest.mark.parametrize("kind", NAMES)
def test_a_folder(kind, images, checkpoints, tool, tmp_path):
    out = tmp_path / "out"
    run = tool("infer", images, DEMO / f"{NAMES[kind]}.py", checkpoints[kind], "--out", out)
    assert run.returncode == 1
    assert "7 of 10 files done" in run.stdout
    skipped = run.stderr[run.stderr.index("skipped") :].strip().splitlines()
    assert len(skipped) == 3
    for line, (name, reason) in zip(
        skipped,
        {"empty.mp4": "no frames", "empty.png": "it is empty", "thin.png": "2x20000 pixels"}.items(),
        strict=True,
    ):
        assert name in line and reason in line
    pictures = sorted(str(path.relative_to(out / "pictures")) for path in (out / "pictures").rglob("*.*"))
    assert pictures == sorted([f"{name}.jpg" for name in READABLE] + ["film.mp4.mp4"])
    size = cv2.imread(str(images / "plain.png")).shape
    assert cv2.imread(str(out / "pictures" / "plain.png.jpg")).shape == size
    if kind == "seg":
        labels = {path.name: cv2.imread(str(path), -1) for path in (out / "labels").rglob("*.png")}
        assert len(labels) == 8  # with the video's two frames
        assert all(one.shape == size[:2] and one.max() < 5 for one in labels.values())
        assert np.array_equal(labels["plain.png.png"], labels["deep.png.png"])
    else:
        coco = COCO(str(out / "predictions.json"))
        assert [cat["name"] for cat in coco.cats.values()] == ["circle", "square", "triangle", "star"]
        names = [image["file_name"] for image in coco.imgs.values()]
        assert sorted(names) == sorted([*READABLE, "film.mp4#0", "film.mp4#1"])
        for annotation in json.loads((out / "predictions.json").read_text())["annotations"]:
            assert coco.annToMask(annotation).sum() == annotation["area"]


def test_what_cannot_begin_is_one_line(images, checkpoints, refusal, tmp_path):
    config, out = DEMO / f"{NAMES['seg']}.py", ("--out", tmp_path / "out")
    (images / "note.txt").write_text("no image")
    for arguments, message in [
        ((images / "none.jpg", config, checkpoints["seg"]), "no images or videos at"),
        ((images / "note.txt", config, checkpoints["seg"]), "is neither an image nor a video"),
        ((images / "plain.png", tmp_path / "none.py", checkpoints["seg"]), "no config at"),
        ((images / "plain.png", config, checkpoints["det"]), "the checkpoint does not fit the model"),
        ((images / "plain.png", config, checkpoints["seg"], "--tile", 64, "--overlap", 64), "0 <= overlap < tile"),
        ((images / "plain.png", config, checkpoints["seg"], "--overlap", 64), "give the tile's side too"),
    ]:
        assert message in refusal("infer", *arguments, *out)
        assert not (tmp_path / "out" / "pictures").exists()


@pytest.mark.parametrize("kind", NAMES)
def test_one_tile_that_holds_the_image_changes_nothing(kind, images, checkpoints):
    image = cv2.imread(str(images / "plain.png"))
    arguments = str(DEMO / f"{NAMES[kind]}.py"), str(checkpoints[kind])
    whole, tiled = (Predictor(*arguments, tile=tile)(image) for tile in (None, 500))
    if kind == "seg":
        assert torch.equal(tiled.pred_sem_seg.data, whole.pred_sem_seg.data.int())
    else:
        coco = [CocoFile(("a", "b", "c", "d")) for _ in range(2)]
        for file, sample in zip(coco, (whole, tiled), strict=True):
            file.add("image", sample)
        assert coco[0].content["annotations"] == coco[1].content["annotations"] != []


def test_tiles_from_the_command_line(images, checkpoints, tool, tmp_path):
    for kind, name in NAMES.items():
        out = tmp_path / kind
        tiles = ("--tile", 64, "--overlap", 20)
        run = tool("infer", images / "plain.png", DEMO / f"{name}.py", checkpoints[kind], "--out", out, *tiles)
        assert run.returncode == 0, run.stderr
        size = cv2.imread(str(images / "plain.png")).shape
        assert cv2.imread(str(out / "pictures" / "plain.png.jpg")).shape == size
    assert cv2.imread(str(tmp_path / "seg" / "labels" / "plain.png.png"), -1).shape == size[:2]
    coco = COCO(str(tmp_path / "det" / "predictions.json"))
    assert len(coco.anns) > 10
    assert all(coco.annToMask(one).sum() == one["area"] for one in coco.anns.values())


def test_instances_are_drawn_where_they_are(checkpoints):
    """One by one, as after tiles: a box with a mask, one with an empty mask at the border, one below the threshold."""
    predict = Predictor(str(DEMO / f"{NAMES['det']}.py"), str(checkpoints["det"]))
    image = np.full((300, 600, 3), 128, np.uint8)
    masks = np.zeros((3, 300, 600), bool)
    masks[0, 60:120, 60:120] = True
    found = InstanceData(
        bboxes=torch.tensor([[50, 50, 130, 130], [560, 260, 600, 300], [50, 200, 130, 280]]).float(),
        scores=torch.tensor([0.9, 0.8, 0.3]),
        labels=torch.tensor([0, 1, 2]),
        masks=[encode_mask(mask, (0, 0), image.shape[:2]) for mask in masks],
    )
    picture = predict.draw(image, DetDataSample(pred_instances=found), score_thr=0.3)
    changed = (picture != image).any(axis=2)
    assert changed[60:120, 60:120].mean() > 0.9
    assert changed[255:, 555:].any()
    assert not changed[170:].any(axis=0)[:500].any()
    assert not (image != 128).any()


def test_a_binary_segmentor_in_tiles(tmp_path, images):
    config = tmp_path / "binary.py"
    config.write_text(
        f"_base_ = {str(DEMO / NAMES['seg'])!r} + '.py'\n"
        "model = dict(decode_head=dict(out_channels=1, threshold=0.6, loss_decode=dict(use_sigmoid=True)))"
    )
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), tmp_path / "binary.pth")
    image = cv2.imread(str(images / "plain.png"))
    whole, tiled = (Predictor(str(config), str(tmp_path / "binary.pth"), tile=tile)(image) for tile in (None, 500))
    assert whole.pred_sem_seg.data.unique().tolist() == [0, 1]
    assert torch.equal(tiled.pred_sem_seg.data, whole.pred_sem_seg.data.int())


def test_links_are_followed(images, tmp_path):
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "there").symlink_to(images / "sub")
    assert [path.name for path in find_inputs(str(tmp_path / "links"))] == ["cmyk.jpg"]
