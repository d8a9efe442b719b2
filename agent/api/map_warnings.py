"""What a map warns of: CPUs that are not exclusive, shared cores, remote memory, absent containers.

In go the documents of the map and what is known of pods, out come warnings (`map_warnings`), the
same number of each reason at most.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from agent.api.documents.map import CpuUse, MapWarningDocument
from agent.pods.model import full_name
from agent.text import some_of
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.api.documents.map import MapCpuDocument, MapOwnerDocument, MapPodDocument
    from agent.managers.allocation import PodAllocation
    from agent.managers.quality import Intrusion
    from agent.managers.violations import Violation
    from sysfs.host import Host

#: Warnings of one reason that are listed at most.
WARNINGS_LISTED: Final = 32
#: Containers of a pod that a warning names at most.
_NAMED: Final = 4


def map_warnings(
    host: Host,
    cpus: Iterable[MapCpuDocument],
    pods: Sequence[MapPodDocument],
    allocations: Iterable[PodAllocation],
    *,
    invalid: Iterable[Violation],
    intrusions: Mapping[str, tuple[Intrusion, ...]],
) -> tuple[tuple[MapWarningDocument, ...], int]:
    """Return the warnings that are listed, by reason, and the number of the others.

    `intrusions` are what may use exclusive CPUs of a pod, by its uid.
    """
    reasons = (
        _not_exclusive(pods, intrusions),
        _shared_cores(cpus, pods),
        _remote_memory(host, allocations),
        _not_found(pods),
        _invalid(invalid),
    )
    groups = [tuple(warnings) for warnings in reasons]
    listed = tuple(warning for group in groups for warning in group[:WARNINGS_LISTED])
    return listed, sum(map(len, groups)) - len(listed)


def is_shared(threads: Iterable[MapCpuDocument]) -> bool:
    """Return whether the threads of a core have different users (`shared_by`)."""
    return shared_by(cpu.owners for cpu in threads)


def shared_by(threads: Iterable[Sequence[MapOwnerDocument]]) -> bool:
    """Return whether the threads of a core have different users.

    `threads` are the owners of each thread.
    1. A thread that a pod keeps idle has no user and does not count.
    2. At least one user is a pod or container. Reserved threads beside threads of the shared pool
       are not a shared core: the same processes may run on both.
    """
    users = [
        frozenset((owner.uid, owner.container) for owner in owners)
        for owners in threads
        if not owners or not all(owner.idle for owner in owners)
    ]
    return any(users) and (len(set(users)) > 1 or any(len(of_thread) > 1 for of_thread in users))


def _not_exclusive(
    pods: Iterable[MapPodDocument], intrusions: Mapping[str, tuple[Intrusion, ...]]
) -> Iterator[MapWarningDocument]:
    for pod in pods:
        for intrusion in intrusions.get(pod.uid, ()):
            yield MapWarningDocument(
                reason="NotExclusive",
                message=f"{full_name(pod)} is not exclusive: {intrusion}",
                uids=(pod.uid,),
                cpus=str(intrusion.cpus),
            )


def _shared_cores(
    cpus: Iterable[MapCpuDocument], pods: Iterable[MapPodDocument]
) -> Iterator[MapWarningDocument]:
    """Yield a warning for each core whose threads have different users."""
    names = {pod.uid: full_name(pod) for pod in pods}
    cores: dict[int, list[MapCpuDocument]] = defaultdict(list)
    for cpu in cpus:
        if cpu.core is not None:
            cores[cpu.core].append(cpu)
    for core, threads in cores.items():
        if not is_shared(threads):
            continue
        users: dict[str, list[int]] = defaultdict(list)
        for cpu in threads:
            for user in _users(cpu, names):
                users[user].append(cpu.id)
        parts = (f"CPU {Mask.from_ids(ids)} {user}" for user, ids in users.items())
        yield MapWarningDocument(
            reason="SharedCore",
            message=f"core {core} is shared: {'; '.join(parts)}",
            uids=tuple(dict.fromkeys(owner.uid for cpu in threads for owner in cpu.owners)),
            cpus=str(Mask.from_ids(cpu.id for cpu in threads)),
        )


def _users(cpu: MapCpuDocument, names: Mapping[str, str]) -> Iterator[str]:
    if not cpu.owners:
        in_no_pool = cpu.use in (CpuUse.WITHHELD, CpuUse.RESERVED, CpuUse.CORDONED, CpuUse.FREE)
        yield f"is {cpu.use}" if in_no_pool else "is in the node's shared pool"
    for owner in cpu.owners:
        container = f" container {owner.container}" if owner.container else ""
        yield f"of {names[owner.uid]}{container}"


def _remote_memory(
    host: Host, allocations: Iterable[PodAllocation]
) -> Iterator[MapWarningDocument]:
    """Yield a warning for each container whose CPUs and pinned memory are on different nodes."""
    node_of = {cpu.id: cpu.node for cpu in host.cpus if cpu.node is not None}
    with_cpus = Mask.from_ids(node_of.values())
    for allocation in allocations:
        for container in allocation.containers:
            if not container.memory or not container.cpus:
                continue
            mems = container.mems
            if container.memory_nodes:  # the pod names nodes; one without CPUs is no surprise
                mems &= with_cpus
            if not mems:
                continue
            nodes = Mask.from_ids({node_of[cpu] for cpu in container.cpus if cpu in node_of})
            if nodes != mems:
                yield MapWarningDocument(
                    reason="RemoteMemory",
                    message=f"{full_name(allocation)} container {container.name}: CPUs "
                    f"{container.cpus} are on {_nodes(nodes)}, its memory on {_nodes(mems)}",
                    uids=(allocation.uid,),
                    cpus=str(container.cpus),
                )


def _nodes(nodes: Mask) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {nodes}" if nodes else "no known node"


def _not_found(pods: Iterable[MapPodDocument]) -> Iterator[MapWarningDocument]:
    for pod in pods:
        if pod.not_found:
            names = some_of(pod.not_found, _NAMED)
            yield MapWarningDocument(
                reason=pod.absence.title().replace(" ", ""),
                message=f"{full_name(pod)}: {pod.absence} in its cgroup: {names}",
                uids=(pod.uid,),
            )


def _invalid(violations: Iterable[Violation]) -> Iterator[MapWarningDocument]:
    for violation in violations:
        yield MapWarningDocument(
            reason="AllocationInvalid", message=str(violation), uids=(violation.uid,)
        )
