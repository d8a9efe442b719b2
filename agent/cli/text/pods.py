"""Pods as text for 80 columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from agent.api.documents import INVALID_MANIFEST, RUNS_SHARED
from agent.cli.access import moment, typed_name
from agent.cli.terminal.output import table
from agent.cli.text.delivery import long_lines, short_lines, start_lines
from agent.managers.allocations.allocation import Isolation
from agent.pods.identity import full_name, name_and_uid
from agent.pods.lifetime import End
from agent.pods.model import ContainerKind
from agent.pods.quantity import Quantity
from agent.pods.requirements import Quality

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.api.documents import (
        AdmissionDocument,
        ContainerDocument,
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
    from agent.managers.assessment.violation import Violation

#: With whom a container shares its CPUs (`agent.managers.allocations.sharing.Sharing`).
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
        yield f"{full_name(pod)}  {pod.qos}  {_state(pod)}  {_whence(pod)}"
        yield from _allocations(pod)
        yield from _remarks(pod.enforcement)
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
    return pod.absence.replace(" ", "-") or "enforced"


def allocation_lines(pod: PodDocument) -> Iterator[str]:
    """Yield what the containers of a pod that has just been admitted got."""
    yield f"{full_name(pod)} (uid {pod.uid})"
    yield from _allocations(pod, why=True)
    yield from _remarks(pod.enforcement)


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
    yield from _remarks(answer.pod.enforcement)
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
    else:
        yield f"  {pod.reason}: {pod.message}"
        yield from (f"    {detail}" for detail in pod.details)
    if pod.explanation is not None:
        yield from _explanation(pod.explanation)


def pod_lines(pod: PodDocument) -> Iterator[str]:
    """Yield all details of one pod."""
    yield full_name(pod)
    yield f"  uid       {pod.uid}"
    yield f"  QoS       {pod.qos}"
    yield f"  from      {_asked(pod)}"
    if pod.end != End.REMOVAL:
        yield f"  ends      with {pod.unit or 'its last process'}"
    yield f"  origin    {_ORIGINS.get(pod.origin, pod.origin)}"
    yield f"  state     {_state(pod)}"
    yield from _remarks(pod.enforcement)
    yield from _each("  not valid under the current policy: ", map(_violation, pod.invalid))
    if pod.cpus is not None or pod.memory:
        yield f"  budget    {_budget(pod)}"
    yield from _each("  unused    ", _unused(pod))
    yield from _each("  verdict   ", _second_best(pod))
    for cgroup in pod.kernel:
        yield from _kernel(cgroup, "  ")
    yield from _each("  ", start_lines(pod))
    for container in pod.containers:
        yield ""
        yield from _container(container)
    yield from _reasons(pod)


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
    """Say whether a pod's allocation is enforced, and on how many of its containers."""
    if not pod.enforcement.enforced:
        return "NOT ENFORCED"
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
    yield from _each("  ", _unused(pod))
    width = max(len(container.name) for container in pod.containers)
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
    of_pod = container.sharing in {"pod", "budget"}
    own = [block for block in container.memory if block.bytes and not of_pod]
    yield from map(_block, own)
    if not own and container.mems is not None:
        yield f"memory on {_nodes(container.mems)}"


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


def _budget(pod: PodDocument) -> str:
    cpus = () if pod.cpus is None else (f"CPUs {pod.cpus}",)
    return ", ".join((*cpus, *(_block(block) for block in pod.memory)))


def _container(container: ContainerDocument) -> Iterator[str]:
    yield f"{container.name} ({container.kind} container, isolation {container.isolation})"
    yield f"  CPUs      {container.cpus} ({_sharing(container)})"
    memory = ", ".join(_block(block) for block in container.memory)
    yield f"  memory    {memory or 'not pinned'}"
    for resource, ids in container.devices.items():
        yield f"  devices   {resource}: {', '.join(ids)}"
    yield from _each("  devices   ", _given(container.kubelet_devices))
    yield from _each("  ", long_lines(container.delivery))
    for manager, part in container.others.items():
        yield f"  {manager:9} {_part(part)}"
    yield f"  hint      {_hint(container.hint)}"
    if container.quota_disabled:
        own = ", its CPUs are its own" if container.sharing == "own" else ""
        yield f"  quota     none{own}"
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
    memory = resource == "memory" or resource.startswith("hugepages-")
    return str(Quantity.of_bytes(amount)) if memory else str(amount)


def _violation(violation: Violation) -> str:
    whose = "" if violation.container is None else f"{violation.container} "
    return f"{whose}{violation.message} ({violation.rule}); {violation.remedy}"


def _remarks(enforcement: EnforcementDocument) -> Iterator[str]:
    yield from _each("  not enforced: ", enforcement.differences)
    yield from _each("  note: ", enforcement.notes)


def _each(label: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"{label}{line}"
