"""Train with the library that a config belongs to, with all flags of its tools/train.py.

python tools/train.py CONFIG [FLAG ...]
python tools/train.py --from MODEL --data COCO_FOLDER_OR_JSON [--config NEW_CONFIG] [FLAG ...]
"""

import sys

from xcit_mm.launch import finetune, run_tool


def main() -> int:
    argv = sys.argv[1:]
    return finetune(argv) if "--from" in argv else run_tool("train", argv)


if __name__ == "__main__":
    sys.exit(main())
