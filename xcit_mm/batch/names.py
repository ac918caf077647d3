"""Names of result files: unique, short enough, and similar to the names of the inputs."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence

__all__ = ["result_keys"]

RESULT_SUFFIXES = (".jpg", ".png", ".mp4")
MAX_BYTES = 255 - len(".jpg")  # of a file name without its suffix


def result_keys(names: Sequence[str]) -> list[str]:
    """Return a unique key for each input, its name without the suffix if possible.

    Where two keys would be equal, one is too long, or a result file would have the name of a folder, the key keeps
    the suffix. If that does not suffice, the key gets a hash.

    Args:
        names: Paths of the inputs, relative to a common folder.
    """
    folders = set(map(os.path.dirname, names))
    while parents := set(map(os.path.dirname, folders)) - folders:
        folders |= parents
    reserved = {os.path.splitext(folder)[0] for folder in folders if folder.endswith(RESULT_SUFFIXES)}
    stems = [os.path.splitext(name)[0] for name in names]
    keys = list(stems)
    alternatives: tuple[Callable[[int], str], ...] = (
        lambda number: names[number],
        lambda number: _hashed(stems[number], f"{number} {names[number]}"),
    )
    for alternative in alternatives:
        changed = True
        while changed:  # a new key may be equal to another one
            count = Counter(keys)
            changed = False
            for number, key in enumerate(keys):
                is_valid = count[key] == 1 and key not in reserved and _fits(key)
                if not is_valid and key != alternative(number):
                    keys[number], changed = alternative(number), True
    return keys


def _fits(key: str) -> bool:
    return len(os.path.basename(key).encode(errors="replace")) <= MAX_BYTES


def _hashed(stem: str, text: str) -> str:
    folder, name = os.path.split(stem)
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return os.path.join(folder, f"{name[:50]}-{digest[:12]}")
