"""A trained model on many images: inputs, manifest, shards, engine, workers, output files, features."""

from .inputs import Input, find_inputs

__all__ = ["Input", "find_inputs"]
