"""Weights from files to tensors: published files, a reader, layouts, and matching to a model."""

from .layouts import Weights, parse_checkpoint
from .lookup import load_checkpoint
from .matching import load_pretrained, match_model
from .published import PUBLISHED, PublishedFile, ensure_downloaded
from .reader import load_from_file
from .strict_load import StrictLoadHook

__all__ = [
    "PUBLISHED",
    "PublishedFile",
    "StrictLoadHook",
    "Weights",
    "ensure_downloaded",
    "load_checkpoint",
    "load_from_file",
    "load_pretrained",
    "match_model",
    "parse_checkpoint",
]
