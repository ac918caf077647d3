"""`train --from MODEL --data DATA`: a config that fits model and data, checked and trained."""

from .config import finetune, write_finetuning_config

__all__ = ["finetune", "write_finetuning_config"]
