"""`xcit-mm predict`, as a script for torchrun."""

import sys

from xcit_mm.commands.predict import main

if __name__ == "__main__":
    sys.exit(main())
