"""Violations: what is wrong with an allocation under the current policy and on the present host.

Each resource manager finds the violations of its resource; `status` shows them as conditions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from agent.pods.model import full_name

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation

#: The remedy of a violation that only a new decision ends.
ADMIT_AGAIN: Final = "remove the pod and admit it again"


class Rule(StrEnum):
    """What is violated: a key of the configuration, or a fact of the host."""

    CPU_ALLOCATED_TWICE = "CPU allocated twice"
    CPU_MISSING = "CPU missing"
    CPU_OFFLINE = "CPU offline"
    CPU_WITHHELD = "CPU withheld"
    CPU_POLICY = "cpuManagerPolicy"
    RESERVED_CPUS = "reservedSystemCPUs"
    FULL_PCPUS_ONLY = "full-pcpus-only"
    IDLE_SIBLINGS = "isolation.smt"
    SHARED_POOL = "shared pool"
    POOLS = "agent.pools"
    MEMORY_POLICY = "memoryManagerPolicy"
    MEMORY_NODE = "memory node missing"
    MEMORY_TYPE = "memory type missing"
    MEMORY_CLASS = "isolation.memory"
    MEMORY_CAPACITY = "memory capacity"
    DEVICE_ALLOCATED_TWICE = "device allocated twice"
    DEVICE_MISSING = "device missing"
    DEVICE_UNHEALTHY = "device unhealthy"
    POD_BUDGET = "pod-level budget"
    TOPOLOGY_POLICY = "topologyManagerPolicy"


class Violation(Struct, frozen=True):
    """One thing that is wrong with an allocation: the current policy would not make it."""

    uid: str
    #: The pod's namespace/name.
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
        """Return a violation of an allocation, of a container or of the pod as a whole."""
        return cls(allocation.uid, full_name(allocation), container, rule, message, remedy)

    def __str__(self) -> str:
        where = "" if self.container is None else f", container {self.container}"
        return f"pod {self.pod}{where}: {self.message} ({self.rule}); {self.remedy}"
