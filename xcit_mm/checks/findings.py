"""Findings: the lines of the doctor, of which a failure stops the start of a run."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ..utils.errors import preview, reason


class Finding(NamedTuple):
    """A line of the doctor, of level 'ok', 'note' or 'FAIL'. docs/doctor.md explains its code,
    unless it is empty.
    """

    level: str
    code: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.level:<5}{self.code:<6}{self.text}" + (
            f" -- fix: {self.fix}" if self.fix else ""
        )

    def message(self) -> str:
        """Return the message of an error: the line without its level."""
        return " ".join(str(self).removeprefix(self.level).split())


def ok(text: str) -> Finding:
    return Finding("ok", "", text)


def note(code: str, text: str, fix: str = "") -> Finding:
    return Finding("note", code, text, fix)


def fail(code: str, text: str, fix: str = "") -> Finding:
    return Finding("FAIL", code, text, fix)


def listed(level: str, code: str, names: Collection, problem: str, fix: str) -> list[Finding]:
    """Return a finding with the number of some files and the first of them, none without files."""
    text = f"{len(names)} {problem}: {preview(names)}"
    return [Finding(level, code, text, fix)] if names else []


def collect(findings: Iterable[Finding]) -> list[Finding]:
    """List the findings of a check. An exception is a failure that ends the list. A failure leaves
    out what is ok.
    """
    collected: list[Finding] = []
    try:
        collected.extend(findings)
    except Exception as error:  # a wrong config makes the libraries raise nearly any exception
        collected.append(fail("", reason(error)))
    has_failed = any(finding.level == "FAIL" for finding in collected)
    return [finding for finding in collected if finding.level != "ok" or not has_failed]
