"""Ways to start a pod's containers below the cgroup that the agent made for the pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tests.guest.inside import kernel, oci, workloads

if TYPE_CHECKING:
    from pathlib import Path

    from tests.guest.inside.pods import Example
    from tests.guest.inside.workloads import Workload


class Named(Protocol):
    """A pod, by its name."""

    @property
    def name(self) -> str:
        """The pod's name."""
        ...


class Starter(Protocol):
    """Starts and stops the containers of one pod at a time."""

    #: Whether the agent finds a container by itself: by its cgroup's name, or its runtime's files.
    named: bool

    def open(self, pod: Example, cgroup: kernel.Cgroup) -> None:
        """Prepare the pod, whose cgroup the agent has made."""
        ...

    def start(self, container: str) -> Workload:
        """Start one of its containers."""
        ...

    def close(self) -> None:
        """Stop every container of the pod."""
        ...


class SystemdRun:
    """Transient services below the pod's slice, named after pod and container."""

    named = True

    def __init__(self) -> None:
        self._slice = self._pod = ""
        self._units: list[str] = []

    def open(self, pod: Named, cgroup: kernel.Cgroup) -> None:
        self._slice, self._pod = cgroup.path.name, pod.name

    def start(self, container: str) -> Workload:
        unit = f"{self._pod}-{container}"
        self._units.append(unit)
        return workloads.systemd_run(unit, self._slice)

    def stop(self, container: str) -> None:
        """Stop one of the pod's containers, as an init container ends."""
        unit = f"{self._pod}-{container}"
        self._units.remove(unit)
        workloads.stop_unit(unit)

    def close(self) -> None:
        if self._units:
            workloads.stop_unit(*self._units)
        self._units.clear()


class Podman:
    """Podman's containers below the pod's slice or path, from a plain root file system."""

    named = False

    def __init__(self, root: Path, driver: str = "systemd") -> None:
        self._root = root if root.exists() else oci.write_root(root)
        self._driver = driver
        self._parent = self._pod = ""
        self._names: list[str] = []

    def open(self, pod: Example, cgroup: kernel.Cgroup) -> None:
        systemd = self._driver == "systemd"
        below = cgroup.path.relative_to(kernel.CGROUPS)
        self._parent = cgroup.path.name if systemd else f"/{below}"
        self._pod = pod.name

    def start(self, container: str) -> Workload:
        name = f"{self._pod}-{container}"
        self._names.append(name)
        return workloads.podman_run(name, self._parent, self._driver, self._root)

    def close(self) -> None:
        if self._names:
            workloads.podman_remove(*self._names)
        self._names.clear()
