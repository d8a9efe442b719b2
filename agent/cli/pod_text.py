"""Pods as text for 80 columns, and as arguments that start their containers."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from difflib import unified_diff
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from agent.api.documents import (
    INVALID_MANIFEST,
    RUNS_SHARED,
    AdmissionDocument,
    ContainerDocument,
    DeliveryDocument,
    EnforcementDocument,
    ExplanationDocument,
    FailedPodDocument,
    HintDocument,
    HintTraceDocument,
    KernelDocument,
    MemoryDocument,
    PodDocument,
    PodListDocument,
    RejectionDocument,
)
from agent.cli.common import moment, table, typed_name
from agent.cli.errors import CommandError, ExitCode
from agent.managers.allocation import Isolation
from agent.pods.model import (
    IDLE_SIBLINGS,
    ContainerKind,
    End,
    Quality,
    full_name,
    name_and_uid,
)
from agent.pods.quantity import Quantity
from cgroupfs.settings import MEMBER, PARTITION, row_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.managers.allocation import DeviceNode, Mount
    from agent.managers.violations import Violation

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
            f"the cgroup of pod {pod.uid} was not found; see 'numawarden check --cgroups'",
            ExitCode.NOT_ENFORCED,
        )
    delivery = container.delivery or DeliveryDocument()
    cgroup = pod.kernel[0].cgroup
    match tool:
        case Tool.PODMAN:
            return [*_podman(cgroup, delivery), *_own_sets(pod, container)]
        case Tool.SYSTEMD_RUN:
            unit = f"{pod.uid}-{container.name}"
            return [*_systemd_run(cgroup, unit, delivery), *_properties(pod, container)]
        case Tool.CONTAINERD:
            # `ctr run` of containerd 1.7 has no option for sets: the agent sets them later.
            return [*_ctr(cgroup, pod.uid, container.name, delivery)]
        case Tool.DOCKER | Tool.NERDCTL:
            return [*_docker(tool, cgroup, delivery), *_own_sets(pod, container)]


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


def _own_sets(pod: PodDocument, container: ContainerDocument) -> Iterator[str]:
    """Yield the container's CPUs and memory nodes: without, it begins on those of its pod.

    In a pod without CPUs of its own these are the node's pool, which is inherited, also when it
    changes.
    """
    if any(each.isolation != Isolation.HOST for each in pod.containers):
        yield f"--cpuset-cpus={container.cpus}"
        if container.mems:
            yield f"--cpuset-mems={container.mems}"


def _properties(pod: PodDocument, container: ContainerDocument) -> Iterator[str]:
    names = {"--cpuset-cpus": "AllowedCPUs", "--cpuset-mems": "AllowedMemoryNodes"}
    for option in _own_sets(pod, container):
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


#: With whom a container shares its CPUs (`agent.managers.sharing.Sharing`).
_WITH_WHOM: Final = {
    "node": "the node's shared pool",
    "pod": "the pod's shared pool",
    "budget": "the pod's budget until its other containers start",
    "own": "its own",
    "unknown": "whether they are its own is not known yet",
}

#: What is said of an allocation that was not decided for a specification.
_ORIGINS: Final = {
    "imported": "imported from the kubelet's state",
    "recovered": "recovered from its cgroups",
}

#: How many of the containers that may use the same CPUs are named in a line.
_NAMED: Final = 3


def list_lines(listed: PodListDocument) -> Iterator[str]:
    """Yield all pods, a line each and one for each container, and those that are not admitted."""
    if not listed.pods:
        yield "no pods are admitted"
    for pod in listed.pods:
        yield "  ".join(filter(None, (full_name(pod), pod.qos, _state(pod), _whence(pod))))
        yield from _allocations(pod)
        yield from _remarks(pod)
    for failed in listed.failed:  # `show` has the full reasons
        yield f"{_shown(failed)}  {_verb(failed)} since {moment(failed.time)}  {failed.message}"


def _shown(pod: FailedPodDocument) -> str:
    return typed_name(pod) or "a pod without a name"


def _verb(pod: FailedPodDocument) -> str:
    if pod.reason == RUNS_SHARED:
        return "not admitted, runs shared"
    return "invalid" if pod.reason == INVALID_MANIFEST else "rejected"


_COLUMNS: Final = ("POD", "QOS", "STATE", "CONTAINERS", "EXCLUSIVE", "NODES", "LACKS")
_MORE_COLUMNS: Final = ("DEVICES", "SOURCE", "ORIGIN", "UID")
_FAILED_COLUMNS: Final = ("NOT ADMITTED", "STATE", "SINCE", "REASON")
_MORE_FAILED_COLUMNS: Final = ("SOURCE", "UID", "MESSAGE")


def list_table(listed: PodListDocument, *, wide: bool) -> Iterator[str]:
    """Yield all pods as a table, a line each, and a table of those that are not admitted, if any.

    `LACKS` are the qualities that some container of the pod does not have. `wide` has more columns.
    """
    columns = (*_COLUMNS, *(_MORE_COLUMNS if wide else ()))
    yield from table(columns, (_row(pod)[: len(columns)] for pod in listed.pods))
    if listed.failed:
        yield ""
        columns = (*_FAILED_COLUMNS, *(_MORE_FAILED_COLUMNS if wide else ()))
        yield from table(columns, (_failed_row(pod)[: len(columns)] for pod in listed.failed))


def _failed_row(pod: FailedPodDocument) -> tuple[str, ...]:
    state = "shared" if pod.reason == RUNS_SHARED else _verb(pod)
    since = moment(pod.time)
    return (_shown(pod), state, since, pod.reason, pod.source, pod.uid, pod.message)


def _row(pod: PodDocument) -> tuple[str, ...]:
    lasting = _lasting(pod)
    found = lasting if pod.containers_found is None else pod.containers_found
    mems = dict.fromkeys(each.mems for each in pod.containers if each.mems)
    devices: Counter[str] = Counter()
    for container in pod.containers:
        devices.update({resource: len(ids) for resource, ids in container.devices.items()})
        given = container.kubelet_devices
        devices.update({f"kubelet:{resource}": len(ids) for resource, ids in given.items()})
    return (
        full_name(pod),
        pod.qos,
        _state_word(pod),
        f"{found}/{lasting}",
        pod.exclusive_cpus,
        " ".join(mems),
        ",".join(dict.fromkeys(each.quality for each in pod.verdict if not each.met)),
        ",".join(f"{resource}={count}" for resource, count in devices.items()),
        pod.source,
        pod.origin,
        pod.uid,
    )


def _state_word(pod: PodDocument) -> str:
    """Say in a word what `_state` says, with how many containers were found beside it."""
    if not pod.enforcement.enforced:
        return "NOT-ENFORCED"
    if pod.intruding:
        return "NOT-EXCLUSIVE"
    return pod.absence.replace(" ", "-") or "enforced"


def allocation_lines(pod: PodDocument) -> Iterator[str]:
    """Yield what the containers of a pod that has just been admitted got."""
    yield f"{full_name(pod)} (uid {pod.uid})"
    yield from _allocations(pod, why=True)
    yield from _remarks(pod)


def admission_lines(answer: AdmissionDocument) -> Iterator[str]:
    """Yield the answer to an admission."""
    name = name_and_uid(answer)
    if answer.pod is None:
        verb = "would reject" if answer.dry_run else "rejected"
        yield f"{verb} {name}"
        if answer.rejection is not None:
            yield from rejection_lines(answer.rejection)
        if answer.explanation is not None:
            yield from _explanation(answer.explanation)
        return
    verb = "would admit" if answer.dry_run else "admitted"
    already = ", as before" if answer.already_admitted else ""
    instead = f", in place of uid {answer.replaced}" if answer.replaced else ""
    yield f"{verb} {name}{already}{instead}"
    if answer.explanation is not None:
        yield from _each("  warning: ", answer.explanation.warnings)
    yield from _allocations(answer.pod, why=True)
    yield from _remarks(answer.pod)
    if answer.plan is not None:
        yield from _each("  would create ", answer.plan.created)
        writes = (f"{one.cgroup}/{one.file} = {one.value}" for one in answer.plan.writes)
        yield from _each("  would write  ", writes)


def failed_lines(pod: FailedPodDocument) -> Iterator[str]:
    """Yield why and when a pod was rejected, or the mistakes in its manifest."""
    verb = _verb(pod)
    name = f" {pod.namespace}/{pod.name}" if pod.name else ""
    yield f"{verb}{name}{f' (uid {pod.uid})' if pod.uid else ''}"
    yield f"  phase: {pod.phase} since {moment(pod.time)}, from {pod.source}"
    yield from _each("  ", given_lines(pod.kubelet_devices))
    if pod.rejection is not None:
        yield from rejection_lines(pod.rejection)
    elif len(pod.details) == 1:  # which is the message, too, after the source's name
        yield f"  {pod.reason}: {pod.details[0]}"
    else:
        yield f"  {pod.reason}: {pod.message}"
        yield from (f"    {detail}" for detail in pod.details)
    if pod.explanation is not None:
        yield from _explanation(pod.explanation)


def pod_lines(pod: PodDocument) -> Iterator[str]:
    """Yield all details of one pod."""
    yield from _identity(pod)
    yield f"  from      {_asked(pod)}"
    yield f"  origin    {_ORIGINS.get(pod.origin, pod.origin)}"
    yield f"  state     {_state(pod)}"
    yield from _remarks(pod)
    yield from _each("  not valid under the current policy: ", map(_violation, pod.invalid))
    yield from _of_pod(pod)
    for cgroup in pod.kernel:
        yield from _kernel(cgroup, "  ")
    yield from _each("  ", start_lines(pod))
    for container in pod.containers:
        yield ""
        yield from _container(container)
    yield from _reasons(pod)


def difference_lines(former: PodDocument | None, new: PodDocument, file: str) -> Iterator[str]:
    """Yield the unified diff of what a pod has and of what a dry run with a manifest decides.

    There are no lines without a difference, else those of the whole pod: a line alone does not say
    of which container.
    """
    before = [] if former is None else list(_allocation(former))
    name = "/dev/null" if former is None else full_name(former)
    after, other = list(_allocation(new)), f"{full_name(new)} ({file})"
    yield from unified_diff(before, after, name, other, n=len(before), lineterm="")


def _allocation(pod: PodDocument) -> Iterator[str]:
    """Yield what `pod_lines` says that a dry run knows, too."""
    yield from _identity(pod)
    yield from _of_pod(pod)
    for container in pod.containers:
        yield ""
        yield from _resources(container)


def _identity(pod: PodDocument) -> Iterator[str]:
    yield full_name(pod)
    yield f"  uid       {pod.uid}"
    yield f"  QoS       {pod.qos}"
    if pod.end != End.REMOVAL:
        yield f"  ends      with {pod.unit or 'its last process'}"
    if pod.isolation:
        asked = ", ".join(f"{item}: {text}" for item, text in sorted(pod.isolation.items()))
        yield f"  asks for  {asked}"


def _of_pod(pod: PodDocument) -> Iterator[str]:
    """Yield what the containers of a pod have together, and what they lack."""
    if pod.cpus is not None or pod.memory:
        yield f"  budget    {_budget(pod)}"
    if pod.idle_cpus:
        yield f"  idle      {_idle_siblings(pod)}"
    yield from _each("  unused    ", _unused(pod))
    yield from _each("  verdict   ", _second_best(pod))


def _asked(pod: PodDocument) -> str:
    """Say who asked for a pod: the source and, where that has one, the pod's key there."""
    if not pod.source:
        return "no source has asked for it yet"
    named = pod.source_name in {"", pod.source}
    return pod.source if named else f"{pod.source} (source {pod.source_name})"


