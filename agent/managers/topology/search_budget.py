"""A budget of work for one choice among sets of NUMA nodes: counted in steps, never in time."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

#: Steps of one choice. A step takes some ten microseconds; hardly any choice needs a fifth.
BUDGET: Final = 1_000


class SearchBudget(Struct):
    """The remaining steps; `exceeded` is set when a search stopped before its end.

    The same input always takes the same steps, so a decision stays a pure function.
    """

    left: int = BUDGET
    exceeded: bool = False

    def take(self, steps: int = 1) -> bool:
        """Spend steps; False when the budget does not allow it, which is noted."""
        if self.left < steps:
            self.exceeded = True
            return False
        self.left -= steps
        return True
