"""Findings about config, data, model and weights: what silently ruins a training."""

from .doctor import diagnose

__all__ = ["diagnose"]
