"""Whether a request can be served in whole physical cores (`full-pcpus-only`, KEP-2625)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from agent.managers.errors import cpus_text

if TYPE_CHECKING:
    from agent.managers.cpu_topology import CpuTopology
    from sysfs.mask import Mask


class SmtMisalignment(Struct, frozen=True):
    """Why `asked` CPUs cannot be whole cores; `free` are the free CPUs outside reserved cores.

    `threads` is the number of CPUs per core.
    """

    asked: int
    free: int
    threads: int
    message: str


def smt_misalignment(
    topology: CpuTopology, free_physical: Mask, count: int
) -> SmtMisalignment | None:
    """Return why `count` CPUs cannot be whole cores, None when they can.

    `free_physical` are the free CPUs without those of cores that have a reserved thread. The rules
    are the kubelet's (`validateSMTAlignment`): the count is a multiple of the CPUs per core, and so
    many CPUs are free. Where cores differ in size (hybrid cores, offline threads) the kubelet's
    average stands for all of them; whole cores are then preferred, but cannot be promised.
    """
    threads = topology.cpus_per_core
    free = len(free_physical)
    if count % threads:
        message = f"{cpus_text(count)} asked, not a multiple of the {threads} CPUs of a core"
    elif count > free:
        are = "is" if free == 1 else "are"
        message = (
            f"{cpus_text(count)} asked, {free} {are} free in physical cores without reserved CPUs"
        )
    else:
        return None
    return SmtMisalignment(count, free, threads, message)
