"""Over how many things a score is computed."""

from collections import Counter


class Tally:
    """Over how many of all things a score was computed, and how many are left out for what reason.

    Args:
        unit: What is counted.
        total: How many there are.
    """

    def __init__(self, unit: str, total: int) -> None:
        self.unit = unit
        self.total = total
        self.left_out: Counter[str] = Counter()

    def leave_out(self, reason: str, count: int) -> None:
        """Count things that do not count for one more reason."""
        self.left_out[reason] += count

    @property
    def counts(self) -> dict[str, int]:
        """The total, the number of scored things, and of those left out by reason."""
        left_out = {reason: count for reason, count in self.left_out.items() if count}
        return dict(total=self.total, scored=self.total - self.left_out.total()) | left_out

    def __str__(self) -> str:
        counts = self.counts
        total = counts.pop("total")
        scored = counts.pop("scored")
        share = f" ({scored / total:.1%})" if total else ""
        reasons = [f"{count:,} {reason}" for reason, count in counts.items()]
        left_out = f"; left out: {', '.join(reasons)}" if reasons else ""
        return f"the score counts {scored:,} of {total:,} {self.unit}{share}{left_out}"
