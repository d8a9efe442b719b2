"""Gathers the facts of a host beside whose kubelet the agent is to work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.tools.doctor.checks.exclusive_resource import AGENT_UNIT, KUBELET_UNIT
from agent.tools.doctor.checks.other_managers import CPU_MANAGERS, PLUGIN_DIRECTORY
from agent.tools.doctor.checks.runtime import CONTAINERD_FILE, CRIO_FILE
from agent.tools.doctor.facts import (
    CgroupControllers,
    CgroupFacts,
    GatheredFacts,
    HostFile,
    HostProcess,
    KubeletFiles,
    RuntimeFacts,
)
from agent.tools.doctor.kubelet_settings import flag_of
from agent.tools.doctor.reading import (
    LARGEST_CHECKPOINT,
    directory_at,
    dpkg_versions,
    names_in,
    processes,
    read_file,
    read_files,
    read_unit,
    socket_at,
)
from agent.tools.doctor.runtime_settings import toml_of
from cgroupfs.names import Driver, Layout, Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.config.model import Config

CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
CRIO_SOCKET: Final = "/run/crio/crio.sock"
_KUBELET: Final = "kubelet"
_CPUS: Final = "/sys/devices/system/cpu"
#: Flags of the kubelet's unit; those of the first file count.
_ENVIRONMENT: Final = ("/etc/default/kubelet", "/etc/sysconfig/kubelet")


def gather(config: Config, root: Path = Path("/"), *, with_runtime: bool) -> GatheredFacts:
    """Return the facts; nothing is changed, no process is asked, and no exception is raised.

    `with_runtime` False leaves out container runtimes and devices, which the agent's start does not
    judge.
    """
    found = list(processes(root, (_KUBELET, *CPU_MANAGERS)))
    kubelet = next((one for one in found if one.name == _KUBELET), None)
    return GatheredFacts(
        kubelet=_kubelet(config, root, kubelet),
        cgroups=_cgroups(config, root),
        isolated=read_file(root, f"{_CPUS}/isolated"),
        online=read_file(root, f"{_CPUS}/online"),
        tuned=read_file(root, "/etc/tuned/active_profile"),
        runtime=_runtime(config, root) if with_runtime else None,
        others=tuple(one for one in found if one.name.startswith(CPU_MANAGERS)),
        agent_unit=read_unit(root, AGENT_UNIT),
        kubelet_unit=read_unit(root, KUBELET_UNIT),
    )


def _kubelet(config: Config, root: Path, process: HostProcess | None) -> KubeletFiles:
    directory = config.agent.kubelet.directory
    arguments = () if process is None else process.arguments
    named = config.agent.kubelet.config_file or flag_of(arguments, "config")
    drop_ins = flag_of(arguments, "config-dir")
    environment: tuple[HostFile, ...] = ()
    if process is None:
        files = (*_ENVIRONMENT, directory / "kubeadm-flags.env")
        environment = tuple(read_file(root, file) for file in files)
    return KubeletFiles(
        directory=str(directory),
        config=read_file(root, named or directory / "config.yaml"),
        cpu_state=read_file(root, directory / "cpu_manager_state", LARGEST_CHECKPOINT),
        memory_state=read_file(root, directory / "memory_manager_state", LARGEST_CHECKPOINT),
        allocated_pods=read_file(root, directory / "allocated_pods_state", LARGEST_CHECKPOINT),
        device_checkpoint=read_file(
            root, directory / "device-plugins/kubelet_internal_checkpoint", LARGEST_CHECKPOINT
        ),
        pods_api=socket_at(root, directory / "pods-api/pods-api.sock"),
        plugin_directory=directory_at(root, directory / "device-plugins"),
        process=process,
        drop_ins=read_files(root, f"{drop_ins}/*.conf") if drop_ins else (),
        environment=environment,
    )


def _cgroups(config: Config, root: Path) -> CgroupFacts:
    mount = config.agent.cgroup_mount

    def of(driver: Driver) -> tuple[CgroupControllers, ...]:
        layout = Layout(driver, config.cgroup_root)
        # The cgroup of all pods, in which Guaranteed pods stand, comes first.
        paths = dict.fromkeys((layout.pods(), *map(layout.tier, Tier)))
        return tuple(_controllers(root, mount, path) for path in paths)

    own = _controllers(root, mount, "")
    return CgroupFacts(str(mount), own, of(Driver.SYSTEMD), of(Driver.CGROUPFS))


def _controllers(root: Path, mount: Path, path: str) -> CgroupControllers:
    file = read_file(root, mount / path / "cgroup.controllers")
    words = None if file.text is None else frozenset(file.text.split())
    return CgroupControllers(path, words, file.problem)


def _runtime(config: Config, root: Path) -> RuntimeFacts:
    nri = config.agent.kubelet.nri_socket
    return RuntimeFacts(
        containerd_socket=socket_at(root, CONTAINERD_SOCKET),
        crio_socket=socket_at(root, CRIO_SOCKET),
        nri_socket=None if nri is None else socket_at(root, nri),
        plugins=names_in(root, PLUGIN_DIRECTORY),
        containerd=tuple(_with_imports(root, read_file(root, CONTAINERD_FILE))),
        crio=(read_file(root, CRIO_FILE), *read_files(root, f"{CRIO_FILE}.d/*.conf")),
        packages=dpkg_versions(root, ("containerd", "containerd.io", "cri-o", "kubelet")),
    )


def _with_imports(root: Path, file: HostFile) -> Iterator[HostFile]:
    """Yield containerd's file and those that it imports, which win over it."""
    yield file
    imports = toml_of(file)[0].get("imports")
    if isinstance(imports, list):
        for pattern in imports:
            if isinstance(pattern, str):
                yield from read_files(root, str(Path(CONTAINERD_FILE).parent / pattern))
