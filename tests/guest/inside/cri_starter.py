"""A pod's containers started as a kubelet would, apart: a gRPC library takes seconds to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.guest.inside import containerd, kernel, workloads
from tests.guest.inside.cri import Runtime
from tests.guest.inside.workloads import Workload

if TYPE_CHECKING:
    from tests.guest.inside.cri import Sandbox
    from tests.guest.inside.pods import Example


class Cri:
    """Containers of a runtime behind its CRI socket, as a kubelet would start them."""

    named = True

    def __init__(self, driver: str, handler: str = "") -> None:
        self.driver = driver
        self.handler = handler
        self._runtime = Runtime()
        self._sandbox: Sandbox | None = None
        self.ids: dict[str, str] = {}

    def update(self, container: str, **resources: int | str) -> None:
        """Update a container's resources, as a kubelet's resize does."""
        self._runtime.update(self.ids[container], **resources)

    def open(self, pod: Example, cgroup: kernel.Cgroup) -> None:
        below = cgroup.path.relative_to(kernel.CGROUPS)
        parent = cgroup.path.name if self.driver == "systemd" else f"/{below}"
        self._sandbox = self._runtime.run_sandbox(pod.name, pod.uid, parent, self.handler)

    def start(self, container: str) -> Workload:
        assert self._sandbox is not None
        shell = ("/bin/sh", "-c", workloads.SCRIPT)
        started = self._runtime.start_container(
            self._sandbox, container, containerd.IMAGE, shell, cpu_shares=1024
        )
        self.ids[container] = started
        cgroup = kernel.cgroup_of(self._runtime.pid_of(started))
        return Workload.found(container, cgroup)

    def close(self) -> None:
        if self._sandbox:
            self._runtime.remove_sandbox(self._sandbox)
        self._sandbox = None
        self.ids.clear()
