"""A training or a test as a user starts it: own data, the config of a fine-tuning, checks, and the
script of the library.
"""

from .finetuning import finetune
from .run import run_tool

__all__ = ["finetune", "run_tool"]
