"""The file system of a host that is set up well, to be changed by a test."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.config.load import load_config
from agent.tools.doctor.checks import examine
from agent.tools.doctor.facts import AskedWay
from agent.tools.doctor.gathering import gather

if TYPE_CHECKING:
    from pathlib import Path

    from agent.config.model import Config
    from agent.tools.doctor.facts import HostCheck

PID = 815
KUBELET = "/var/lib/kubelet"
PROGRAM = "/usr/bin/kubelet"
CONFIG = f"{KUBELET}/config.yaml"
CPU_STATE = f"{KUBELET}/cpu_manager_state"
MEMORY_STATE = f"{KUBELET}/memory_manager_state"
CONTAINERD = "/etc/containerd/config.toml"
DPKG = "/var/lib/dpkg/status"
UNIT = "/etc/systemd/system/numawarden.service"
KUBEPODS = "/sys/fs/cgroup/kubepods.slice"
AGENT = (
    "cgroupDriver: systemd\ncpuManagerPolicy: static\nreservedSystemCPUs: '0'\n"
    "agent: {kubelet: {enabled: true}}\n"
)
SETTINGS = (
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    "cgroupDriver: systemd\nreservedSystemCPUs: '0'\nfeatureGates: {PodsAPI: true}\n"
)
_VALIDATOR = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\nenable = true\n"
_FILES = {
    CONFIG: SETTINGS,
    CPU_STATE: '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}',
    MEMORY_STATE: '{"policyName":"None","machineState":{},"checksum":4236770233}',
    f"{KUBELET}/device-plugins/kubelet_internal_checkpoint": '{"Data":{"PodDeviceEntries":null,'
    '"RegisteredDevices":{"numawarden.dev/exclusive":["0","1"]}},"Checksum":1}',
    CONTAINERD: f"version = 3\n{_VALIDATOR}",
    DPKG: "Package: base\nStatus: install ok installed\nVersion: 1\n\n"
    "Package: containerd\nStatus: install ok installed\nVersion: 2.3.4~ds1-1\n",
    UNIT: "[Unit]\nBefore=multi-user.target kubelet.service\n",
    "/proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,memory_recursiveprot 0 0\n",
    "/proc/meminfo": "HugePages_Total:       8\nHugetlb:           16384 kB\n",
    "/proc/cmdline": "ro quiet nohz_full=4-15\n",
    "/proc/sys/vm/stat_interval": "1\n",
    "/proc/sys/kernel/timer_migration": "1\n",
    "/proc/sys/kernel/osrelease": "6.12.118+deb13-cloud-amd64\n",
    "/sys/devices/system/cpu/isolated": "\n",
    "/sys/devices/system/cpu/online": "0-15\n",
    "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory\n",
    f"{KUBEPODS}/cgroup.controllers": "cpuset cpu memory\n",
    f"{KUBEPODS}/kubepods-burstable.slice/cgroup.controllers": "cpuset cpu memory\n",
    f"{KUBEPODS}/kubepods-besteffort.slice/cgroup.controllers": "cpuset cpu memory\n",
}
_SOCKETS = (
    f"{KUBELET}/pods-api/pods-api.sock",
    "/run/containerd/containerd.sock",
    "/var/run/nri/nri.sock",
)


class FakeHost:
    """Paths are those of the host; `root` is where its file system stands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.agent = AGENT
        #: What was asked: the Pods API answers as long as it has its socket.
        self.asked: tuple[AskedWay, ...] = (AskedWay("the Pods API", 3),)
        for path, text in _FILES.items():
            self.write(path, text)
        for path in _SOCKETS:
            self.socket(path)
        self.process(PID, "kubelet", "--config", CONFIG)
        self.program("Kubernetes v1.37.2")

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def write(self, path: str, content: str | bytes) -> None:
        file = self.at(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def add(self, path: str, text: str) -> None:
        self.write(path, (self.at(path).read_text() if self.at(path).exists() else "") + text)

    def socket(self, path: str) -> None:
        self.at(path).parent.mkdir(parents=True, exist_ok=True)
        # A socket file without a listener, whose path may be longer than one of a listener.
        os.mknod(self.at(path), stat.S_IFSOCK | 0o600)

    def remove(self, path: str) -> None:
        self.at(path).unlink()

    def process(self, pid: int, name: str, *arguments: str) -> None:
        self.write(f"/proc/{pid}/comm", f"{name[:15]}\n")
        line = "".join(f"{part}\0" for part in (f"/usr/bin/{name}", *arguments))
        self.write(f"/proc/{pid}/cmdline", line)

    def program(self, *prints: str, first: str = "") -> None:
        """Write the kubelet's program, which prints these lines, after doing something else."""
        lines = "".join(f"echo {line!r}\n" for line in prints)
        self.write(PROGRAM, f"#!/bin/sh\n{first}\n{lines}")
        self.at(PROGRAM).chmod(0o755)

    def stop_kubelet(self) -> None:
        self.remove(f"/proc/{PID}/comm")

    def config(self) -> Config:
        return load_config(self.agent.encode(), "config.yaml")

    def examine(self) -> dict[str, HostCheck]:
        """Return what each check says, by its name."""
        config = self.config()
        facts = gather(config, self.root, with_runtime=True)
        facts = replace(facts, asked=self.asked if facts.kubelet.pods_api.there else ())
        found = list(examine(config, facts))
        by_name = {one.check: one for one in found}
        assert len(by_name) == len(found)
        return by_name
