"""Images with labels: what a folder holds, read from any format, as columns that are checked and
written once.
"""

from .formats import EXPECTED, read_maps, read_objects
from .old_dataset import IGNORED, Dataset, Image, Objects, Split

__all__ = [
    "EXPECTED",
    "IGNORED",
    "Dataset",
    "Image",
    "Objects",
    "Split",
    "read_maps",
    "read_objects",
]
