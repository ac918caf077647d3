"""Where things are in the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
GOLDEN = ROOT / "tests" / "data" / "golden"
# Beside a developer's checkout only: what needs it skips where it is absent.
SHARED = ROOT.parent / "shared"
