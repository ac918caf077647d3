"""Check that no photo is trained and scored on: the same file, or a copy under another name."""

import contextlib
import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from .findings import Finding, listed

_PIECE = 4096  # bytes that tell most images of one size apart


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
    """Return the photos that are copies, each with its original. Sizes, pieces and contents are
    compared in turn, each only of files that were equal before.
    """
    copies: dict[str, str] = {}
    for identify in (os.path.getsize, _read_piece, _hash_content):
        keys = _compute_keys(photos, identify)
        original_keys = _compute_keys(originals if keys else [], identify)
        by_key = {key: path for path, key in original_keys.items()}
        copies = {path: by_key[key] for path, key in keys.items() if key in by_key}
        photos = list(copies)
        shared = set(keys.values())
        originals = [path for path, key in original_keys.items() if key in shared]
    return copies


def _compute_keys(paths: Sequence[str], identify: Callable[[str], Any]) -> dict[str, Any]:
    """Return what `identify` returns for each file that can be read, by path."""
    keys = {}
    for path in paths:
        with contextlib.suppress(OSError):  # which another check reports
            keys[path] = identify(path)
    return keys


def _read_piece(path: str) -> bytes:
    """Read bytes from the middle of a file."""
    with open(path, "rb") as file:
        file.seek(os.path.getsize(path) // 2)
        return file.read(_PIECE)


def _hash_content(path: str) -> bytes:
    return blake2b(Path(path).read_bytes()).digest()
