"""The data contract: strict readers for COCO, YOLO and segmentation maps, and one writer."""

from .coco import CocoFile
from .dataset import IGNORED, Dataset, write_dataset
from .reading import Source, read_dataset, suggest_files

__all__ = [
    "IGNORED",
    "CocoFile",
    "Dataset",
    "Source",
    "read_dataset",
    "suggest_files",
    "write_dataset",
]
