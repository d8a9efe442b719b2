"""Documents of a cgroup's observed settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.api.documents import KernelDocument
from cgroupfs.controllers import HUGETLB
from cgroupfs.settings import CPU_MAX, CPU_WEIGHT, MEMORY_MAX

if TYPE_CHECKING:
    from agent.reconcile.report import CgroupReport
    from sysfs.mask import Mask


def kernel_document(report: CgroupReport) -> KernelDocument:
    """Return the files of one cgroup as they were read."""
    cgroup, state = f"/{report.desired.setting.cgroup}", report.state
    if state is None:
        return KernelDocument(cgroup=cgroup)
    return KernelDocument(
        cgroup=cgroup,
        cpus=_text(state.cpus),
        cpus_effective=_text(state.cpus_effective),
        mems=_text(state.mems),
        mems_effective=_text(state.mems_effective),
        cpu_max=state.values.get(CPU_MAX),
        cpu_weight=state.values.get(CPU_WEIGHT),
        memory_max=state.values.get(MEMORY_MAX),
        hugetlb={f: text for f, text in state.values.items() if f.startswith(f"{HUGETLB}.")},
    )


def _text(mask: Mask | None) -> str | None:
    return None if mask is None else str(mask)
