"""The arguments with which a tool starts a container in its pod's cgroup, with its devices.

In goes a pod and one of its containers, as the API shows them. Out come arguments of `podman run`,
`docker run`, `nerdctl run`, `ctr run` or `systemd-run`, not quoted. No tool is started or asked for
its version. A device, mount or variable for which a tool has no argument is a `CommandError`.
"""

from __future__ import annotations

import re
import shlex
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from agent.api.documents.pods import ContainerDocument, DeliveryDocument, PodDocument
from agent.cli.errors import CommandError, ExitCode
from agent.managers.allocation import Isolation
from agent.pods.model import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.managers.delivery import DeviceNode

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


def start_arguments(tool: Tool, pod: PodDocument, container: ContainerDocument) -> list[str]:
    """Return the arguments with which a tool starts a container.

    Raises `CommandError` where the pod has no cgroup yet, and for what the tool cannot give.
    """
    if not pod.kernel:
        raise CommandError(
            f"the cgroup of pod {pod.uid} was not found; see 'numawarden check --cgroups'",
            ExitCode.NOT_ENFORCED,
        )
    cgroup = pod.kernel[0].cgroup
    delivery = container.delivery or DeliveryDocument()
    match tool:
        case Tool.PODMAN | Tool.DOCKER | Tool.NERDCTL:
            sets = _cpusets(pod, container, "--cpuset-cpus=", "--cpuset-mems=")
            return [*_engine(tool, cgroup, delivery), *sets]
        case Tool.CONTAINERD:
            # `ctr run` of containerd 1.7 has no option for sets: the agent sets them later.
            return [*_ctr(cgroup, pod.uid, container.name, delivery)]
        case Tool.SYSTEMD_RUN:
            unit = f"{pod.uid}-{container.name}"
            names = ("--property=AllowedCPUs=", "--property=AllowedMemoryNodes=")
            return [*_systemd_run(cgroup, unit, delivery), *_cpusets(pod, container, *names)]


def start_lines(pod: PodDocument) -> Iterator[str]:
    """Yield the podman command for the first container that does not run, and how to get others.

    A pod without a cgroup has no lines, nor has an attached unit.
    """
    waiting = [container for container in pod.containers if not container.kernel]
    if not (pod.kernel and waiting) or pod.unit:
        return
    container = waiting[0]
    has_slice = _slice(pod.kernel[0].cgroup) is not None
    manager = "" if has_slice else " --cgroup-manager=cgroupfs"
    try:
        arguments = shlex.join(start_arguments(Tool.PODMAN, pod, container))
        yield f"start     podman{manager} run --name {container.name} {arguments} IMAGE"
    except CommandError as error:
        yield f"start     {error}"
    option = "" if len(pod.containers) == 1 else " --container NAME"
    tools = "|".join(tool for tool in Tool if has_slice or tool is not Tool.SYSTEMD_RUN)
    yield f"          numawarden show {full_name(pod)}{option}"
    yield f"          --arguments {tools}"


def _cpusets(pod: PodDocument, container: ContainerDocument, cpus: str, mems: str) -> Iterator[str]:
    """Yield the container's CPUs and memory nodes, after the options `cpus` and `mems`.

    Without them a container starts on those of its pod. A pod without exclusive CPUs has no such
    options: its containers inherit the node's pool, and follow when the pool changes.
    """
    if any(other.isolation != Isolation.HOST for other in pod.containers):
        yield f"{cpus}{container.cpus}"
        if container.mems:
            yield f"{mems}{container.mems}"


def _slice(cgroup: str) -> str | None:
    """Return the name of a pod's slice; None for a cgroup that systemd does not manage."""
    name = cgroup.rpartition("/")[2]
    return name if name.endswith(_SLICE) else None


def _engine(tool: Tool, cgroup: str, delivery: DeliveryDocument) -> Iterator[str]:
    """Yield arguments of podman, docker and nerdctl, whose options have the same names.

    Only podman reads CDI files without being configured to.
    """
    yield f"--cgroup-parent={_slice(cgroup) or cgroup}"
    if delivery.cdi_device and tool is Tool.PODMAN:
        yield f"--device={delivery.cdi_device}"
    else:
        yield from _pairs("env", delivery.environment)
        for node in delivery.device_nodes:
            yield _device_node(tool, node)
        for mount in delivery.mounts:
            fields = (f"source={mount.host_path}", f"destination={mount.container_path}")
            read_only = ("readonly",) if mount.read_only else ()
            yield f"--mount={_csv('type=bind', *fields, *read_only)}"
    yield from _outside_cdi_file(delivery)


def _device_node(tool: Tool, node: DeviceNode) -> str:
    paths = (node.host_path, node.container_path)
    if any(":" in path for path in paths):
        raise _not_possible(f"{tool} run", f"the ':' in the device node {node.host_path}")
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
    yield from _outside_cdi_file(delivery)


def _ctr_mount(host_path: str, container_path: str, access: str) -> str:
    paths = (f"src={host_path}", f"dst={container_path}")
    return f"--mount={_csv('type=bind', *paths, f'options=rbind:rprivate:{access}')}"


def _outside_cdi_file(delivery: DeliveryDocument) -> Iterator[str]:
    """Yield the provider's CDI devices and the annotations: no CDI file of ours contains them."""
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
    """Return the paths of a bind mount, escaped.

    A quote is an error: systemd 257 loses it on the way to the process that it starts.
    """
    for path in paths:
        if not {"'", '"'}.isdisjoint(path):
            raise _not_possible("systemd-run", f"the quote in the path {path}")
    return ":".join(_SPECIAL.sub(r"\\\g<0>", path) for path in paths)


def _not_possible(command: str, what: str) -> CommandError:
    return CommandError(f"{command} has no argument for {what}", ExitCode.BAD_INPUT)
