"""A trained model on one image: predictor, tiles, test-time augmentation, results, drawing, activations."""

from .activations import Activations, capture_activations
from .drawing import Style, draw_instances, draw_segmentation_map
from .figures import draw_activations
from .prediction import Prediction
from .predictor import Predictor
from .results import Instances
from .tiled_detection import detect_in_tiles
from .tiled_segmentation import segment_in_tiles

__all__ = [
    "Activations",
    "Instances",
    "Prediction",
    "Predictor",
    "Style",
    "capture_activations",
    "detect_in_tiles",
    "draw_activations",
    "draw_instances",
    "draw_segmentation_map",
    "segment_in_tiles",
]
