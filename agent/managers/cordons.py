"""The cordons of an operator with their reasons, as the checkpoint keeps them."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from agent.managers.policy import NO_CORDON, Cordon
from agent.values import Saved

if TYPE_CHECKING:
    from collections.abc import Iterator


class CordonEntry(Saved, frozen=True):
    """What an operator cordoned at one time."""

    cordon: Cordon
    #: In the operator's words, "" if none was given.
    reason: str = ""
    #: The Unix time.
    since: float = 0.0


class Cordons(Saved, frozen=True):
    """All cordons, in the order in which they were set; a CPU or node is in at most one entry."""

    entries: tuple[CordonEntry, ...] = ()

    def __iter__(self) -> Iterator[CordonEntry]:
        return iter(self.entries)

    @property
    def total(self) -> Cordon:
        """What the entries cordon together."""
        return reduce(or_, (entry.cordon for entry in self.entries), NO_CORDON)

    def with_entry(self, entry: CordonEntry) -> Cordons:
        """Return the cordons with one more entry; what it cordons leaves the earlier entries."""
        return Cordons((*self.without(entry.cordon).entries, entry))

    def without(self, cordon: Cordon) -> Cordons:
        """Return the cordons without some CPUs and nodes."""
        left = (
            CordonEntry(
                Cordon(entry.cordon.cpus - cordon.cpus, entry.cordon.nodes - cordon.nodes),
                entry.reason,
                entry.since,
            )
            for entry in self.entries
        )
        return Cordons(tuple(entry for entry in left if entry.cordon))


NO_CORDONS: Final = Cordons()
