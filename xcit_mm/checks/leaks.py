"""Check that no photo is trained and scored on."""

from collections.abc import Sequence

from .findings import Finding, listed


def check_leaks(split: str, photos: Sequence[str], trained: Sequence[str]) -> list[Finding]:
    """Compare the paths of the photos of a split, 'val' or 'test', with those of the training."""
    leaks = sorted({*photos}.intersection(trained))
    problem = f"of {len(photos)} images of the {split} split are in the training split"
    fix = f"{split} on other images: the scores are too high"
    return listed("note", "D319", leaks, problem, fix)
