"""A trained model on images: predictor, tiles, test-time augmentation (`tta`), features, visualization."""

from .drawing import Style, draw_instances, draw_segmentation_map
from .files import Writer, predict_files
from .inputs import Input, find_inputs
from .predictor import Prediction, Predictor
from .results import Instances
from .tiling import detect_in_tiles, segment_in_tiles
from .visualization import Activations, capture_activations, draw

__all__ = [
    "Activations",
    "Input",
    "Instances",
    "Prediction",
    "Predictor",
    "Style",
    "Writer",
    "capture_activations",
    "detect_in_tiles",
    "draw",
    "draw_instances",
    "draw_segmentation_map",
    "find_inputs",
    "predict_files",
    "segment_in_tiles",
]