def _whence(pod: PodDocument) -> str:
    """Say who asked for a pod, and how its resources were determined unless by a decision."""
    source = f"from {pod.source}" if pod.source else ""
    return ", ".join(filter(None, (source, _ORIGINS.get(pod.origin))))


def _state(pod: PodDocument) -> str:
    """Say whether a pod's allocation is enforced and exclusive, and on how many containers."""
    wrong = {"NOT ENFORCED": not pod.enforcement.enforced, "NOT EXCLUSIVE": bool(pod.intruding)}
    if any(wrong.values()):
        return ", ".join(word for word, is_so in wrong.items() if is_so)
    lasting = _lasting(pod)
    if pod.containers_found is None or pod.containers_found == lasting:
        return "enforced"
    found = f"{pod.containers_found} of {lasting} containers found"
    said = f"enforced on {found}" if pod.containers_found else found
    absent = ", ".join((pod.absence, *pod.not_found[:_NAMED]))
    return f"{said} ({absent})" if pod.absence else said


def _lasting(pod: PodDocument) -> int:
    """Return how many containers live as long as the pod."""
    return sum(container.kind != ContainerKind.INIT for container in pod.containers)


def _second_best(pod: PodDocument) -> Iterator[str]:
    """Yield what the containers lack; why CPUs are not a container's own stands beside them."""
    for each in pod.verdict:
        if not each.met and each.quality != Quality.EXCLUSIVE:
            yield f"{each.container} is not {each.quality}: {each.why}"


