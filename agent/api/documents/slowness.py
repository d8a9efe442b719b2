"""What makes a pod slow. `agent.server.slowness` makes these values, documents as they are."""

from __future__ import annotations

from msgspec import Struct


class SlowCause(Struct, frozen=True):
    """One thing that makes a pod slow.

    `cause` is one of `throttled`, `cpu_wait`, `memory_wait`, `reclaimed`, `killed`, `not_aligned`,
    `far_device`, `shared_cores`, `intruders`, `interrupts`, `frequency`, `heat`; a later release
    may have more.
    """

    cause: str
    #: "" for the pod as a whole.
    container: str
    #: The figure, in one line.
    message: str


class Slowness(Struct, frozen=True):
    """What the agent sees that makes a pod slow."""

    causes: tuple[SlowCause, ...]
    #: The files that no cgroup of a container of the pod has, so that what they show is not known.
    unknown: tuple[str, ...] = ()
