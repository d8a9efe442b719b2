"""One admitted pod as text for 80 columns: `PodDocument` and `EnforcementDocument`.

Three texts: all details (`pod_lines`), the difference to what another manifest would get
(`difference_lines`), and what the containers got (`container_lines`), which is part of the answer
to an admission and of the list of pods.
"""

from __future__ import annotations

from difflib import unified_diff
from typing import TYPE_CHECKING, Final

import msgspec

from agent.cli.lines import labelled
from agent.cli.reason_text import explanation_lines
from agent.cli.resource_text import (
    amount_text,
    delivery_lines,
    delivery_summary,
    hint_text,
    kubelet_device_lines,
    memory_text,
    nodes_text,
)
from agent.cli.start_arguments import start_lines
from agent.managers.allocation import Isolation
from agent.pods.model import IDLE_SIBLINGS, ContainerKind, End, Quality, full_name
from cgroupfs.settings import MEMBER, PARTITION, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.api.documents.kernel import EnforcementDocument, KernelDocument
    from agent.api.documents.pods import ContainerDocument, PodDocument
    from agent.api.documents.slowness import Slowness
    from agent.managers.violations import Violation

#: With whom a container shares its CPUs (`agent.managers.sharing.Sharing`).
_SHARED_WITH: Final = {
    "node": "the node's shared pool",
    "pod": "the pod's shared pool",
    "budget": "the pod's budget until its other containers start",
    "own": "its own",
    "unknown": "whether they are its own is not known yet",
}
#: The origin of an allocation that was not decided for a specification.
_ORIGINS: Final = {
    "imported": "imported from the kubelet's state",
    "recovered": "recovered from its cgroups",
}
#: By the mode of a NUMA policy, with its nodes.
_NUMA_TEXTS: Final = {
    "interleave": "interleaved over the nodes that a container may use",
    "preferred": "of nodes {} while they have some",
}
#: Containers that a line names at most.
_NAMED: Final = 3


def pod_lines(pod: PodDocument) -> Iterator[str]:
    """Yield all details of one pod."""
    yield from _identity_lines(pod)
    yield f"  from      {_source_text(pod)}"
    yield f"  origin    {origin_text(pod) or pod.origin}"
    yield f"  state     {state_text(pod)}"
    yield from state_lines(pod)
    if pod.admission_seconds is not None:
        until = "from the request until the kernel was read back"
        yield f"  admission {pod.admission_seconds * 1000:.0f} ms {until}"
    yield from labelled("  not valid under the current policy: ", map(_violation, pod.invalid))
    yield from _budget_lines(pod)
    for cgroup in pod.kernel:
        yield from _kernel_lines(cgroup)
    yield from labelled("  ", start_lines(pod))
    for container in pod.containers:
        yield ""
        yield from _resource_lines(pod, container)
        yield from labelled("  ", delivery_lines(container.delivery))
        yield f"  hint      {hint_text(container.hint)}"
        for cgroup in container.kernel:
            yield from _kernel_lines(cgroup)
        if not container.kernel:
            yield "  kernel    no cgroup of this container is known"
    yield from _reason_lines(pod)
    if pod.slow is not None:
        yield from ("", "slow", *labelled("  ", _slow_lines(pod.slow)))


def difference_lines(former: PodDocument | None, new: PodDocument, file: str) -> Iterator[str]:
    """Yield the unified diff between an admitted pod and what a dry run decides for a manifest.

    Equal pods have no lines. Otherwise the diff has the lines of the whole pod: a changed line
    alone does not say which container it belongs to.
    """
    before = [] if former is None else list(_comparable_lines(former))
    after = list(_comparable_lines(new))
    name = "/dev/null" if former is None else full_name(former)
    new_name = f"{full_name(new)} ({file})"
    yield from unified_diff(before, after, name, new_name, n=len(before), lineterm="")


def allocation_lines(pod: PodDocument) -> Iterator[str]:
    """Yield what the containers of a pod that was just admitted got."""
    yield f"{full_name(pod)} (uid {pod.uid})"
    yield from container_lines(pod, reasons=True)
    yield from state_lines(pod)


def container_lines(pod: PodDocument, *, reasons: bool = False) -> Iterator[str]:
    """Yield what each container got, after what the pod has as a whole.

    With `reasons` a container without exclusive CPUs has a line that says why.
    """
    if pod.cpus is not None or pod.memory:
        yield f"  pod budget: {_budget_text(pod)}"
    if pod.idle_cpus:
        yield f"  {_idle_text(pod)}"
    yield from labelled("  ", _unused_lines(pod))
    width = max((len(container.name) for container in pod.containers), default=0)
    below = f"  {'':{width}}  "
    for container in pod.containers:
        cpus = f"CPUs {container.cpus} ({_sharing_text(pod, container)})"
        parts = [cpus, *_memory_parts(container)]
        yield f"  {container.name:{width}}  {', '.join(parts)}"
        if reasons and container.why and container.isolation != Isolation.CONTAINER:
            yield f"{below}not exclusive: {container.why}"
        for resource, ids in container.devices.items():
            yield f"{below}{resource}: {', '.join(ids)}"
        yield from labelled(below, kubelet_device_lines(container.kubelet_devices))
        yield from labelled(below, delivery_summary(container.delivery))
        for manager, allocated in container.others.items():
            yield f"{below}{manager}: {_json(allocated)}"
    yield from labelled("  ", _lacking_lines(pod))