def _allocations(pod: PodDocument, *, why: bool = False) -> Iterator[str]:
    """Yield what containers have; `why`: and why CPUs are not a container's own."""
    if pod.cpus is not None or pod.memory:
        yield f"  pod budget: {_budget(pod)}"
    if pod.idle_cpus:
        yield f"  {_idle_siblings(pod)}"
    yield from _each("  ", _unused(pod))
    width = max((len(container.name) for container in pod.containers), default=0)
    for container in pod.containers:
        has = [f"CPUs {container.cpus} ({_sharing(container)})", *_pinned(container)]
        yield f"  {container.name:{width}}  {', '.join(has)}"
        if why and container.why and container.isolation != Isolation.CONTAINER:
            yield f"  {'':{width}}  not exclusive: {container.why}"
        for resource, ids in container.devices.items():
            yield f"  {'':{width}}  {resource}: {', '.join(ids)}"
        yield from _each(f"  {'':{width}}  ", _given(container.kubelet_devices))
        yield from _each(f"  {'':{width}}  ", short_lines(container.delivery))
        for manager, part in container.others.items():
            yield f"  {'':{width}}  {manager}: {_part(part)}"
    yield from _each("  ", _second_best(pod))


def _pinned(container: ContainerDocument) -> Iterator[str]:
    """Yield the memory that a container has, with its nodes; of its pod's the nodes alone."""
    of_pod = _has_memory_of_pod(container)
    own = [block for block in container.memory if block.bytes and not of_pod]
    yield from map(_block, own)
    if not own and container.mems is not None:
        yield f"memory on {_nodes(container.mems)}"


