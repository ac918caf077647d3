"""Fine-tuning, training and testing: the user's data, a config, checks, and mmengine's Runner."""

from .finetuning import finetune
from .testing import evaluate
from .training import train

__all__ = ["evaluate", "finetune", "train"]
