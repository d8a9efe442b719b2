"""When wider CPUs are right on an uneven host: no CPU of theirs is beside a busy one needlessly."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.managers.cpu.topology import CpuTopology
    from sysfs.mask import Mask


def whole_cores_instead(topology: CpuTopology, free: Mask, ours: Mask, theirs: Mask) -> bool:
    """Return whether `theirs` has CPUs beside busy ones for no reason, and `ours` has not.

    There is a reason where no core would serve instead of these CPUs: one that is free as a whole,
    is not taken, and has no more CPUs than they are.
    """
    return _needless(topology, free, theirs) and not _needless(topology, free, ours)


def _needless(topology: CpuTopology, free: Mask, taken: Mask) -> bool:
    beside_busy = sum(
        (core.cpus & taken.bits).bit_count() for core in topology.cores if core.cpus & ~free.bits
    )
    return any(
        core.size <= beside_busy
        for core in topology.cores
        if not core.cpus & ~free.bits and not core.cpus & taken.bits
    )
