"""What a container gets with its devices: as text, and as arguments that start it with them."""

from __future__ import annotations

import re
import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from agent.api.delivery import DeliveryDocument
from agent.cli.errors import CommandError, ExitCode
from agent.managers.allocations.allocation import Isolation
from agent.pods.identity import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.api.documents import ContainerDocument, PodDocument
    from agent.managers.allocations.delivery import DeviceNode, Mount

_SLICE: Final = ".slice"
#: What systemd accepts as the name of a variable (systemd.exec(5), Environment=).
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
#: What ends a path in a property of systemd, or begins something else (systemd.syntax(7)).
_SPECIAL: Final = re.compile(r"[ :\\]")


class Tool(StrEnum):
    """A command that starts a container or a process."""

    PODMAN = "podman"
    SYSTEMD_RUN = "systemd-run"
    CONTAINERD = "containerd"
    DOCKER = "docker"
    NERDCTL = "nerdctl"


def short_lines(delivery: DeliveryDocument | None) -> Iterator[str]:
    """Yield what is needed to start a container: the name of its device, or what it consists of."""
    if delivery is None:
        return
    if delivery.cdi_device:
        yield f"CDI: {delivery.cdi_device}"
    else:
        counts = (
            (len(delivery.environment), "environment variables"),
            (len(delivery.mounts), "mounts"),
            (len(delivery.device_nodes), "device nodes"),
        )
        given = ", ".join(f"{what}: {count}" for count, what in counts if count)
        if given:
            yield given
    if delivery.cdi_devices:
        yield f"CDI of the provider: {', '.join(delivery.cdi_devices)}"
    if delivery.pci_addresses:
        yield f"PCI: {', '.join(delivery.pci_addresses)}"


def long_lines(delivery: DeliveryDocument | None) -> Iterator[str]:
    """Yield everything that a container gets with its devices, under labels of nine letters."""
    if delivery is None:
        return
    if delivery.cdi_device:
        yield f"CDI       {delivery.cdi_device}"
    for name in delivery.cdi_devices:
        yield f"CDI       {name} (of the provider)"
    for address in delivery.pci_addresses:
        yield f"PCI       {address}"
    for name, value in delivery.environment.items():
        yield f"variable  {name}={value}"
    for node in delivery.device_nodes:
        yield f"node      {_at(node)} ({node.permissions})"
    for mount in delivery.mounts:
        yield f"mount     {_at(mount)} ({'read-only' if mount.read_only else 'read-write'})"
    for name, value in delivery.annotations.items():
        yield f"annotated {name}={value}"


def _at(given: DeviceNode | Mount) -> str:
    if given.host_path == given.container_path:
        return given.container_path
    return f"{given.container_path} from {given.host_path}"


def arguments(tool: Tool, pod: PodDocument, container: ContainerDocument) -> list[str]:
    """Return the arguments that start a container below its pod's cgroup with its devices.

    They belong to `podman run`, `systemd-run`, `ctr run`, `docker run` and `nerdctl run`. Raises
    `CommandError` where the pod has no cgroup yet, and for what the tool cannot give.
    """
    if not pod.kernel:
        raise CommandError(
            f"the cgroup of pod {pod.uid} was not found; see 'numawarden verify'",
            ExitCode.NOT_ENFORCED,
        )
    delivery = container.delivery or DeliveryDocument()
    cgroup = pod.kernel[0].cgroup
    match tool:
        case Tool.PODMAN:
            return [*_podman(cgroup, delivery), *_own_sets(container)]
        case Tool.SYSTEMD_RUN:
            unit = f"{pod.uid}-{container.name}"
            return [*_systemd_run(cgroup, unit, delivery), *_properties(container)]
        case Tool.CONTAINERD:
            # `ctr run` of containerd 1.7 has no option for sets: the agent sets them later.
            return [*_ctr(cgroup, pod.uid, container.name, delivery)]
        case Tool.DOCKER | Tool.NERDCTL:
            return [*_docker(tool, cgroup, delivery), *_own_sets(container)]


def start_lines(pod: PodDocument) -> Iterator[str]:
    """Yield how the first container that was not started yet is started, and how all others are.

    The command line is podman's. A pod without a cgroup, and a unit that is attached, have none.
    """
    waiting = [each for each in pod.containers if not each.kernel]
    if not (pod.kernel and waiting) or pod.unit:
        return
    first, asked = waiting[0], f"numawarden show {full_name(pod)}"
    manager = "" if _slice(pod.kernel[0].cgroup) else " --cgroup-manager=cgroupfs"
    try:
        given = shlex.join(arguments(Tool.PODMAN, pod, first))
        yield f"start     podman{manager} run --name {first.name} {given} IMAGE"
    except CommandError as error:
        yield f"start     {error}"
    which = "" if len(pod.containers) == 1 else " --container NAME"
    tools = "|".join(tool for tool in Tool if not (manager and tool is Tool.SYSTEMD_RUN))
    yield f"          {asked}{which}"
    yield f"          --arguments {tools}"


def _own_sets(container: ContainerDocument) -> Iterator[str]:
    """Yield the container's own CPUs and memory nodes: without, it begins on those of its pod.

    What shares the node's pool inherits that pool, also when it changes.
    """
    if container.isolation != Isolation.HOST:
        yield f"--cpuset-cpus={container.cpus}"
        if container.mems:
            yield f"--cpuset-mems={container.mems}"


