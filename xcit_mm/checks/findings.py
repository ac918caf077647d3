"""Findings, and the checks that return them."""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import NamedTuple, ParamSpec

from ..utils.errors import reason

Arguments = ParamSpec("Arguments")


class Finding(NamedTuple):
    """A line of the doctor, of level 'ok', 'note' or 'FAIL'. docs/doctor.md explains its code, unless it is empty."""

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


def fail(code: str, text: str, fix: str = "") -> Finding:
    return Finding("FAIL", code, text, fix)


def check(generator: Callable[Arguments, Iterator[Finding]]) -> Callable[Arguments, list[Finding]]:
    """Decorate a generator of findings, so that it returns a list. An exception is a failure, and ends the list."""

    @wraps(generator)
    def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> list[Finding]:
        findings: list[Finding] = []
        try:
            findings.extend(generator(*args, **kwargs))
        except Exception as error:  # a wrong config makes the libraries raise nearly any exception
            findings.append(fail("", reason(error)))
        failed = any(finding.level == "FAIL" for finding in findings)
        return [finding for finding in findings if finding.level != "ok" or not failed]

    return checked


def raise_first(findings: Iterable[Finding], error: type[Exception] = ValueError) -> None:
    """Raise an error for the first failure, if there is a failure."""
    for found in findings:
        if found.level == "FAIL":
            raise error(" ".join(str(found).removeprefix("FAIL").split()))
