"""The kernel: whether huge pages count as memory, and its own work that stays on exclusive CPUs.

The values are those that profiles of tuned for isolated CPUs set, and the agent does not
(`cpu-partitioning`, `network-latency`, `realtime`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent.text import printable
from agent.tools.doctor.facts import HostCheck, Verdict
from cgroupfs.tree import huge_pages_count

if TYPE_CHECKING:
    from agent.tools.doctor.facts import KernelFacts

#: What is read of the kernel's own work, with the name that says where it is set.
WORK: Final = {
    "vm.stat_interval": "/proc/sys/vm/stat_interval",
    "kernel.timer_migration": "/proc/sys/kernel/timer_migration",
    "kernel.sched_rt_runtime_us": "/proc/sys/kernel/sched_rt_runtime_us",
    "machinecheck ignore_ce": "/sys/devices/system/machinecheck/machinecheck0/ignore_ce",
}
#: Of the kernel's command line (kernel-parameters.txt).
_OPTIONS: Final = ("nohz_full", "rcu_nocbs")
#: Of a value that is shown, in characters.
_LONGEST: Final = 60
_POOL: Final = re.compile(r"(?m)^Hugetlb: +([0-9]+) kB$", re.ASCII)


def huge_page_check(kernel: KernelFacts) -> HostCheck:
    """Return whether a kubelet's limits of memory leave room for the huge pages of its pods.

    It sizes memory.max without them, of pods and through the runtime of containers.
    """
    check = "huge pages"
    if not huge_pages_count(kernel.mounts.text or ""):
        return HostCheck(check, Verdict.OK, "they do not count as memory")
    found = f"they count as memory (memory_hugetlb_accounting in {kernel.mounts.path})"
    pool = _POOL.search(kernel.meminfo.text or "")
    if pool is not None and not int(pool[1]):
        return HostCheck(check, Verdict.OK, f"{found}; the host has none")
    found += ", and the kubelet's limits of memory leave them out: a process that touches one "
    found += "beyond memory.max neither runs on nor is killed"
    change = "add its huge pages to the memory that a container with huge pages requests"
    return HostCheck(check, Verdict.WARNING, found, change)


def work_check(kernel: KernelFacts) -> HostCheck:
    """Return what the kernel does on every CPU, exclusive ones too."""
    said = [
        f"{name} {printable((file.text or '').strip(), _LONGEST) or file.problem or 'absent'}"
        for name, file in zip(WORK, kernel.work, strict=True)
    ]
    words = (kernel.command_line.text or "").split()
    options = dict(word.split("=", 1) for word in words if "=" in word)
    said += [f"{name}={printable(options.get(name, ''), _LONGEST)}" for name in _OPTIONS]
    said += [f"{printable(name)} {queues} queues" for name, queues in kernel.queues.items()]
    found = f"{', '.join(said)} (docs/isolation.md has what each does)"
    return HostCheck("kernel's own work", Verdict.OK, found)
