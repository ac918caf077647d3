"""Paths in the repository."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
GOLDEN = ROOT / "tests" / "data" / "golden"
# Exists only beside a developer's checkout. Tests that need it are skipped without it.
SHARED = ROOT.parent / "shared"
