"""Errors and lists of names in one line."""

from collections.abc import Collection


def reason(error: BaseException) -> str:
    """Return an exception's type and message as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def preview(names: Collection) -> str:
    """Return the first three names and the number of further names."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(str(name) for name in list(names)[:3]) + more


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 class, 2 classes, 1,000 photos."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
