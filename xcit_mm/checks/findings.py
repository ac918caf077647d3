"""Findings: a line for each, with a code that docs/doctor.yml explains, and the fix."""

from collections.abc import Iterator
from typing import NamedTuple

from ..utils.errors import reason

__all__ = ["Finding", "fail", "guard", "note", "ok", "refuse"]


class Finding(NamedTuple):
    """One line of a diagnosis: `level` is 'ok', 'FAIL' or 'note', which stops no run; 'ok' has neither code nor fix."""

    level: str
    code: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}{self.code:<6}{self.text}" + (f" -- fix: {self.fix}" if self.fix else "")


def ok(text: str) -> Finding:
    return Finding("ok", "", text)


def note(code: str, text: str, fix: str = "") -> Finding:
    return Finding("note", code, text, fix)


def fail(code: str, text: str, fix: str) -> Finding:
    return Finding("FAIL", code, text, fix)


def guard(check: Iterator[Finding], code: str, fix: str) -> Iterator[Finding]:
    """Findings of a check, without 'ok' after a failure; an exception of the check is a failure of this code."""
    failed = False
    try:
        for finding in check:
            failed |= finding.level == "FAIL"
            if not (failed and finding.level == "ok"):
                yield finding
    except Exception as error:  # a wrong config makes the libraries raise nearly anything
        yield fail(code, reason(error), fix)


def refuse(findings: Iterator[Finding], error: type[Exception] = ValueError) -> None:
    """Raise the first failure."""
    for finding in findings:
        if finding.level == "FAIL":
            raise error(f"{finding.code} {finding.text} -- fix: {finding.fix}")