def state_lines(pod: PodDocument) -> Iterator[str]:
    """Yield what of a pod is not exclusive and not enforced, and the notes."""
    yield from labelled("  not exclusive: ", (intrusion.message for intrusion in pod.intruding))
    yield from enforcement_lines(pod.enforcement)


def enforcement_lines(enforcement: EnforcementDocument) -> Iterator[str]:
    """Yield what is not enforced, and the notes."""
    yield from labelled("  not enforced: ", enforcement.differences)
    yield from labelled("  note: ", enforcement.notes)


def state_text(pod: PodDocument) -> str:
    """Say whether an allocation is enforced and exclusive, and for how many containers."""
    failures = []
    if not pod.enforcement.enforced:
        failures.append("NOT ENFORCED")
    if pod.intruding:
        failures.append("NOT EXCLUSIVE")
    if failures:
        return ", ".join(failures)
    lasting = lasting_containers(pod)
    if pod.containers_found is None or pod.containers_found == lasting:
        return "enforced"
    count = f"{pod.containers_found} of {lasting} containers found"
    state = f"enforced on {count}" if pod.containers_found else count
    absent = ", ".join((pod.absence, *pod.not_found[:_NAMED]))
    return f"{state} ({absent})" if pod.absence else state


def state_word(pod: PodDocument) -> str:
    """Return `state_text` as one word, without the count of containers."""
    if not pod.enforcement.enforced:
        return "NOT-ENFORCED"
    if pod.intruding:
        return "NOT-EXCLUSIVE"
    return pod.absence.replace(" ", "-") or "enforced"


def origin_text(pod: PodDocument) -> str:
    """Return the origin of an allocation, "" where it was decided for a specification."""
    return _ORIGINS.get(pod.origin, "")


def lasting_containers(pod: PodDocument) -> int:
    """Return how many containers last as long as the pod: all but init containers."""
    return sum(container.kind != ContainerKind.INIT for container in pod.containers)


def _comparable_lines(pod: PodDocument) -> Iterator[str]:
    """Yield the lines of `pod_lines` that a dry run knows, too."""
    yield from _identity_lines(pod)
    yield from _budget_lines(pod)
    for container in pod.containers:
        yield ""
        yield from _resource_lines(pod, container)


def _identity_lines(pod: PodDocument) -> Iterator[str]:
    yield full_name(pod)
    yield f"  uid       {pod.uid}"
    yield f"  QoS       {pod.qos}"
    if pod.end != End.REMOVAL:
        yield f"  ends      with {pod.unit or 'its last process'}"
    if pod.isolation:
        isolation = ", ".join(f"{item}: {text}" for item, text in sorted(pod.isolation.items()))
        yield f"  asks for  {isolation}"
    if pod.numa_policy is not None:
        yield f"  memory    {_NUMA_TEXTS[pod.numa_policy.mode].format(pod.numa_policy.nodes)}"


def _source_text(pod: PodDocument) -> str:
    """Return who asked for a pod: the source and, where it has one, the pod's key there."""
    if not pod.source:
        return "no source has asked for it yet"
    has_key = pod.source_name not in {"", pod.source}
    return f"{pod.source} (source {pod.source_name})" if has_key else pod.source


def _budget_lines(pod: PodDocument) -> Iterator[str]:
    """Yield what the containers of a pod have together, and what they lack."""
    if pod.cpus is not None or pod.memory:
        yield f"  budget    {_budget_text(pod)}"
    if pod.idle_cpus:
        yield f"  idle      {_idle_text(pod)}"
    yield from labelled("  unused    ", _unused_lines(pod))
    yield from labelled("  verdict   ", _lacking_lines(pod))


def _budget_text(pod: PodDocument) -> str:
    cpus = () if pod.cpus is None else (f"CPUs {pod.cpus}",)
    return ", ".join((*cpus, *map(memory_text, pod.memory)))


def _idle_text(pod: PodDocument) -> str:
    return f"CPUs {pod.idle_cpus}, siblings that stay idle (smt: {IDLE_SIBLINGS})"


