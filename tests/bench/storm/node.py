"""`python -m tests.bench.storm.node FOLDER`: an agent beside a kubelet, as a process of its own.

The kernel and systemd are emulated in this process, so that their time is the agent's here; the
kubelet and the runtime in another one ask for their cgroups over a socket. The checkpoint is a real
one in FOLDER, the log a real one on standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from agent.clock import SystemClock
from agent.cluster.plugs import PLUGS
from agent.config.agent import AgentConfig, MetricsConfig
from agent.config.cluster import BesideKubeletConfig
from agent.config.model import CgroupDriver, Config
from agent.managers.policy import CpuManagerPolicy, TopologyManagerPolicy, TopologyManagerScope
from agent.server import log_output as logs
from agent.server.memory import settle_memory
from agent.server.plugs import Fakes
from agent.server.service_manager import ServiceManager
from agent.server.wiring import Wiring
from cgroupfs.emulated.kernel import EmulatedKernel
from sysfs.described import write_tree
from sysfs.mask import Mask
from systemd.units import allowed_cpus
from tests.agent.reconcile.pods import FakeSystemd
from tests.bench import hosts
from tests.fakes.kubelet.cgroups import PodCgroups, parent_of
from tests.fakes.kubelet.memory_runtime import scope_of
from tests.fakes.locked import locked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable

    from agent.server.controller import Controller
    from agent.server.counters import Histogram
    from agent.server.lifecycle import Service
    from sysfs.host import Host
    from systemd.bus import Systemd

#: Where the other process asks for cgroups, where the runtime is, and the seconds of each answer.
ASKED: Final = "cgroups.sock"
RUNTIME: Final = "nri.sock"
KUBELET: Final = "kubelet"
ANSWERED: Final = "answered.json"
_HOST: Final = "2n128c"
#: How long systemd takes to answer, and how much longer for each further unit that is asked about.
BUS_SECONDS: Final = 0.0005
FURTHER_SECONDS: Final = 0.0002


class Changes:
    """Notices new cgroups as inotify does on a kernel (`agent.server.lifecycle.CgroupFollower`)."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def follow(self, cgroups: Iterable[str], renewed: Collection[str] = ()) -> None:
        """Notice all changes; which cgroups are named does not matter."""

    def also(self, cgroups: Iterable[str]) -> None:
        """Notice all changes."""

    def note(self) -> None:
        """Take note of a change."""
        self._changed.set()

    async def changes(self) -> AsyncIterator[None]:
        """Yield whenever something changed."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            yield


class Bus:
    """A systemd that is another process: an answer takes a while, in which others can work."""

    def __init__(self, systemd: FakeSystemd) -> None:
        self._systemd = systemd

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # a method of any kind
        def answered(*args: Any) -> object:  # noqa: ANN401  # of any method
            units = len(args[0]) if name in ("properties_of", "set_properties_of") else 1
            time.sleep(BUS_SECONDS + (units - 1) * FURTHER_SECONDS)
            return getattr(self._systemd, name)(*args)

        return answered


class Node:
    """The kernel and systemd of a node, and what others do to cgroups there."""

    def __init__(self, host: Host, folder: Path) -> None:
        lock = threading.RLock()
        nodes = Mask.from_ids(node.id for node in host.nodes)
        self.kernel = locked(EmulatedKernel(host.online, nodes), lock)
        self.systemd = locked(FakeSystemd(self.kernel), lock)
        self.bus = Bus(self.systemd)
        self.changes = Changes()
        self._cgroups = PodCgroups(self.systemd, self.kernel, host.online)
        self._cgroups.start()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ASKED))
        self._listener.listen()

    def serve(self, note: Callable[[], None]) -> None:
        """Do what the other process asks for, a line each, until it goes."""
        connection, _ = self._listener.accept()
        with self._listener, connection, connection.makefile("rw") as lines:
            for line in lines:
                self._do(json.loads(line))
                note()
                lines.write("\n")
                lines.flush()

    def _do(self, asked: dict[str, Any]) -> None:
        uid, spec = asked["uid"], asked["spec"]
        if "process" not in asked:
            self._cgroups.ensure(uid, spec)
            return
        above = parent_of(uid, spec).lstrip("/")
        unit = scope_of(asked["name"])
        self.systemd.start_scope(above, unit, asked["process"])
        if asked["cpus"]:
            self.systemd.set_properties(unit, (allowed_cpus(Mask.parse(asked["cpus"])),))


def main(folder: Path) -> None:
    """Run the agent until SIGTERM."""
    host = hosts.host(_HOST)
    write_tree(host, folder / "host")
    config = _config(folder)
    node = Node(host, folder)
    logs.configure(config.agent.logging.format, config.agent.logging.level)
    fakes = Fakes(tree=node.kernel, systemd=cast("Systemd", node.bus), live=False, tasks=tuple)
    wiring = Wiring(config, ServiceManager.of(os.environ), SystemClock(), PLUGS, fakes)
    with wiring as service:
        settle_memory()
        answered = asyncio.run(_serve(service, wiring.controller, node))
    (folder / ANSWERED).write_text(json.dumps(answered))


async def _serve(service: Service, controller: Controller, node: Node) -> list[float]:
    """Run the agent, and return the seconds of each answer to CreateContainer."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, service.stop)
    service._inputs = replace(service._inputs, cgroups=node.changes)
    listening = partial(loop.call_soon_threadsafe, node.changes.note)
    threading.Thread(target=node.serve, args=(listening,), daemon=True).start()
    seconds = _recorded(controller.metrics.runtime_request_duration)
    await service.run()
    return seconds


def _recorded(histogram: Histogram) -> list[float]:
    """Return a list of all that is observed of CreateContainer from now on, in seconds."""
    seconds: list[float] = []
    observe = histogram.observe

    def recording(value: float, *labels: str) -> None:
        observe(value, *labels)
        if labels == ("CreateContainer",):
            seconds.append(value)

    histogram.observe = recording  # type: ignore[method-assign]  # buckets are no percentiles
    return seconds


def _config(folder: Path) -> Config:
    beside = BesideKubeletConfig(
        enabled=True, directory=folder / KUBELET, nri_socket=folder / RUNTIME
    )
    (folder / "state").mkdir(mode=0o700)
    agent = AgentConfig(
        state_directory=folder / "state",
        cdi_directory=folder / "cdi",
        socket_path=folder / "agent.sock",
        sysfs_root=folder / "host",
        cgroup_mount=folder / "cgroup",
        metrics=MetricsConfig(port=0),
        kubelet=beside,
    )
    return Config(
        cpu_manager_policy=CpuManagerPolicy.STATIC,
        topology_manager_policy=TopologyManagerPolicy.RESTRICTED,
        topology_manager_scope=TopologyManagerScope.POD,
        reserved_system_cpus=Mask.of(0, 64),
        max_pods=250,
        cgroup_driver=CgroupDriver.SYSTEMD,
        feature_gates=MappingProxyType({"PodLevelResourceManagers": True}),
        agent=agent,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
