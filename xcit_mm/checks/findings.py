"""Findings of the doctor. A failure prevents a run from starting."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..utils.errors import preview


class Finding(NamedTuple):
    """A line that the doctor prints.

    Attributes:
        level: 'ok', 'note' or 'FAIL'.
        code: The code in docs/doctor.md, or '' for the message of a library.
        text: What was found.
        fix: What to do, or ''.
    """

    level: str
    code: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}{self.code:<6}{self._text_and_fix()}"

    def message(self) -> str:
        """Return the message of an error: the line without its level."""
        return f"{self.code} {self._text_and_fix()}".strip()

    def _text_and_fix(self) -> str:
        return f"{self.text} -- fix: {self.fix}" if self.fix else self.text


Findings = Iterable[Finding]


def ok(text: str) -> Finding:
    return Finding("ok", "", text)


def note(code: str, text: str, fix: str = "") -> Finding:
    return Finding("note", code, text, fix)


def fail(code: str, text: str, fix: str = "") -> Finding:
    return Finding("FAIL", code, text, fix)


def listed(level: str, code: str, names: Collection, problem: str, fix: str) -> list[Finding]:
    """Return a finding about named files, classes or ids, or no finding if there are none."""
    return [Finding(level, code, f"{len(names)} {problem}: {preview(names)}", fix)] if names else []
