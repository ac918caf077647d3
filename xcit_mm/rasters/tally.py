"""How many labels, objects or pixels count, and how many are left out for what reason."""

from collections import Counter
from typing import Any


class Tally:
    """How many of all things of a unit count."""

    def __init__(self, unit: str, total: int) -> None:
        self.total = total
        self.left_out: Counter[str] = Counter()
        self._unit = unit

    def keep(self, things: Any, is_kept: Any, reason: str) -> Any:
        """Return the things that are kept, and count the others by the reason."""
        self.left_out[reason] += len(things) - int(is_kept.sum())
        return things[is_kept]

    @property
    def counts(self) -> dict[str, int]:
        """The total, and the numbers that count and that are left out by each reason."""
        counted = self.total - self.left_out.total()
        return dict(total=self.total, counted=counted) | dict(+self.left_out)

    def __str__(self) -> str:
        reasons = [f", {count:,} {reason}" for reason, count in (+self.left_out).items()]
        return f"{self.counts['counted']:,} of {self.total:,} {self._unit}{''.join(reasons)}"
