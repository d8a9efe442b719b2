"""What comes of the host-wide settings, as the agent's conditions and metrics have it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.isolation.resctrl import CacheCount
    from sysfs.mask import Mask

#: The most places that a condition names.
MOST_NAMED: Final = 3


class LateInterrupt(Struct, frozen=True):
    """An interrupt that still came to CPUs which it is to avoid."""

    #: Its number, and whose it is.
    name: str
    cpus: Mask

    def __str__(self) -> str:
        return f"{self.name} to {self.cpus}"


class IsolationReport(Struct, frozen=True):
    """What is not isolated as asked, and how many settings are changed."""

    #: What is not as asked, by subject.
    conditions: Mapping[str, str] = MappingProxyType({})
    #: By item, how many settings differ from their originals for a pod.
    changed: Mapping[str, int] = MappingProxyType({})
    #: How many settings were written.
    written: int = 0
    #: What the kernel counts of caches.
    counts: tuple[CacheCount, ...] = ()
    late: tuple[LateInterrupt, ...] = ()


NOT_APPLIED: Final = IsolationReport()
