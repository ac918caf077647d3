"""The end of a training: its best checkpoint, and after a fine-tuning its scores and a drawing."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import supervision as sv
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import DATASETS, init_default_scope

from ..models.build import load_model
from ..prediction import Predictor
from ..utils.cli import quiet
from ..utils.configs import tested_dataset, type_name
from ..utils.errors import reason
from ..utils.palettes import make_palette
from ..weights.reader import load_from_file
from ..weights.work_dirs import find_checkpoint_in

_SCORES = ("bbox_mAP", "segm_mAP", "_precision", "mIoU")  # mmdet's _precision is of a class
_PHOTOS = 4
_WIDTH = 1280  # pixels
_MARGIN = ((10, 10), (10, 10), (0, 0))
_WHITE = (255, 255, 255)


def report(work_dir: Path, cfg: Config) -> Iterator[str]:
    """Yield lines on a training that has ended: its checkpoint, and of a config that `train --from`
    wrote, its scores and a drawing of some photos of its test, predictions.jpg.
    """
    checkpoint = find_checkpoint_in(work_dir)
    if checkpoint and cfg.get("source"):
        scores = [
            f"{key.rpartition('/')[2].removesuffix('_precision')} {float(history.current()):.4g}"
            for key, history in load_from_file(checkpoint)["message_hub"]["log_scalars"].items()
            if key.startswith("val/") and key.endswith(_SCORES)
        ]
        if scores:
            yield f"scores of the best checkpoint: {', '.join(scores)}"
        drawing = work_dir / "predictions.jpg"
        try:
            with quiet():
                cv2.imwrite(str(drawing), _draw_photos(cfg, checkpoint))
            yield f"labels beside predictions: {drawing}"
        except (ValueError, OSError, MemoryError) as error:
            yield f"predictions are not drawn: {reason(error)}"
    yield f"weights: {checkpoint}"


def _draw_photos(cfg: Config, checkpoint: str) -> np.ndarray:
    """Draw some photos of the test set, evenly spread, each with its labels at the left and with
    the predictions of a checkpoint at the right: (H, W, 3), BGR. Pixels without a label are white.
    Raise ValueError for images of other bands.
    """
    predictor = Predictor(load_model(cfg, checkpoint), cfg, get_device())
    init_default_scope(cfg.default_scope)
    config = copy.deepcopy(tested_dataset(cfg))
    config["pipeline"] = [step for step in config["pipeline"] if type_name(step).startswith("Load")]
    dataset = DATASETS.build(config)
    count = len(predictor.names)
    colors = make_palette(count, predictor.metainfo.get("palette"))[:, ::-1].tolist()  # RGB
    style: Any = dict(names=[*predictor.names, "not labelled"], palette=[*colors, _WHITE])
    rows = []
    shown = np.linspace(0, len(dataset) - 1, min(_PHOTOS, len(dataset)))
    for index in shown.round().astype(int):
        sample = dataset[index]
        predicted = replace(predictor(sample["img"]), **style)
        labelled = replace(predicted, **_read_labels(sample, count))
        drawings = [
            np.pad(part.draw(), _MARGIN, constant_values=255) for part in (labelled, predicted)
        ]
        row = np.hstack(drawings)
        height = round(row.shape[0] * _WIDTH / row.shape[1])
        rows.append(cv2.resize(row, (_WIDTH, height), interpolation=cv2.INTER_AREA))
    return np.vstack(rows)


def _read_labels(sample: Mapping[str, Any], not_labelled: int) -> dict[str, Any]:
    """Return the labels of a sample as values of a `Prediction`."""
    if "gt_seg_map" in sample:
        return dict(segmentation=np.minimum(sample["gt_seg_map"], not_labelled))
    boxes = sample["gt_bboxes"].numpy()
    masks = sample["gt_masks"].to_ndarray().astype(bool) if "gt_masks" in sample else None
    class_ids = sample["gt_bboxes_labels"].astype(int)
    return dict(instances=sv.Detections(boxes, masks, class_id=class_ids))
