"""What a check says: lines with the fix beside them."""

from collections.abc import Iterator
from typing import NamedTuple

from ..utils.errors import reason

__all__ = ["Finding", "fail", "guard", "note", "ok"]


class Finding(NamedTuple):
    """One line of a diagnosis: `level` is 'ok', 'FAIL' or 'note', which is worth knowing and no failure."""

    level: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.level:<6}{self.text}" + (f" -- fix: {self.fix}" if self.fix else "")


def ok(text: str) -> Finding:
    return Finding("ok", text)


def note(text: str, fix: str = "") -> Finding:
    return Finding("note", text, fix)


def fail(text: str, fix: str) -> Finding:
    return Finding("FAIL", text, fix)


def guard(check: Iterator[Finding], fix: str) -> Iterator[Finding]:
    """Findings of a check, without its 'ok' once it failed; an exception in it is a failure with the given fix."""
    failed = False
    try:
        for finding in check:
            failed |= finding.level == "FAIL"
            if not (failed and finding.level == "ok"):
                yield finding
    except Exception as error:  # a wrong config makes the libraries raise nearly anything
        yield fail(reason(error), fix)
