"""`python -m helpers.on_cpus` is `python -m xcit_mm` where torch has no GPU.

mmengine (0.10.7) selects a GPU in each process of a run.
"""

import sys

import torch

from xcit_mm.__main__ import main

if __name__ == "__main__":
    torch.cuda.set_device = lambda device: None
    sys.exit(main())
