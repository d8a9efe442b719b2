"""What an existing allocation violates: a rule of the current policy, or a fact of the host."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from agent.pods.identity import full_name

if TYPE_CHECKING:
    from agent.managers.allocations.allocation import PodAllocation

#: The remedy where only another decision helps.
ADMIT_AGAIN: Final = "remove the pod and admit it again"


class Rule(StrEnum):
    """What an allocation violates: a key of the configuration, or a fact of the host."""

    CPU_ALLOCATED_TWICE = "CPU allocated twice"
    CPU_MISSING = "CPU missing"
    CPU_OFFLINE = "CPU offline"
    CPU_POLICY = "cpuManagerPolicy"
    RESERVED_CPUS = "reservedSystemCPUs"
    FULL_PCPUS_ONLY = "full-pcpus-only"
    SHARED_POOL = "shared pool"
    MEMORY_POLICY = "memoryManagerPolicy"
    MEMORY_NODE = "memory node missing"
    MEMORY_TYPE = "memory type missing"
    MEMORY_CAPACITY = "memory capacity"
    DEVICE_ALLOCATED_TWICE = "device allocated twice"
    DEVICE_MISSING = "device missing"
    DEVICE_UNHEALTHY = "device unhealthy"
    POD_BUDGET = "pod-level budget"
    TOPOLOGY_POLICY = "topologyManagerPolicy"


class Violation(Struct, frozen=True):
    """An allocation that the current policy would not make.

    `rule` is a key of the configuration or a fact of the host, `pod` is namespace/name.
    """

    uid: str
    pod: str
    #: None for the pod as a whole.
    container: str | None
    #: A `Rule`, or one of the rules of a resource manager.
    rule: str
    #: One line, as is `remedy`.
    message: str
    remedy: str

    @classmethod
    def of(
        cls,
        allocation: PodAllocation,
        rule: str,
        message: str,
        remedy: str = ADMIT_AGAIN,
        container: str | None = None,
    ) -> Self:
        """Return a violation by an allocation."""
        return cls(allocation.uid, full_name(allocation), container, rule, message, remedy)

    def __str__(self) -> str:
        where = "" if self.container is None else f", container {self.container}"
        return f"pod {self.pod}{where}: {self.message} ({self.rule}); {self.remedy}"
