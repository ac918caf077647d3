"""What is printed after a training: where its best checkpoint and the drawings are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import supervision as sv
from mmengine.config import Config
from mmengine.registry import DATASETS

from ..datasets import IGNORED
from ..prediction import Prediction, Predictor
from ..utils.config_data import tested_dataset
from ..utils.config_parts import type_name
from ..utils.errors import reason
from ..utils.output import quiet, say
from ..utils.palettes import make_palette
from ..weights.work_dirs import Model, find_in

_PHOTOS = 4


def report(work_dir: Path, cfg: Config) -> None:
    """Print where the checkpoint is, and after a fine-tuning where the drawings of photos are."""
    trained = find_in(work_dir)
    if trained.checkpoint and cfg.get("source"):
        drawings = work_dir / "predictions"
        try:
            with quiet():
                _draw_photos(cfg, trained, drawings)
            say(f"labels beside predictions: {drawings}")
        except Exception as error:  # the training has succeeded
            say(f"predictions are not drawn: {reason(error)}")
    say(f"weights: {trained.checkpoint or trained.problem}")


def _draw_photos(cfg: Config, trained: Model, folder: Path) -> None:
    """Draw some photos from the test set, with labels on the left and predictions on the right."""
    # Unlike the file that was trained, the config in the work folder has the options of the run.
    config = trained.config or cfg.filename
    whole = type_name(cfg.model) == "WholeImageEncoderDecoder"  # photos may be of any size
    predictor = Predictor.from_pretrained(config, trained.checkpoint, whole=whole)
    dataset = DATASETS.build(tested_dataset(cfg))
    folder.mkdir(exist_ok=True)
    shown = np.linspace(0, len(dataset) - 1, min(_PHOTOS, len(dataset)))
    for index in shown.round().astype(int):
        sample = dataset[index]["data_samples"]
        predicted = predictor(sample.img_path)
        drawing = np.hstack([_with_labels(predicted, sample).draw(), predicted.draw()])
        # Photos in several folders may have the same name.
        path = folder / f"{index}-{Path(sample.img_path).stem}.jpg"
        if not cv2.imwrite(str(path), drawing):
            raise OSError(f"{path} cannot be written")


def _with_labels(prediction: Prediction, sample: Any) -> Prediction:
    """Return a prediction with the labels of a data sample in place of what was predicted."""
    if prediction.segmentation is not None:
        count = len(prediction.names)
        labels = sample.gt_sem_seg.data[0].numpy()
        colors = make_palette(count, prediction.palette)[:, ::-1].tolist()
        return replace(
            prediction,
            segmentation=np.where(labels == IGNORED, count, labels),
            names=[*prediction.names, "not labelled"],
            palette=[*colors, [255, 255, 255]],
        )
    objects = sample.gt_instances
    boxes = getattr(objects.bboxes, "tensor", objects.bboxes).numpy()
    masks = objects.masks.to_ndarray().astype(bool) if "masks" in objects else None
    instances = sv.Detections(boxes, mask=masks, class_id=objects.labels.numpy())
    return replace(prediction, instances=instances)
