"""The config of a segmentor that trains on whole images."""

from typing import Any

from mmengine.config import Config

from ..models import MIN_SIZE
from ..utils.config_parts import type_name
from ..utils.errors import ArgumentError

TILE = 512
"""Side in pixels of the tiles in which a raster is predicted if it is not predicted whole."""
_SIZING = ("Resize", "RandomResize", "RandomChoiceResize", "ResizeShortestEdge", "RandomCrop")


def check_whole_training(cfg: Config) -> None:
    """Raise ArgumentError unless the model of a config can train on whole images."""
    name = type_name(cfg.model)
    if name not in ("EncoderDecoder", "WholeImageEncoderDecoder"):
        raise ArgumentError("whole", f"{name} trains on crops: give a segmentor, EncoderDecoder")


def adapt_to_whole(values: dict[str, Any]) -> None:
    """Adapt the values from `adapt` to images that the model sees whole, at their own size.

    A batch is one image, since images have different sizes.
    """
    model = values["model"]
    model["type"] = "xcit_mm.WholeImageEncoderDecoder"
    model["backbone"].update(with_cp="bands", norm_eval=True)
    model["data_preprocessor"].update(size=None, size_divisor=MIN_SIZE)
    for name in ("train_pipeline", "test_pipeline"):
        values[name] = [step for step in values[name] if type_name(step) not in _SIZING]
    values["large"]["scale"] = 1.0
    values["batch_size"] = 1
