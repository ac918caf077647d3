"""A training or a test as a user starts it: own data, the config of a fine-tuning, checks, and the
script of the library.
"""

from .finetuning import finetune, prepare_finetuning
from .run import run_tool

__all__ = ["finetune", "prepare_finetuning", "run_tool"]