def _properties(container: ContainerDocument) -> Iterator[str]:
    names = {"--cpuset-cpus": "AllowedCPUs", "--cpuset-mems": "AllowedMemoryNodes"}
    for option in _own_sets(container):
        name, _, value = option.partition("=")
        yield f"--property={names[name]}={value}"


def _slice(cgroup: str) -> str | None:
    """Return the name of a pod's slice, None for a cgroup that is not of systemd."""
    name = cgroup.rpartition("/")[2]
    return name if name.endswith(_SLICE) else None


def _podman(cgroup: str, delivery: DeliveryDocument) -> Iterator[str]:
    yield f"--cgroup-parent={_slice(cgroup) or cgroup}"
    if delivery.cdi_device:
        yield f"--device={delivery.cdi_device}"
    else:
        yield from _pairs("env", delivery.environment)
        for node in delivery.device_nodes:
            yield _device_node("podman run", node)
        for mount in delivery.mounts:
            read_only = ("ro",) if mount.read_only else ()
            paths = (f"source={mount.host_path}", f"destination={mount.container_path}")
            yield f"--mount={_csv('type=bind', *paths, *read_only)}"
    yield from _given_beside(delivery)


def _docker(tool: Tool, cgroup: str, delivery: DeliveryDocument) -> Iterator[str]:
    """Yield arguments of docker and nerdctl, which read CDI files only where that is turned on."""
    yield f"--cgroup-parent={_slice(cgroup) or cgroup}"
    yield from _pairs("env", delivery.environment)
    for node in delivery.device_nodes:
        yield _device_node(f"{tool} run", node)
    for mount in delivery.mounts:
        paths = (f"source={mount.host_path}", f"destination={mount.container_path}")
        yield f"--mount={_csv('type=bind', *paths, *(('readonly',) if mount.read_only else ()))}"
    yield from _given_beside(delivery)


def _device_node(command: str, node: DeviceNode) -> str:
    paths = (node.host_path, node.container_path)
    if any(":" in path for path in paths):
        raise _not_possible(command, f"the ':' in the device node {node.host_path}")
    return f"--device={':'.join(paths)}:{node.permissions}"


def _ctr(cgroup: str, uid: str, container: str, delivery: DeliveryDocument) -> Iterator[str]:
    """Yield arguments of ctr, which reads no CDI files before containerd 2.0."""
    pod_slice = _slice(cgroup)
    if pod_slice is None:
        yield f"--cgroup={cgroup}/{container}"
    else:
        yield "--runc-systemd-cgroup"
        yield f"--cgroup={pod_slice}:{uid}:{container}"
    yield from _pairs("env", delivery.environment)
    for node in delivery.device_nodes:
        yield f"--device={node.host_path}"
        if node.container_path != node.host_path:
            yield _ctr_mount(node.host_path, node.container_path, "rw")
    for mount in delivery.mounts:
        yield _ctr_mount(mount.host_path, mount.container_path, "ro" if mount.read_only else "rw")
    yield from _given_beside(delivery)


def _ctr_mount(host_path: str, container_path: str, access: str) -> str:
    paths = (f"src={host_path}", f"dst={container_path}")
    return f"--mount={_csv('type=bind', *paths, f'options=rbind:rprivate:{access}')}"


def _given_beside(delivery: DeliveryDocument) -> Iterator[str]:
    """Yield what a CDI file cannot have."""
    for name in delivery.cdi_devices:
        yield f"--device={name}"
    yield from _pairs("annotation", delivery.annotations)


def _pairs(option: str, pairs: Mapping[str, str]) -> Iterator[str]:
    return (f"--{option}={name}={value}" for name, value in pairs.items())


def _csv(*fields: str) -> str:
    """Return fields as one record of comma-separated values (RFC 4180)."""
    quoted = (
        '"' + field.replace('"', '""') + '"' if "," in field or '"' in field else field
        for field in fields
    )
    return ",".join(quoted)


def _systemd_run(cgroup: str, unit: str, delivery: DeliveryDocument) -> Iterator[str]:
    pod_slice = _slice(cgroup)
    if pod_slice is None:
        raise _not_possible("systemd-run", f"{cgroup}, which is not a slice (cgroupDriver)")
    if delivery.cdi_devices:
        raise _not_possible("systemd-run", f"the CDI device {delivery.cdi_devices[0]}")
    yield f"--slice={pod_slice}"
    yield f"--unit={unit}"
    for name, value in delivery.environment.items():
        if not _VARIABLE.fullmatch(name):
            raise _not_possible("systemd-run", f"the variable {name}")
        yield f"--setenv={name}={value}"
    for node in delivery.device_nodes:
        if " " in node.host_path:
            raise _not_possible("systemd-run", f"the ' ' in the device node {node.host_path}")
        yield f"--property=DeviceAllow={node.host_path} {node.permissions}"
        if node.container_path != node.host_path:
            yield f"--property=BindPaths={_bound(node.host_path, node.container_path)}"
    for mount in delivery.mounts:
        bind = "BindReadOnlyPaths" if mount.read_only else "BindPaths"
        yield f"--property={bind}={_bound(mount.host_path, mount.container_path)}"


def _bound(*paths: str) -> str:
    """Return paths of a bind mount; systemd 257 loses quotes on the way to what it starts."""
    for path in paths:
        if not {"'", '"'}.isdisjoint(path):
            raise _not_possible("systemd-run", f"the quote in the path {path}")
    return ":".join(_SPECIAL.sub(r"\\\g<0>", path) for path in paths)


def _not_possible(command: str, what: str) -> CommandError:
    return CommandError(f"{command} has no argument for {what}", ExitCode.BAD_INPUT)
