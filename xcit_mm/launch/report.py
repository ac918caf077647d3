"""The end of a training: its best checkpoint, and after a fine-tuning its scores and a drawing."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import supervision as sv
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image

from ..models.build import load_model
from ..prediction import Prediction, Predictor
from ..utils.atomic import atomic_path
from ..utils.cli import quiet
from ..utils.configs import ModelInput, tested_dataset, type_name
from ..utils.errors import reason
from ..utils.palettes import make_palette
from ..weights.reader import load_from_file
from ..weights.work_dirs import find_checkpoint_in

_PHOTOS = 4
_WIDTH = 640  # pixels of each drawing
_GAP = 10


def report(work_dir: Path, cfg: Config) -> Iterator[str]:
    """Yield lines on a training that has ended: its checkpoint, and how to predict.

    After a training of a config that `train --from` wrote, scores come before, and some held-out
    photos are drawn into predictions.jpg.
    """
    checkpoint = find_checkpoint_in(work_dir)
    if checkpoint and cfg.get("source") and cfg.get("val_evaluator"):
        yield from _describe_scores(checkpoint, cfg)
        drawing = work_dir / "predictions.jpg"
        try:
            with quiet():
                _draw_held_out(drawing, cfg, checkpoint)
            yield f"labels beside predictions: {drawing}"
        except (ValueError, OSError, MemoryError) as error:
            yield f"predictions are not drawn: {reason(error)}"
    yield f"weights: {checkpoint}"
    is_raster = "raster" in cfg or (cfg.get("test_dataloader") and ModelInput(cfg).raster_step)
    if is_raster:
        out = "objects.gpkg" if cfg.default_scope == "mmdet" else "map.tif"
        yield f"predict: xcit-mm raster RASTER {work_dir} --out {out}"
    else:
        yield f"predict: xcit-mm predict PHOTO.jpg --model {work_dir}"


def _describe_scores(checkpoint: str, cfg: Config) -> Iterator[str]:
    """Yield the scores that a run had when it saved its best checkpoint, and those of a detector's
    classes: COCO's average precision (AP), of masks if it predicts masks.
    """
    scalars = load_from_file(checkpoint)["message_hub"]["log_scalars"]
    scores = {
        key.removeprefix("val/").removeprefix("coco/"): float(history.current())
        for key, history in scalars.items()
        if key.startswith("val/")
    }
    names = [name for name in ("bbox_mAP", "segm_mAP", "mIoU") if name in scores]
    if names:
        line = ", ".join(f"{name} {scores[name]:.4g}" for name in names)
        yield f"score of the best checkpoint: {line}"
    classes = [name for name in cfg.metainfo.classes if f"{name}_precision" in scores]
    if classes:
        line = ", ".join(f"{name} {scores[f'{name}_precision']:.3f}" for name in classes)
        yield f"AP of the {'masks' if 'segm_mAP' in scores else 'boxes'} of each class: {line}"


def _draw_held_out(path: Path, cfg: Config, checkpoint: str) -> None:
    """Draw some held-out photos into one JPEG, each with its labels at the left and with the
    predictions of a checkpoint at the right.

    Raises:
        ValueError: If the images are not of three bands and 8 bits.
    """
    predictor = Predictor(load_model(cfg, checkpoint), cfg, get_device())
    rows = []
    for labelled in _read_labelled(cfg, predictor):
        predicted = predictor(labelled.image)
        predicted = replace(predicted, names=labelled.names, palette=labelled.palette)
        rows.append(np.hstack([_frame(labelled.draw()), _frame(predicted.draw())]))
    with atomic_path(path, fsync=False) as unfinished:
        Image.fromarray(np.vstack(rows)[..., ::-1]).save(unfinished, "JPEG", quality=90)


def _read_labelled(cfg: Config, predictor: Predictor) -> Iterator[Prediction]:
    """Read some photos of the test set, evenly spread, with labels instead of predictions. Ignored
    pixels of a map are a further class, drawn in white.
    """
    init_default_scope(cfg.default_scope)
    config = copy.deepcopy(tested_dataset(cfg))
    config["pipeline"] = [step for step in config["pipeline"] if type_name(step).startswith("Load")]
    dataset = DATASETS.build(config)
    names = predictor.names
    palette = predictor.metainfo.get("palette")
    colors = make_palette(len(names), palette)[:, ::-1].tolist()  # RGB
    count = min(_PHOTOS, len(dataset))
    for index in np.linspace(0, len(dataset) - 1, count).round().astype(int):
        sample = dataset[index]
        image = sample["img"]
        if predictor.is_detector:
            boxes = sample["gt_bboxes"].numpy()
            masks = sample["gt_masks"].to_ndarray().astype(bool) if "gt_masks" in sample else None
            labels = sample["gt_bboxes_labels"].astype(int)
            objects = sv.Detections(boxes, masks, class_id=labels)
            yield Prediction(image, objects, None, names, palette)
        else:
            labels = np.minimum(sample["gt_seg_map"], len(names))
            shown = [*names, "not labelled"]
            yield Prediction(image, None, labels, shown, [*colors, (255, 255, 255)])


def _frame(drawing: np.ndarray) -> np.ndarray:
    """Scale a drawing to the width of a column, and add a white margin."""
    height = round(drawing.shape[0] * _WIDTH / drawing.shape[1])
    scaled = cv2.resize(drawing, (_WIDTH, height), interpolation=cv2.INTER_AREA)
    return np.pad(scaled, ((_GAP, _GAP), (_GAP, _GAP), (0, 0)), constant_values=255)
