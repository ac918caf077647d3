"""Runtime of the files that tools/export.py writes, with numpy, onnxruntime and pillow alone.

    model = Model("model.onnx")
    image = read_image("photo.jpg")
    results = model(image)  # Detections or Segmentation, in pixels of the image
    drawn = draw(image, results, model.classes)

This folder uses nothing else of its package: copy it, and run.py beside it, to the target machine.
"""

from .drawing import draw
from .images import read_image
from .model import Model
from .results import Detections, Segmentation, summarize, to_json

__all__ = ["Detections", "Model", "Segmentation", "draw", "read_image", "summarize", "to_json"]
