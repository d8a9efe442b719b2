"""How well sets of CPUs lie on the cores of hosts whose cores differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from agent.managers.cpu.topology import CpuTopology


def cores_touched(topology: CpuTopology, cpus: Mask) -> int:
    return sum(1 for core in topology.cores if core.cpus & cpus.bits)


def needlessly_shared(topology: CpuTopology, free: Mask, others: Mask, chosen: Mask) -> Mask:
    """Return the chosen CPUs that have CPUs of `others` on their core for no reason.

    There is one where no core would serve instead: a core all of whose CPUs were `free`, are not
    chosen, and are no more than those that stand beside others (so nothing of it is left over).
    """
    shared = topology.cores_of(others) & chosen
    serves = any(
        not core.cpus & ~free.bits and not core.cpus & chosen.bits and core.size <= len(shared)
        for core in topology.cores
    )
    return shared if serves else EMPTY


def torn(topology: CpuTopology, cpus: Mask) -> int:
    """Return how many of the CPUs are on cores that have others as well."""
    return sum(
        (core.cpus & cpus.bits).bit_count() for core in topology.cores if core.cpus & ~cpus.bits
    )
