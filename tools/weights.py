"""`xcit-mm weights`, as a script."""

import sys

from xcit_mm.commands.weights import main

if __name__ == "__main__":
    sys.exit(main())
