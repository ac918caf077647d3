"""Errors and lists of names in one line."""

from collections.abc import Collection


class ArgumentError(ValueError):
    """The value of an argument is wrong.

    A command shows the name of its option in place of the argument's name.

    Attributes:
        name: The argument.
        problem: What is wrong with its value, and what to do.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.name}: {self.problem}"


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