def _has_memory_of_pod(container: ContainerDocument) -> bool:
    return container.sharing in {"pod", "budget"}


def given_lines(given: Mapping[str, Mapping[str, Mapping[str, str]]]) -> Iterator[str]:
    """Yield what the kubelet gave to containers, a line for each container and resource."""
    for container, devices in given.items():
        yield from _each(f"{container} has ", _given(devices))


def _given(devices: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the devices that the kubelet gave to a container, a line for each resource."""
    for resource, places in devices.items():
        named = (f"{each} ({_nodes(on)})" if on else each for each, on in places.items())
        yield f"{resource}: {', '.join(named)}, given by the kubelet"


def _part(part: object) -> str:
    """Return what a resource manager has allocated, which the command does not know, as JSON."""
    return msgspec.json.encode(part).decode()


def _idle_siblings(pod: PodDocument) -> str:
    return f"CPUs {pod.idle_cpus}, siblings that stay idle (smt: {IDLE_SIBLINGS})"


def _budget(pod: PodDocument) -> str:
    cpus = () if pod.cpus is None else (f"CPUs {pod.cpus}",)
    return ", ".join((*cpus, *(_block(block) for block in pod.memory)))


def _resources(container: ContainerDocument) -> Iterator[str]:
    """Yield what a container has."""
    yield f"{container.name} ({container.kind} container, isolation {container.isolation})"
    yield f"  CPUs      {container.cpus} ({_sharing(container)})"
    memory = ", ".join(_block(block) for block in container.memory)
    shared = " (of the pod, shared in it)" if memory and _has_memory_of_pod(container) else ""
    yield f"  memory    {memory or 'not pinned'}{shared}"
    for resource, ids in container.devices.items():
        yield f"  devices   {resource}: {', '.join(ids)}"
    yield from _each("  devices   ", _given(container.kubelet_devices))
    for manager, part in container.others.items():
        yield f"  {manager:9} {_part(part)}"
    if container.quota_disabled:
        own = ", its CPUs are its own" if container.sharing == "own" else ""
        yield f"  quota     none{own}"


def _container(container: ContainerDocument) -> Iterator[str]:
    yield from _resources(container)
    yield from _each("  ", long_lines(container.delivery))
    yield f"  hint      {_hint(container.hint)}"
    for cgroup in container.kernel:
        yield from _kernel(cgroup, "  ")
    if not container.kernel:
        yield "  kernel    no cgroup of this container is known"


def _sharing(container: ContainerDocument) -> str:
    """Return with which containers a container shares its CPUs."""
    if container.sharing != "overlapping":
        return _WITH_WHOM.get(container.sharing, container.sharing)
    own = "its own among init containers" if container.kind == "init" else "given to it"
    named = container.shared_with[:_NAMED]
    others = ", ".join(named) + (" and others" if len(container.shared_with) > _NAMED else "")
    return f"{own}; {others} may use {container.shared_cpus} of them too"


def _unused(pod: PodDocument) -> Iterator[str]:
    """Yield a line for each resource of the budget that containers cannot use completely."""
    starts = any(container.kind == "init" for container in pod.containers)
    when = " once its init containers are done" if starts else ""
    for found in pod.unused_budget:
        if found.resource == "cpu":
            what = f"{found.unused} of {found.budget} CPUs"
        else:
            unused, budget = (_amount(found.resource, n) for n in (found.unused, found.budget))
            what = f"{unused} of {budget} of {found.resource}"
        yield f"{what} of the budget are used by no container{when}"


def _reasons(pod: PodDocument) -> Iterator[str]:
    """Yield the reason of each container's allocation and, if known, the hints."""
    if pod.explanation is not None:
        yield from _explanation(pod.explanation)
        return
    known = [container for container in pod.containers if container.why]
    yield ""
    if known:
        yield "why"
        yield from (f"  {container.name}: {container.why}" for container in known)
    else:
        yield "no specification is known yet; admit its manifest to confirm what it holds"


def _kernel(cgroup: KernelDocument, indent: str) -> Iterator[str]:
    yield f"{indent}kernel    {cgroup.cgroup}"
    shown = (
        ("cpuset.cpus", cgroup.cpus, cgroup.cpus_effective),
        ("cpuset.mems", cgroup.mems, cgroup.mems_effective),
    )
    for name, written, effective in shown:
        if written is None:
            yield f"{indent}          {name} has no file here, the cgroup has what its parent has"
        else:
            yield f"{indent}          {name} {written or 'unset'}, effective {effective}"
    yield f"{indent}          cpu.max {cgroup.cpu_max or 'has no file here'}"
    partition = getattr(cgroup, row_of(PARTITION).field)
    if partition not in (None, MEMBER):
        yield f"{indent}          {PARTITION} {partition}"


def rejection_lines(rejection: RejectionDocument) -> Iterator[str]:
    """Yield why a pod was rejected, and what would let it be admitted."""
    yield f"  {rejection.reason}: {rejection.message}"
    if rejection.container is not None:
        yield f"  container: {rejection.container}"
    if rejection.resource is not None and rejection.asked is not None:
        yield f"  asked: {_amount(rejection.resource, rejection.asked)} of {rejection.resource}"
        free = (f"node {n}: {_amount(rejection.resource, a)}" for n, a in rejection.free.items())
        if rejection.free:
            yield f"  free: {', '.join(free)}"
    if rejection.remedy:
        yield f"  remedy: {rejection.remedy}"
    if rejection.advice and rejection.advice[0].kind == "again":
        yield f"  the pod would be admitted now: {rejection.advice[0].text}"
    elif rejection.advice:
        yield "  the pod would be admitted now with one of these changes; each was tried:"
        yield from (f"    {advice.text}" for advice in rejection.advice)
    elif rejection.advice is not None:
        yield (
            "  no change helps of those that were tried: weaker policies, a smaller request of one"
            " resource, the end of other pods"
        )


def _explanation(explanation: ExplanationDocument) -> Iterator[str]:
    if not (explanation.warnings or explanation.eligibility or explanation.hints):
        return
    yield ""
    yield "why"
    yield from _each("  warning: ", explanation.warnings)
    for item in explanation.eligibility:
        yield f"  {item.container}: {item.why}"
    for trace in explanation.hints:
        yield from _trace(trace)


def _trace(trace: HintTraceDocument) -> Iterator[str]:
    offers = [
        (provider.provider, resource, hints, provider.counts.get(resource, 0))
        for provider in trace.providers
        for resource, hints in provider.hints.items()
    ]
    if not offers:
        return
    yield f"  hints for {trace.container or 'the pod'}"
    for provider, resource, hints, count in offers:
        label = resource if resource == provider else f"{provider} {resource}"
        yield f"    {label}: {_hints(hints, count)}"
    verdict = "" if trace.admitted else ", rejected"
    yield f"    merged: {_hint(trace.merged)}{verdict}"


def _hints(hints: Sequence[HintDocument] | None, count: int | None) -> str:
    if hints is None:
        return "no preference"
    if not hints:
        return "no set of nodes can serve it"
    more = " and many more" if count is None else ""
    if count is not None and count > len(hints):
        more = f" and {count - len(hints)} more"
    return "; ".join(_hint(hint) for hint in hints) + more


def _hint(hint: HintDocument) -> str:
    preferred = "preferred" if hint.preferred else "not preferred"
    return f"{_nodes(hint.nodes)} ({preferred})"


def _nodes(nodes: str | None) -> str:
    if nodes is None:
        return "any node"
    return f"node {nodes}" if nodes.isdigit() else f"nodes {nodes}"


def _block(block: MemoryDocument) -> str:
    return f"{_amount(block.type, block.bytes)} of {block.type} on {_nodes(block.nodes)}"


def _amount(resource: str, amount: int) -> str:
    """Return an amount as a manifest would have it: `8G` for what is no round number of `Ki`."""
    if resource != "memory" and not resource.startswith("hugepages-"):
        return str(amount)
    text = min(str(Quantity.of_bytes(amount)), str(Quantity.of(amount)), key=len)
    return f"{text} bytes" if text.isdecimal() and amount else text


def _violation(violation: Violation) -> str:
    whose = "" if violation.container is None else f"{violation.container} "
    return f"{whose}{violation.message} ({violation.rule}); {violation.remedy}"


def remarks(enforcement: EnforcementDocument) -> Iterator[str]:
    """Yield what is not enforced, and what else is to be known of it."""
    yield from _each("  not enforced: ", enforcement.differences)
    yield from _each("  note: ", enforcement.notes)


def _remarks(pod: PodDocument) -> Iterator[str]:
    """Yield what of a pod is not exclusive and not enforced, and what else is to be known of it."""
    yield from _each("  not exclusive: ", (each.message for each in pod.intruding))
    yield from remarks(pod.enforcement)


def _each(label: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"{label}{line}"
