"""The end of a training: its best checkpoint, and after a fine-tuning drawings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.device import get_device
from mmengine.registry import DATASETS, VISUALIZERS, init_default_scope

from ..models.build import load_model
from ..utils.config_data import tested_dataset
from ..utils.errors import reason
from ..utils.output import quiet
from ..weights.work_dirs import find_in

_PHOTOS = 4


def report(work_dir: Path, cfg: Config) -> Iterator[str]:
    """Yield lines about a training that has ended.

    They name its checkpoint, and after a fine-tuning the folder with drawings of some photos.
    """
    checkpoint = find_in(work_dir).checkpoint
    if checkpoint and cfg.get("source"):
        drawings = work_dir / "predictions"
        try:
            with quiet():
                _draw_photos(cfg, checkpoint, drawings)
            yield f"labels beside predictions: {drawings}"
        except Exception as error:  # the libraries draw no images of other bands
            yield f"predictions are not drawn: {reason(error)}"
    yield f"weights: {checkpoint}"


def _draw_photos(cfg: Config, checkpoint: str, folder: Path) -> None:
    """Let mmdet or mmseg draw some photos of the test set, evenly spread, each with its labels at
    the left and with the predictions of a checkpoint at the right.
    """
    model: Any = load_model(cfg, checkpoint).to(get_device())
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(tested_dataset(cfg))
    visualizer = VISUALIZERS.build(cfg.visualizer)
    visualizer.dataset_meta = dataset.metainfo
    shown = np.linspace(0, len(dataset) - 1, min(_PHOTOS, len(dataset)))
    for index in shown.round().astype(int):
        with torch.no_grad():
            (sample,) = model.test_step(pseudo_collate([dataset[index]]))
        image = mmcv.imread(sample.img_path, channel_order="rgb")
        drawing = folder / f"{Path(sample.img_path).stem}.jpg"
        visualizer.add_datasample("", image, sample, out_file=str(drawing))
