"""`xcit-mm doctor`; where the package cannot be imported, its lines about the stack alone."""

import runpy
import sys
from pathlib import Path

PARENT = Path(__file__).resolve().parents[1]  # .mim of an installed package, or a clone

if __name__ == "__main__":
    try:
        from xcit_mm.commands.doctor import main
    except (ImportError, OSError):
        package = PARENT.parent if PARENT.name == ".mim" else PARENT / "xcit_mm"
        main = runpy.run_path(str(package / "commands" / "stack.py"))["main"]
    sys.exit(main())
