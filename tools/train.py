"""`xcit-mm train`, under the name that users of OpenMMLab look for."""

import sys

from xcit_mm.commands.train import main

if __name__ == "__main__":
    sys.exit(main())
