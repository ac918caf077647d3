"""Check that no photo is trained and scored on: the same file, or a copy under another name."""

import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from .findings import Finding, listed


def check_leaks(split: str, photos: Sequence[str], trained: Sequence[str]) -> list[Finding]:
    """Compare the photos of a split, 'val' or 'test', with those of the training split."""
    paths = set(trained)
    leaks = {path: path for path in photos if path in paths}
    leaks |= _find_copies([path for path in photos if path not in leaks], trained)
    names = [
        path if path == original else f"{path} (a copy of {original})"
        for path, original in sorted(leaks.items())
    ]
    problem = f"of {len(photos)} images of the {split} split are in the training split"
    fix = f"{split} on other images: the scores are too high"
    return listed("note", "D319", names, problem, fix)


def _find_copies(photos: Sequence[str], originals: Sequence[str]) -> dict[str, str]:
    """Return the photos that have the content of an original, each with that. Only files of one
    size are read.
    """
    sizes = _read_sizes(photos)
    original_sizes = _read_sizes(originals)
    shared = {*sizes.values()}.intersection(original_sizes.values())
    contents = {_hash(path): path for path, size in original_sizes.items() if size in shared}
    hashes = {path: _hash(path) for path, size in sizes.items() if size in shared}
    return {path: contents[content] for path, content in hashes.items() if content in contents}


def _read_sizes(paths: Sequence[str]) -> dict[str, int]:
    """Return the size in bytes of each file that exists. Another check reports the others."""
    return {path: os.path.getsize(path) for path in paths if os.path.isfile(path)}


def _hash(path: str) -> bytes:
    return blake2b(Path(path).read_bytes()).digest()
