"""Over how many things a score is computed."""

from collections import Counter
from typing import Any


class Tally:
    """Over how many of all things a score is computed, and how many are left out for what reason.

    Args:
        unit: What is counted.
        total: How many there are.
    """

    def __init__(self, unit: str, total: int) -> None:
        self.unit = unit
        self.total = total
        self.left_out: Counter[str] = Counter()

    def keep(self, things: Any, is_kept: Any, reason: str) -> Any:
        """Return the things that are kept, and count the others as left out for one reason."""
        self.left_out[reason] += len(things) - int(is_kept.sum())
        return things[is_kept]

    @property
    def counts(self) -> dict[str, int]:
        """The total, the number of scored things, and of those left out by reason."""
        scored = self.total - self.left_out.total()
        return dict(total=self.total, scored=scored) | dict(+self.left_out)

    def __str__(self) -> str:
        scored = self.counts["scored"]
        share = f" ({scored / self.total:.1%})" if self.total else ""
        reasons = [f"{count:,} {reason}" for reason, count in (+self.left_out).items()]
        left_out = f"; left out: {', '.join(reasons)}" if reasons else ""
        return f"the score counts {scored:,} of {self.total:,} {self.unit}{share}{left_out}"
