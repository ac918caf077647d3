"""Findings, and the checks that return them."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import NamedTuple, ParamSpec

from ..utils.errors import reason

Arguments = ParamSpec("Arguments")


class Finding(NamedTuple):
    """A line of the doctor.

    Attributes:
        level: 'ok', 'note' or 'FAIL'. Only a failure stops a run.
        code: Code that docs/doctor.yml explains, such as 'D311'. It is empty if the level is 'ok'.
        text: What was found.
        fix: What to do. It may be empty if the level is not 'FAIL'.
    """

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


def check(
    code: str, fix: str
) -> Callable[[Callable[Arguments, Iterator[Finding]]], Callable[Arguments, list[Finding]]]:
    """Decorate a generator of findings, so that it returns a list and does not raise.

    An `ok` after a failure is left out. An exception becomes a failure with this code and fix, in which '{name}' stands
    for an argument of the generator.
    """

    def decorate(generator: Callable[Arguments, Iterator[Finding]]) -> Callable[Arguments, list[Finding]]:
        @wraps(generator)
        def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> list[Finding]:
            findings: list[Finding] = []
            try:
                for finding in generator(*args, **kwargs):
                    if finding.level != "ok" or all(former.level != "FAIL" for former in findings):
                        findings.append(finding)
            except Exception as error:  # a wrong config makes the libraries raise nearly any exception
                arguments = inspect.signature(generator).bind(*args, **kwargs).arguments
                findings.append(fail(code, reason(error), fix.format(**arguments)))
            return findings

        return checked

    return decorate


def raise_first(findings: Iterable[Finding], error: type[Exception] = ValueError) -> None:
    """Raise an error for the first failure, if there is a failure."""
    for finding in findings:
        if finding.level == "FAIL":
            raise error(f"{finding.code} {finding.text} -- fix: {finding.fix}")
