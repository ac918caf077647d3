"""A trained model predicts: one image, a large one in tiles or whole, or many into a folder."""

from .listing import Item, Listing, find_items
from .many import Report, predict_many
from .prediction import Prediction
from .predictor import Predictor

__all__ = [
    "Item",
    "Listing",
    "Prediction",
    "Predictor",
    "Report",
    "find_items",
    "predict_many",
]
