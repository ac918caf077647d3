"""A trained model on many images: inputs, manifest, shards, engine, workers, output files, features."""

from .inputs import Input, InputListing, find_inputs
from .merging import RunReport
from .options import Drawing, Execution, RunOptions
from .predict import RunError, predict_many

__all__ = [
    "Drawing",
    "Execution",
    "Input",
    "InputListing",
    "RunError",
    "RunOptions",
    "RunReport",
    "find_inputs",
    "predict_many",
]
