"""Texts and names of other tools, read alike wherever they come from."""

import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read_text(path: Path) -> str:
    """Read a text in UTF-8, UTF-16 or UTF-32, with or without a byte order mark.

    Raises:
        ValueError: If the file has another encoding, or is not a text.
    """
    encoded = path.read_bytes()
    try:
        text = encoded.decode(json.detect_encoding(encoded))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read ({error}): save it as UTF-8") from None
    if "\0" in text:
        raise ValueError(f"{path} is not a text: it has a zero byte")
    return text


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text that are not empty, as `read_text` does."""
    lines = [line.strip() for line in read_text(path).splitlines()]
    return [line for line in lines if line]


def read_class_names(path: Path) -> list[str]:
    """Read the names of classes, one on each line.

    Raises:
        ValueError: If a line between them is empty: the names after it would be of other numbers.
    """
    lines = [line.strip() for line in read_text(path).rstrip().splitlines()]
    if "" in lines:
        fix = "name the class, or remove the line"
        raise ValueError(f"{path} has an empty line {lines.index('') + 1}: {fix}")
    return lines


def compose(name: str) -> str:
    """Return a name with composed letters: a Mac writes `é` as two characters."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def is_unicode(name: str) -> bool:
    """Return whether a path can be written into a text: a zip may hold names in other encodings."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """Return a text as one line that any file can hold, with escapes such as `\\n`."""

    def escape(letter: str) -> str:
        return letter if letter.isprintable() else letter.encode("unicode_escape").decode()

    return "".join(map(escape, text))


def class_name(value: Any) -> str:
    """Return the name of a class as it was written: `null`, `1` and `true` are texts too.

    Raises:
        ValueError: If the value is a list or a mapping.
    """
    if isinstance(value, (list, dict)):
        raise ValueError(f"{value} is not the name of a class")
    return compose(value if isinstance(value, str) else json.dumps(value)).strip()


def find_alike(names: Iterable[str]) -> list[tuple[str, ...]]:
    """List the names that differ only in case, spaces, hyphens or underscores."""
    groups = defaultdict(list)
    for name in dict.fromkeys(names):
        groups[re.sub(r"[\s_-]+", "", name.casefold())].append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]
