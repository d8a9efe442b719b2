"""`cpu_manager_state`: its versions, byte for byte (kubelet v1.36, v1.37, cpumanager/state).

| version | written by | entries |
|---|---|---|
| v2 | gate PodLevelResourceManagers off | {pod uid: {container: CPUs}} |
| v3 | gate PodLevelResourceManagers on | v2's and podEntries {pod uid: {"cpuSet": CPUs}} |
| v4 | v1.37 and later, gate on or off | v3's as a text in `data`, v2 around it |

The file does not say its version. `data` or its checksum are v4's alone. The checksum distinguishes
v2 and v3, for it covers the names of the fields. v1, of kubelets up to 1.17, is not read.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from agent.tools.kubelet_state.format import (
    DAMAGED,
    FileFormat,
    Name,
    StateDocument,
    UnreadableStateFileError,
    go_map,
    go_map_in_order,
    go_struct,
)
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from agent.managers.rules import EffectivePolicy


CPU_FILE: Final = "cpu_manager_state"


class CpuState(Struct, frozen=True):
    """What the CPU manager's file says.

    `default` is the node's shared pool, `containers` the CPUs by pod uid by container name, `pods`
    the CPUs of pod-level budgets by pod uid.
    """

    policy: str
    default: Mask = EMPTY
    containers: Mapping[str, Mapping[str, Mask]] = MappingProxyType({})
    pods: Mapping[str, Mask] = MappingProxyType({})


class PodEntry(Struct, omit_defaults=True):
    """One pod-level budget as it stands in the file."""

    cpuSet: str = ""  # noqa: N815  # the file's own name


class CpuStateDocument(StateDocument):
    """The file as it stands: sets are still text."""

    policyName: str = ""  # noqa: N815  # the file's own names
    defaultCpuSet: str = ""  # noqa: N815
    entries: dict[Name, dict[Name, str]] | None = field(default_factory=dict)
    podEntries: dict[Name, PodEntry] | None = field(default_factory=dict)  # noqa: N815


def _state(document: CpuStateDocument, path: Path) -> CpuState:
    return CpuState(
        policy=document.policyName,
        default=_cpus(document.defaultCpuSet, "$.defaultCpuSet", path),
        containers={
            uid: {name: _cpus(text, f"$.entries.{uid}.{name}", path) for name, text in pod.items()}
            for uid, pod in (document.entries or {}).items()
        },
        pods={
            uid: _cpus(entry.cpuSet, f"$.podEntries.{uid}.cpuSet", path)
            for uid, entry in (document.podEntries or {}).items()
        },
    )


def _cpus(text: str, field_path: str, path: Path) -> Mask:
    try:
        if text != text.strip():
            raise ValueError(f"{text!r} has white space around it")  # noqa: TRY301  # one handler
        return Mask.parse(text)
    except ValueError as error:
        raise UnreadableStateFileError(path, field_path, str(error), DAMAGED) from error


def _document(state: CpuState) -> CpuStateDocument:
    return CpuStateDocument(
        policyName=state.policy,
        defaultCpuSet=str(state.default),
        entries={
            uid: {name: str(cpus) for name, cpus in pod.items()}
            for uid, pod in state.containers.items()
        },
        podEntries={uid: PodEntry(str(cpus)) for uid, cpus in state.pods.items()},
    )


def _hashed(document: CpuStateDocument) -> list[tuple[str, str, str]]:
    entries, pods = document.entries, document.podEntries
    texts = None if entries is None else {uid: go_map(pod) for uid, pod in entries.items()}
    # The checksum is over the CPUs of a pod, not over their text.
    sets = (
        None
        if pods is None
        else {uid: _set_text(Mask.parse(entry.cpuSet)) for uid, entry in pods.items()}
    )
    return [
        ("PolicyName", "string", document.policyName),
        ("DefaultCPUSet", "string", document.defaultCpuSet),
        ("Entries", "map[string]map[string]string", go_map(texts)),
        ("PodEntries", "state.PodCPUAssignments", go_map(sets)),
    ]


def _set_text(cpus: Mask) -> str:
    elements = go_map_in_order((cpu, "{}") for cpu in cpus)
    inner = go_struct([("elems", "map[int]struct {}", elements)])
    return go_struct([("CPUSet", "cpuset.CPUSet", inner)])


CPU_FORMAT: Final = FileFormat(
    CpuStateDocument, _document, _state, _hashed, "CPUManagerCheckpoint", "CPUManagerCheckpointV2"
)


def cpu_problems(rules: EffectivePolicy, state: CpuState) -> tuple[str, ...]:
    """Return why a state cannot be imported, one sentence each; empty if it can.

    The checks are those of the kubelet's start (v1.36, cpumanager/policy_static.go, validateState),
    and those that it leaves out: pods that share CPUs, budgets that overlap the shared pool or
    leave out their own containers, containers with a set of no CPUs.
    """
    configured = str(rules.policy.cpu.policy)
    if state.policy != configured:
        return (wrong_policy(state.policy, "cpuManagerPolicy", configured),)
    if not rules.static_cpus:
        pods = sorted({*state.containers, *state.pods})
        return tuple(f"pod {uid} has exclusive CPUs under policy {configured}" for uid in pods)
    if is_fresh(state):
        return ()
    return (
        *missing_gate(rules, state.pods),
        *_reserved(rules, state),
        *_in_shared_pool(state),
        *_coverage(rules, state),
        *_allocated_twice(state),
        *_outside_budget(state),
        *_without_cpus(state),
    )


def with_lost_cpus(rules: EffectivePolicy, state: CpuState) -> tuple[CpuState, tuple[str, ...]]:
    """Return a state in which CPUs that are neither shared nor allocated are shared, with notes.

    A kubelet loses CPUs where a container ends while it starts (kubernetes/kubernetes#136604). No
    pod is known to run there, so they can only be in the shared pool.
    """
    lost = EMPTY if is_fresh(state) or not rules.static_cpus else _lost(rules, state)
    if not lost:
        return state, ()
    note = f"CPUs {lost} were neither shared nor allocated to a pod; they are shared now"
    return replace(state, default=state.default | lost), (note,)


def wrong_policy(found: str, key: str, configured: str) -> str:
    """Return the message for a state of another policy than the configured one."""
    return (
        f"policyName is {found!r}, the configuration says {key}: {configured};"
        " configure the policy that the kubelet ran with"
    )


def is_fresh(state: CpuState) -> bool:
    """Return whether no CPU was ever allocated: the kubelet fills the shared pool at its start."""
    return not (state.default or state.containers or state.pods)


def inert_budgets(state: CpuState) -> frozenset[str]:
    """Return the pods that only have a budget whose CPUs are all free.

    A kubelet keeps such entries after a failed admission, or a restart; they bind nothing.
    """
    return frozenset(
        uid
        for uid, cpus in state.pods.items()
        if not state.containers.get(uid) and cpus <= state.default
    )


def missing_gate(rules: EffectivePolicy, pods: Collection[str]) -> Iterator[str]:
    """Yield the message for pods with budgets where the gate is off."""
    if pods and not rules.policy.pod_level_managers:
        named = ", ".join(sorted(pods))
        yield (
            f"podEntries: pod-level budgets of {named} need"
            " featureGates.PodLevelResourceManagers: true, as the kubelet had it"
        )


def _reserved(rules: EffectivePolicy, state: CpuState) -> Iterator[str]:
    reserved = rules.policy.cpu.reserved
    if rules.policy.cpu.options.strict_cpu_reservation:
        if both := reserved & state.default:
            yield (
                f"defaultCpuSet {state.default} contains the reserved CPUs {both}, which"
                " strict-cpu-reservation keeps from containers; the kubelet ran without it, or"
                " with other reservedSystemCPUs"
            )
    elif missing := reserved - state.default:
        yield (
            f"defaultCpuSet {_shown(state.default)} lacks the reserved CPUs {missing}; the kubelet"
            " ran with other reservedSystemCPUs, or with strict-cpu-reservation"
        )


def _in_shared_pool(state: CpuState) -> Iterator[str]:
    for uid, containers in sorted(state.containers.items()):
        for name, cpus in sorted(containers.items()):
            if both := cpus & state.default:
                yield f"container {name} of pod {uid} holds CPUs {both} of the shared pool"
    inert = inert_budgets(state)
    for uid, cpus in sorted(state.pods.items()):
        both = cpus & state.default
        if both and uid not in inert:
            yield f"the budget of pod {uid} contains CPUs {both} of the shared pool"


def _lost(rules: EffectivePolicy, state: CpuState) -> Mask:
    return rules.machine.cpus.all - _named(state) - rules.policy.cpu.reserved


def _named(state: CpuState) -> Mask:
    found = state.default
    for uid in {*state.containers, *state.pods}:
        found |= _allocated(state, uid)
    return found


def _coverage(rules: EffectivePolicy, state: CpuState) -> Iterator[str]:
    """Compare all CPUs of the state with the allocatable CPUs of the host."""
    expected = rules.machine.cpus.all
    if rules.policy.cpu.options.strict_cpu_reservation:
        expected -= rules.policy.cpu.reserved
    found = _named(state)
    if lost := _lost(rules, state):
        yield f"CPUs {lost} are online but neither shared nor allocated to a pod"
    if unknown := found - rules.machine.cpus.all:
        yield f"CPUs {unknown} are in the state but not online; bring them online first"
    elif strict := found - expected - state.default:
        yield f"CPUs {strict} are reserved for the system but allocated to pods"


def _allocated_twice(state: CpuState) -> Iterator[str]:
    """Yield a line for each pod with CPUs of an earlier pod."""
    first: dict[int, str] = {}
    taken = EMPTY
    for uid in sorted({*state.containers, *state.pods} - inert_budgets(state)):
        cpus = _allocated(state, uid)
        shared: dict[str, Mask] = {}
        for cpu in cpus & taken:
            shared[first[cpu]] = shared.get(first[cpu], EMPTY) | Mask.of(cpu)
        for other, both in shared.items():
            yield f"pods {other} and {uid} both hold CPUs {both}; end one of them"
        first.update(dict.fromkeys(cpus - taken, uid))
        taken |= cpus


def _outside_budget(state: CpuState) -> Iterator[str]:
    for uid, budget in sorted(state.pods.items()):
        for name, cpus in sorted(state.containers.get(uid, {}).items()):
            if outside := cpus - budget:
                yield (
                    f"container {name} of pod {uid} holds CPUs {outside} outside of its pod's"
                    f" budget {_shown(budget)}"
                )


def _without_cpus(state: CpuState) -> Iterator[str]:
    for uid, containers in sorted(state.containers.items()):
        for name, cpus in sorted(containers.items()):
            if not cpus:
                yield f"container {name} of pod {uid} holds a set of no CPUs; end the pod"


def _allocated(state: CpuState, uid: str) -> Mask:
    cpus = state.pods.get(uid, EMPTY)
    for own in state.containers.get(uid, {}).values():
        cpus |= own
    return cpus


def _shown(cpus: Mask) -> str:
    return str(cpus) or "(empty)"
