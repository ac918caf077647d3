"""Weights from files to tensors: reading that runs no code, the published files, layouts, and matching to a model."""

from .layouts import Weights, recognise
from .matching import load_pretrained, match_model, match_trunk
from .published import PUBLISHED, download, fetch
from .reader import load_from_file
from .strict_loading import StrictLoadHook

__all__ = [
    "PUBLISHED",
    "StrictLoadHook",
    "Weights",
    "download",
    "fetch",
    "load_from_file",
    "load_pretrained",
    "match_model",
    "match_trunk",
    "recognise",
]
