"""A trained model on one image or a million: predictor, tiles, test-time augmentation, features, visualization."""

from .drawing import Style, draw_instances, draw_segmentation_map
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
    "capture_activations",
    "detect_in_tiles",
    "draw",
    "draw_instances",
    "draw_segmentation_map",
    "find_inputs",
    "segment_in_tiles",
]
