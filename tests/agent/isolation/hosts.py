"""Hosts of eight CPUs whose settings are files, and places that fail or die on request."""

from __future__ import annotations

import errno
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from agent.config.isolation import IsolationConfig
from agent.isolation.host import HostIsolation
from agent.isolation.originals import Originals
from agent.isolation.places import HostPlaces
from agent.managers.policy import IsolationMode
from agent.pods.model import INTERRUPTS, POWER
from tests.agent.reconcile.pods import exclusive, pod
from tests.fakes.kernel import Died

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.managers.allocation import PodAllocation
    from cgroupfs.tree import CgroupTree
    from sysfs.mask import Mask
    from systemd.bus import Systemd

ALWAYS: Final = IsolationConfig(interrupts=IsolationMode.ALWAYS)
BOOT: Final = "3c5a7f2e"
QUEUES: Final = "sys/class/net/eth0/queues"
#: What a host shows; a machine with one network card and one card that manages its interrupts.
FILES: Final = {
    "sys/devices/system/cpu/online": "0-7\n",
    "sys/devices/system/cpu/possible": "0-7\n",
    "proc/irq/default_smp_affinity": "ff\n",
    "proc/irq/5/smp_affinity_list": "0-7\n",
    "proc/irq/6/smp_affinity_list": "3\n",
    "proc/irq/7/smp_affinity_list": "0-1\n",
    "sys/devices/virtual/workqueue/cpumask": "ff\n",
    "proc/sys/kernel/watchdog_cpumask": "0-7\n",
    f"{QUEUES}/rx-0/rps_cpus": "0\n",
    f"{QUEUES}/tx-0/xps_cpus": "0c\n",
    "proc/sys/net/core/rps_default_mask": "ff\n",
}


def asking(cpus: str, uid: str = "a", **isolation: str) -> PodAllocation:
    """Return a pod with exclusive CPUs that asks for items of isolation."""
    found = pod(exclusive("main", cpus), uid=uid * 8)
    return replace(found, isolation=MappingProxyType(isolation))


def quiet(cpus: str, uid: str = "a") -> PodAllocation:
    return asking(cpus, uid, **{INTERRUPTS: "off"})


def powered(cpus: str, name: str, uid: str = "a") -> PodAllocation:
    return asking(cpus, uid, **{POWER: name})


class FaultyPlaces(HostPlaces):
    """Places that ask before each write; `affinities` are the CPUs of threads by id."""

    def __init__(
        self,
        root: Path,
        fault: Callable[[str], None] = lambda _: None,
        tree: CgroupTree | None = None,
        systemd: Systemd | None = None,
    ) -> None:
        self.affinities: dict[int, set[int]] = {}
        super().__init__(root, tree, systemd, (self.affinities.__getitem__, self._set))
        self.fault = fault
        self.writes: list[str] = []

    def _set(self, thread: int, cpus: Mask) -> None:
        self.affinities[thread] = set(cpus)

    def write(self, place: str, text: str) -> None:
        self.fault(place)
        self.writes.append(place)
        super().write(place, text)


class Host:
    """A root with files, a state directory, and agents that come and go on it."""

    def __init__(self, directory: Path, config: IsolationConfig = ALWAYS) -> None:
        self.root, self.state, self.config = directory / "root", directory / "state", config
        self.state.mkdir(parents=True, exist_ok=True)
        self.fault: Callable[[str], None] = lambda _: None
        for name, text in FILES.items():
            self.put(name, text)

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def shows(self, name: str) -> str:
        # The kernel ends what it shows with a new line, whether that was written or not.
        return (self.root / name).read_text().strip() + "\n"

    def all(self) -> dict[str, str]:
        return {name: self.shows(name) for name in FILES}

    def start(self, boot: str = BOOT) -> tuple[HostIsolation, FaultyPlaces]:
        """Return a new agent's settings, and the places that they are in."""
        places = FaultyPlaces(self.root, self._before)
        originals = Originals(self.state, boot)
        return HostIsolation(self.config, places, originals, units=False), places

    def _before(self, place: str) -> None:
        self.fault(place)

    def saved(self) -> dict[str, str]:
        return Originals(self.state, BOOT).load()


def reject(name: str, code: int) -> Callable[[str], None]:
    """Return a fault: writes of one place are rejected with an errno."""

    def fault(place: str) -> None:
        if place == name:
            raise OSError(code, os.strerror(code), place)

    return fault


def reject_once(name: str) -> Callable[[str], None]:
    """Return a fault: the first write of one place is rejected."""
    rejected = False

    def fault(place: str) -> None:
        nonlocal rejected
        if place == name and not rejected:
            rejected = True
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), place)

    return fault


def die_before(number: int) -> Callable[[str], None]:
    """Return a fault: the process is gone before the nth write (from 1)."""
    done = 0

    def fault(place: str) -> None:
        nonlocal done
        done += 1
        if done >= number:
            raise Died(place)

    return fault
