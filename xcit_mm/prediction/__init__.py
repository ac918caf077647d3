"""A trained model on one image, as Predictor and Prediction, and on many, as a folder of records;
drawing; tiles.
"""

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
