"""A trained model on one image: predictor, tiles, test-time augmentation, results, drawing, visualization."""

from .drawing import Style, draw_instances, draw_segmentation_map
from .predictor import Prediction, Predictor
from .results import Instances
from .tiling import detect_in_tiles, segment_in_tiles
from .visualization import Activations, capture_activations, draw

__all__ = [
    "Activations",
    "Instances",
    "Prediction",
    "Predictor",
    "Style",
    "capture_activations",
    "detect_in_tiles",
    "draw",
    "draw_instances",
    "draw_segmentation_map",
    "segment_in_tiles",
]
