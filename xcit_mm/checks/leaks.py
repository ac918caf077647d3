"""Check that no photo is trained and scored on: the same file, or a copy under another name."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..utils.errors import preview
from .findings import Finding, note

_PIECE = 4096  # bytes that tell most images of one size apart


def check_leaks(split: str, photos: Sequence[str], trained: Sequence[str]) -> Iterator[Finding]:
    """Compare the photos of a split, 'val' or 'test', with those of the training split."""
    paths = set(trained)
    leaks = {path: path for path in photos if path in paths}
    others = [path for path in photos if path not in leaks]
    leaks |= _find_copies(others, [path for path in trained if path not in leaks])
    if leaks:
        names = [
            path if path == original else f"{path} (a copy of {original})"
            for path, original in sorted(leaks.items())
        ]
        problem = f"{len(leaks)} of {len(photos)} images of the {split} split"
        fix = f"{split} on other images: the scores are too high"
        yield note("D319", f"{problem} are in the training split: {preview(names)}", fix)


def _find_copies(photos: Sequence[str], originals: Sequence[str]) -> dict[str, str]:
    """Return the photos that have the content of an original, each with that. What is dear to read
    is read only of files that the former keys do not tell apart.
    """
    keys: dict[str, Any] = {}
    original_keys: dict[str, Any] = {}
    for identify in (os.path.getsize, _read_piece, _hash_content):
        if not photos:
            return {}
        keys = _identify(photos, identify)
        original_keys = _identify(originals, identify)
        shared = set(keys.values()) & set(original_keys.values())
        photos = [path for path, key in keys.items() if key in shared]
        originals = [path for path, key in original_keys.items() if key in shared]
    by_content = {key: path for path, key in original_keys.items()}
    return {path: by_content[keys[path]] for path in photos}


def _identify(paths: Sequence[str], identify: Callable[[str], Any]) -> dict[str, Any]:
    """Return the key of each file that can be read."""
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
