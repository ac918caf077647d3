"""A training or a test as a user starts it: own data, the config of a fine-tuning, checks, and
mmengine's Runner.
"""

from .finetuning import finetune
from .run import test, train

__all__ = ["finetune", "test", "train"]