def _unused_lines(pod: PodDocument) -> Iterator[str]:
    """Yield a line for each resource of the budget that containers cannot use completely."""
    has_init = any(container.kind == ContainerKind.INIT for container in pod.containers)
    when = " once its init containers are done" if has_init else ""
    for budget in pod.unused_budget:
        if budget.resource == "cpu":
            amounts = f"{budget.unused} of {budget.budget} CPUs"
        else:
            unused = amount_text(budget.resource, budget.unused)
            total = amount_text(budget.resource, budget.budget)
            amounts = f"{unused} of {total} of {budget.resource}"
        yield f"{amounts} of the budget are used by no container{when}"


def _lacking_lines(pod: PodDocument) -> Iterator[str]:
    """Yield the qualities that containers lack.

    Exclusivity is left out: why CPUs are not exclusive stands beside the CPUs.
    """
    for quality in pod.verdict:
        if not quality.met and quality.quality != Quality.EXCLUSIVE:
            yield f"{quality.container} is not {quality.quality}: {quality.why}"


def _resource_lines(pod: PodDocument, container: ContainerDocument) -> Iterator[str]:
    """Yield the CPUs, memory and devices of a container."""
    yield f"{container.name} ({container.kind} container, isolation {container.isolation})"
    yield f"  CPUs      {container.cpus} ({_sharing_text(pod, container)})"
    memory = ", ".join(map(memory_text, container.memory))
    shared = " (of the pod, shared in it)" if memory and _has_memory_of_pod(container) else ""
    yield f"  memory    {memory or 'not pinned'}{shared}"
    for resource, ids in container.devices.items():
        yield f"  devices   {resource}: {', '.join(ids)}"
    yield from labelled("  devices   ", kubelet_device_lines(container.kubelet_devices))
    for manager, allocated in container.others.items():
        yield f"  {manager:9} {_json(allocated)}"
    if container.quota_disabled:
        exclusive = ", its CPUs are its own" if container.sharing == "own" else ""
        yield f"  quota     none{exclusive}"


def _memory_parts(container: ContainerDocument) -> Iterator[str]:
    """Yield a container's own memory with its nodes, or only the nodes if it has none."""
    of_pod = _has_memory_of_pod(container)
    memory = [block for block in container.memory if block.bytes and not of_pod]
    yield from map(memory_text, memory)
    if not memory and container.mems is not None:
        yield f"memory on {nodes_text(container.mems)}"


def _has_memory_of_pod(container: ContainerDocument) -> bool:
    return container.sharing in {"pod", "budget"}


def _sharing_text(pod: PodDocument, container: ContainerDocument) -> str:
    """Return which containers share the CPUs of a container."""
    if pod.pool and container.sharing == "node":
        return f"the pool {pod.pool}"
    if container.sharing != "overlapping":
        return _SHARED_WITH.get(container.sharing, container.sharing)
    is_init = container.kind == ContainerKind.INIT
    owner = "its own among init containers" if is_init else "given to it"
    others = ", ".join(container.shared_with[:_NAMED])
    others += " and others" if len(container.shared_with) > _NAMED else ""
    return f"{owner}; {others} may use {container.shared_cpus} of them too"


def _json(allocated: object) -> str:
    """Return what a manager allocated that this command does not know, as JSON."""
    return msgspec.json.encode(allocated).decode()


def _kernel_lines(cgroup: KernelDocument) -> Iterator[str]:
    yield f"  kernel    {cgroup.cgroup}"
    for name, text, effective in (
        ("cpuset.cpus", cgroup.cpus, cgroup.cpus_effective),
        ("cpuset.mems", cgroup.mems, cgroup.mems_effective),
    ):
        if text is None:
            yield f"            {name} has no file here, the cgroup has what its parent has"
        else:
            yield f"            {name} {text or 'unset'}, effective {effective}"
    yield f"            cpu.max {cgroup.cpu_max or 'has no file here'}"
    partition = getattr(cgroup, row_of(PARTITION).field)
    if partition not in (None, MEMBER):
        yield f"            {PARTITION} {partition}"


def _violation(violation: Violation) -> str:
    container = "" if violation.container is None else f"{violation.container} "
    return f"{container}{violation.message} ({violation.rule}); {violation.remedy}"


def _slow_lines(slow: Slowness) -> Iterator[str]:
    """Yield what makes a pod slow, and what the kernel does not show of that."""
    for each in slow.causes:
        where = f"{each.container} " if each.container else ""
        yield f"{where}{each.cause.replace('_', ' ')}: {each.message}"
    if not slow.causes:
        yield "nothing the agent sees makes it slow"
    if slow.unknown:
        yield f"not known, as no cgroup of a container has it: {', '.join(slow.unknown)}"


def _reason_lines(pod: PodDocument) -> Iterator[str]:
    """Yield the explanation of the decision, else the reason kept for each container."""
    if pod.explanation is not None:
        yield from explanation_lines(pod.explanation)
        return
    yield ""
    if any(container.why for container in pod.containers):
        yield "why"
        for container in pod.containers:
            if container.why:
                yield f"  {container.name}: {container.why}"
    else:
        yield "no specification is known yet; admit its manifest to confirm what it holds"
