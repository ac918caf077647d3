"""A trained model on images: predictor, tiles, test-time augmentation (`tta`), features, visualization."""

from .coco_results import CocoFile
from .inputs import find_inputs, read_frames
from .predictor import Predictor
from .tiling import detect_in_tiles, segment_in_tiles
from .visualization import Activations, capture_activations, draw

__all__ = [
    "Activations",
    "CocoFile",
    "Predictor",
    "capture_activations",
    "detect_in_tiles",
    "draw",
    "find_inputs",
    "read_frames",
    "segment_in_tiles",
]
