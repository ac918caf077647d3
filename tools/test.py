"""`xcit-mm test`, under the name that users of OpenMMLab look for."""

import sys

from xcit_mm.commands.test import main

if __name__ == "__main__":
    sys.exit(main())
