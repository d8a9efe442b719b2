"""Whether a request can be served in whole physical cores (`full-pcpus-only`, KEP-2625)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.managers.cpu_whole_cores import whole_cores

if TYPE_CHECKING:
    from agent.managers.cpu_topology import CpuTopology
    from sysfs.mask import Mask


@dataclass(frozen=True, slots=True)
class SmtMisalignment:
    """Why `asked` CPUs cannot be whole cores; `free` are the free CPUs outside reserved cores.

    `threads` are the CPUs of one core, ascending; more than one number where cores differ.
    """

    asked: int
    free: int
    threads: tuple[int, ...]
    message: str
    remedy: str


def smt_misalignment(
    topology: CpuTopology, free_physical: Mask, count: int
) -> SmtMisalignment | None:
    """Return why `count` CPUs cannot be whole cores, None when they can.

    `free_physical` are the free CPUs without those of cores that have a reserved thread. Where all
    cores have the same number of threads the kubelet's two rules hold: the count is a multiple of
    it, and so many CPUs are free. Where they differ (hybrid cores, offline threads) its average
    says nothing, and whole free cores must add up to exactly the count.
    """
    threads = tuple(sorted({core.size for core in topology.cores}))
    free = len(free_physical)
    if len(threads) > 1:
        if whole_cores(topology, free_physical.bits, count) is not None:
            return None
        sizes = " or ".join(map(str, threads))
        return SmtMisalignment(
            count,
            free,
            threads,
            f"{count} CPUs asked, but no free physical cores ({sizes} CPUs each) add up to that",
            f"ask for what whole free cores have; {free} CPUs are free in unreserved cores",
        )
    if count % threads[0]:
        return SmtMisalignment(
            count,
            free,
            threads,
            f"{count} CPUs asked, not a multiple of the {threads[0]} CPUs of a core",
            f"ask for {count - count % threads[0] + threads[0]} CPUs, or turn full-pcpus-only off",
        )
    if count > free:
        return SmtMisalignment(
            count,
            free,
            threads,
            f"{count} CPUs asked, {free} are free in physical cores without reserved CPUs",
            "ask for fewer CPUs, or wait until another pod ends",
        )
    return None
