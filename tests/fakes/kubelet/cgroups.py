"""The cgroups that the kubelet makes itself: slices over D-Bus, the pod's before its sandbox.

As a kubelet with its managers off does: `kubepods.slice` gets all CPUs of the host at each start,
pods get weight, quota and memory, and no slice below `kubepods.slice` ever gets a cpuset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cgroupfs import apply as controllers
from cgroupfs.tree import join
from systemd import bus as slices
from systemd.units import Property, allowed_cpus, cpu_quota, cpu_weight, memory_max, slice_path
from tests.fakes.kubelet.resources import qos_class, shape_of_pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from cgroupfs.tree import CgroupTree
    from sysfs.mask import Mask
    from systemd.bus import Systemd

TOP: Final = "kubepods.slice"
QOS: Final = {
    "Guaranteed": TOP,
    "Burstable": "kubepods-burstable.slice",
    "BestEffort": "kubepods-besteffort.slice",
}
#: What libcontainer passes on at every level above a cgroup that it makes.
CONTROLLERS: Final = ("cpuset", "cpu", "memory", "pids")
_LEAST_WEIGHT: Final = 1
_ACCOUNTING: Final = tuple(
    Property(f"{name}Accounting", "b", value=True) for name in ("CPU", "Memory", "Tasks")
)


class PodCgroups:
    """The kubelet's slices on a cgroup tree, through a systemd."""

    def __init__(self, systemd: Systemd, tree: CgroupTree, cpus: Mask) -> None:
        self._systemd = systemd
        self._tree = tree
        self._cpus = cpus

    def start(self) -> None:
        """Make `kubepods.slice` and those of the QoS classes, or write them again."""
        self._make(TOP, (allowed_cpus(self._cpus),))
        for name in QOS.values():
            if name != TOP:
                self._make(name, (cpu_weight(_LEAST_WEIGHT),))

    def ensure(self, uid: str, spec: Mapping[str, Any]) -> bool:
        """Make a pod's slice unless it runs; return whether it was made."""
        name = slice_of(uid, spec)
        if self._systemd.active_state(name).running:
            return False
        self._make(name, _properties(spec))
        return True

    def resize(self, uid: str, spec: Mapping[str, Any]) -> bool:
        """Give a pod's slice other weight, quota and memory; return whether it runs."""
        return slices.update(self._systemd, slice_of(uid, spec), _properties(spec))

    def weigh(self, specs: Iterable[Mapping[str, Any]]) -> None:
        """Give the Burstable pods together the weight of their requests."""
        shapes = [shape_of_pod(spec) for spec in specs if qos_class(spec) == "Burstable"]
        weight = max(_LEAST_WEIGHT, sum(shape.weight for shape in shapes))
        slices.update(self._systemd, QOS["Burstable"], (cpu_weight(min(10_000, weight)),))

    def remove(self, uid: str, spec: Mapping[str, Any]) -> bool:
        """Kill what still runs in a pod's slice, and stop the slice; return whether it ran."""
        return self._removed(slice_of(uid, spec))

    def _removed(self, name: str) -> bool:
        if self._has_processes(slice_path(name)):
            self._tree.write(slice_path(name), "cgroup.kill", "1")
        return slices.stop(self._systemd, name)

    def remove_orphan(self, uid: str) -> bool:
        """Do the same for a pod whose specification is not known."""
        names = [_slice_below(above, uid) for above in QOS.values()]
        return any(self._removed(name) for name in names if self._tree.exists(slice_path(name)))

    def _make(self, name: str, properties: Sequence[Property]) -> None:
        slices.ensure(self._systemd, name, (*_ACCOUNTING, *properties), about="libcontainer")
        above = slice_path(name).rpartition("/")[0]
        controllers.enable(self._tree, above, CONTROLLERS)

    def _has_processes(self, path: str) -> bool:
        if not self._tree.exists(path):
            return False
        below = (join(path, child) for child in self._tree.children(path))
        return bool(self._tree.procs(path)) or any(map(self._has_processes, below))


def slice_of(uid: str, spec: Mapping[str, Any]) -> str:
    return _slice_below(QOS[qos_class(spec)], uid)


def _slice_below(above: str, uid: str) -> str:
    return f"{above.removesuffix('.slice')}-pod{uid.replace('-', '_')}.slice"


def parent_of(uid: str, spec: Mapping[str, Any]) -> str:
    return f"/{slice_path(slice_of(uid, spec))}"


def _properties(spec: Mapping[str, Any]) -> tuple[Property, ...]:
    shape = shape_of_pod(spec)
    quota, memory = cpu_quota(shape.quota_us), memory_max(shape.memory)
    return (cpu_weight(shape.weight), *quota, memory)
