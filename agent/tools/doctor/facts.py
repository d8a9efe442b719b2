"""What was read of a host: plain values, from which every check follows; and what a check says.

Paths are those of the host, whatever directory it was mounted at. A fact that could not be read
says so itself (`problem`), so that a check can be `unknown` and name the reason.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.versions import ReportedVersion


class HostFile(Struct, frozen=True):
    """A file; `text` None: there is none, or it cannot be read, and then `problem` says why."""

    path: str
    text: str | None = None
    problem: str = ""


class HostPath(Struct, frozen=True):
    """Whether there is a file of the expected kind; `problem` says why that is not known."""

    path: str
    there: bool = False
    problem: str = ""


class HostListing(Struct, frozen=True):
    """The names in a directory; `problem` says why they are not known."""

    path: str
    names: tuple[str, ...] = ()
    problem: str = ""


class HostProcess(Struct, frozen=True):
    """A process of root's: its id, the name that the kernel has for it, and its command line.

    The command line is left out of a program that runs a kubelet in its own process.
    """

    pid: int
    name: str
    arguments: tuple[str, ...] = ()
    program: str = ""


class KubeletFiles(Struct, frozen=True):
    """What the kubelet's files and its process, which may be another program's, show.

    `environment` are files of its unit that hold flags. They are read where no kubelet runs, for
    then its arguments are known from nowhere else. `drop_ins` are in the order of their names, the
    last of them counts. `socket` is one that is served though no process is known as a kubelet's.
    """

    directory: str
    config: HostFile
    cpu_state: HostFile
    memory_state: HostFile
    device_checkpoint: HostFile
    pods_api: HostPath
    plugin_directory: HostPath
    process: HostProcess | None = None
    drop_ins: tuple[HostFile, ...] = ()
    environment: tuple[HostFile, ...] = ()
    socket: str = ""


class CgroupControllers(Struct, frozen=True):
    """The controllers that are available in a cgroup, by its path below the mount, "" for the root.

    `controllers` None: there is no such cgroup, or it cannot be read (`problem`).
    """

    path: str
    controllers: frozenset[str] | None = None
    problem: str = ""


class CgroupFacts(Struct, frozen=True):
    """The cgroups of pods at a mount, for both drivers: the roots of each, and its QoS cgroups."""

    mount: str
    root: CgroupControllers
    systemd: tuple[CgroupControllers, ...] = ()
    cgroupfs: tuple[CgroupControllers, ...] = ()


class AskedWay(Struct, frozen=True):
    """One way to the kubelet's pods that was asked: how many it lists, or why it does not."""

    way: str
    pods: int = 0
    problem: str = ""


class RuntimeFacts(Struct, frozen=True):
    """What containerd and CRI-O show of themselves.

    `containerd` and `crio` are the files of their configurations, of which the last counts.
    `packages` are versions by the package's name. `plugins` is the directory from which
    runtimes start NRI plugins. `reported` None: the runtime was not asked.
    """

    containerd_socket: HostPath
    crio_socket: HostPath
    nri_socket: HostPath | None
    plugins: HostListing
    containerd: tuple[HostFile, ...] = ()
    crio: tuple[HostFile, ...] = ()
    packages: Mapping[str, str] = {}
    reported: ReportedVersion | None = None


class KernelFacts(Struct, frozen=True):
    """The kernel's mounts, memory, command line, and what it does on every CPU.

    `work` are files in the order of `agent.tools.doctor.kernel.WORK`, `queues` the receive queues
    of network cards by the interface's name.
    """

    mounts: HostFile
    meminfo: HostFile
    command_line: HostFile
    work: tuple[HostFile, ...]
    queues: Mapping[str, int] = {}


class GatheredFacts(Struct, frozen=True):
    """Everything that was read; `runtime` and `kernel` None: these were not looked at.

    `others` are running managers of CPUs. `isolated` and `online` are the kernel's lists of CPUs,
    `release` is its version.
    `agent_unit` and `kubelet_unit` are the units of systemd with their drop-ins. `asked` are
    ways to the kubelet's pods in the order in which the agent tries them; empty: none was asked.
    `kubelet_version` None: the kubelet's program was not asked.
    """

    kubelet: KubeletFiles
    cgroups: CgroupFacts
    isolated: HostFile
    online: HostFile
    release: HostFile
    tuned: HostFile
    kernel: KernelFacts | None = None
    runtime: RuntimeFacts | None = None
    others: tuple[HostProcess, ...] = ()
    agent_unit: tuple[HostFile, ...] = ()
    kubelet_unit: tuple[HostFile, ...] = ()
    asked: tuple[AskedWay, ...] = ()
    kubelet_version: ReportedVersion | None = None


class Verdict(StrEnum):
    """`ERROR`: the agent must not run like this. `UNKNOWN`: the facts could not be read."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


class HostCheck(Struct, frozen=True):
    """One check: its name, the verdict, what was found and where, and what to change.

    `found` names files and endpoints. `change` is the line to change with its file, or a command,
    and "" where nothing is to be changed.
    """

    check: str
    verdict: Verdict
    found: str
    change: str = ""

    @property
    def line(self) -> str:
        """What was found, and what to change."""
        return f"{self.found}; {self.change}" if self.change else self.found
