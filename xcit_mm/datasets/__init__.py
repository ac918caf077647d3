"""The data contract: strict readers for COCO, YOLO and segmentation maps, and one writer."""

from .coco import CocoFile
from .dataset import IGNORED, Dataset, arguments_of, write_dataset
from .reading import dataset_of_objects, read_dataset

__all__ = [
    "IGNORED",
    "CocoFile",
    "Dataset",
    "arguments_of",
    "dataset_of_objects",
    "read_dataset",
    "write_dataset",
]
