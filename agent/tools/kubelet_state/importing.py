"""From the kubelet's files to a ledger.

The files know pod uids, container names, CPUs and memory, the main part of an allocation. The rest
(the pod's name, kinds of containers, isolation, limits) comes from the pods' manifests or a list of
the cluster's pods where these are given, and otherwise with the pod's next admission
(`agent.managers.readmission`). Which devices a pod has is not taken over.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from agent.files import read_bounded
from agent.managers.allocation import ContainerAllocation, Isolation, Origin, PodAllocation
from agent.managers.ledger import Ledger
from agent.managers.memory.state import NodeMemory, memory_charge
from agent.managers.readmission import NotMatchedError, match_imported
from agent.managers.rules import restored
from agent.pods.manifest import pod_from_document
from agent.pods.model import (
    MEMORY,
    ContainerKind,
    ManifestError,
    QosClass,
    extended_resource_fault,
    full_name,
    label_fault,
    uid_fault,
)
from agent.tools.kubelet_state.cpu import (
    CPU_FILE,
    CpuState,
    cpu_problems,
    inert_budgets,
    with_lost_cpus,
)
from agent.tools.kubelet_state.format import UnfitStateError
from agent.tools.kubelet_state.memory import (
    MEMORY_FILE,
    MemoryState,
    is_fresh,
    memory_problems,
    with_memory_of_now,
)
from agent.yaml import Mistake, Plain, UnreadableError, plain, read_document, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod
    from agent.tools.kubelet_state.files import KubeletState

_NOT_TAKEN_OVER: Final = "the kubelet's state is not taken over"


class Imported(Struct, frozen=True):
    """The ledger of a kubelet's state, and notes for the operator, a line each."""

    ledger: Ledger
    notes: tuple[str, ...] = ()


def take_over(
    rules: EffectivePolicy, state: KubeletState, pods: Mapping[str, Pod] = MappingProxyType({})
) -> Imported:
    """Return the ledger of a kubelet's state; `pods` by uid complete what they describe.

    Lost CPUs and memory that differs from the last boot's keep a kubelet from starting, not this.

    Raises `UnfitStateError` with every reason why the state cannot be taken over.
    """
    cpu = state.cpu or CpuState(str(rules.policy.cpu.policy))
    memory = state.memory or MemoryState(str(rules.policy.memory.policy))
    # First, because the following messages contain names of pods and containers.
    if misnamed := list(_misnamed(cpu, memory)):
        raise UnfitStateError(_NOT_TAKEN_OVER, misnamed)
    cpu, lost = with_lost_cpus(rules, cpu)
    memory, drifted = with_memory_of_now(rules, memory)
    reasons = [
        *(f"{CPU_FILE}: {why}" for why in cpu_problems(rules, cpu)),
        *(f"{MEMORY_FILE}: {why}" for why in memory_problems(rules, memory)),
    ]
    if reasons:
        raise UnfitStateError(_NOT_TAKEN_OVER, reasons)
    found = tuple(_allocations(rules, cpu, memory))
    allocations = {allocation.uid: allocation for allocation in found}
    completed = _completed(rules, allocations, pods)
    ledger = restored(rules, Ledger.of(completed.values(), {}))
    return Imported(
        ledger.with_part(MEMORY, _charge(rules, memory)),
        (
            *(f"{CPU_FILE}: {note}" for note in lost),
            *(f"{MEMORY_FILE}: {note}" for note in drifted),
            *_notes(rules, state, completed, pods),
            *_device_notes(rules, completed, pods),
        ),
    )


def _misnamed(cpu: CpuState, memory: MemoryState) -> Iterator[str]:
    """Yield the invalid names of pods and containers."""
    files = (
        (CPU_FILE, {*cpu.containers, *cpu.pods}, cpu.containers.values()),
        (MEMORY_FILE, {*memory.containers, *memory.pods}, memory.containers.values()),
    )
    for file, uids, containers in files:
        for uid in sorted(uids):
            if fault := uid_fault(uid):
                yield f"{file}: {shown(uid)} is not a valid uid: {fault}"
        for name in sorted({name for members in containers for name in members}):
            if fault := label_fault(name):
                yield f"{file}: {shown(name)} is not a valid name of a container: {fault}"


def _allocations(
    rules: EffectivePolicy, cpu: CpuState, memory: MemoryState
) -> Iterator[PodAllocation]:
    inert = inert_budgets(cpu)
    budgets = {uid: cpus for uid, cpus in cpu.pods.items() if uid not in inert}
    for uid in sorted({*cpu.containers, *budgets, *memory.containers}):
        containers = tuple(_containers(rules, uid, cpu, memory))
        if containers or uid in budgets:
            yield PodAllocation(
                uid=uid,
                name="",
                namespace="",
                qos=QosClass.GUARANTEED,  # no other pod has CPUs or memory of its own
                spec_digest="",
                containers=containers,
                cpus=budgets.get(uid),
                memory=memory.pods.get(uid, ()) if uid in memory.containers else (),
                quota_disabled=any(container.quota_disabled for container in containers),
                origin=Origin.IMPORTED,
            )


def _containers(
    rules: EffectivePolicy, uid: str, cpu: CpuState, memory: MemoryState
) -> Iterator[ContainerAllocation]:
    """Yield the containers of a pod; which of a pod-level budget share their CPUs is not known.

    Outside of a budget, a container with CPUs of its own is exclusive, and the kubelet has lifted
    its quota. Inside, the quota that it has is left alone.
    """
    cpus, blocks = cpu.containers.get(uid, {}), memory.containers.get(uid, {})
    lifted = rules.policy.gates.disable_cpu_quota_with_exclusive_cpus and uid not in cpu.pods
    for name in sorted({*cpus, *blocks}):
        own = cpus.get(name)
        yield ContainerAllocation(
            name=name,
            kind=ContainerKind.APP,
            isolation=Isolation.HOST if own is None else Isolation.CONTAINER,
            cpus=own,
            memory=blocks.get(name, ()),
            quota_disabled=own is not None and lifted,
        )


def _completed(
    rules: EffectivePolicy,
    allocations: Mapping[str, PodAllocation],
    pods: Mapping[str, Pod],
) -> dict[str, PodAllocation]:
    """Complete allocations by manifests; still without a digest, which the first admission sets.

    A manifest from a cluster says more (such as its QoS class) than the one that asks later.
    """
    completed: dict[str, PodAllocation] = {}
    reasons: list[str] = []
    for uid, allocation in allocations.items():
        pod = pods.get(uid)
        completed[uid] = allocation
        if pod is None:
            continue
        who = f"pod {full_name(pod)} ({uid}): by its manifest"
        try:
            matched = match_imported(rules, allocation, rules.demand(pod))
        except NotMatchedError as error:
            reasons.append(f"{who} {error}")
        else:
            completed[uid] = replace(matched, spec_digest="", origin=Origin.IMPORTED)
    if reasons:
        raise UnfitStateError("the manifests do not fit the kubelet's state", reasons)
    return completed


def _charge(rules: EffectivePolicy, memory: MemoryState) -> Mapping[int, NodeMemory]:
    if not rules.static_memory or is_fresh(memory):
        return memory_charge(rules.empty_ledger())
    return MappingProxyType(
        {
            node: NodeMemory(
                state.assignments,
                state.cells,
                MappingProxyType({name: table.reserved for name, table in state.tables.items()}),
            )
            for node, state in sorted(memory.nodes.items())
        }
    )


def _notes(
    rules: EffectivePolicy,
    state: KubeletState,
    allocations: Mapping[str, PodAllocation],
    pods: Mapping[str, Pod],
) -> Iterator[str]:
    yield from _missing_files(rules, state)
    if state.cpu is not None:
        for uid in sorted(inert_budgets(state.cpu)):
            yield f"pod {uid} is left out: it only has a budget whose CPUs are all free"
    for allocation in allocations.values():
        if not allocation.containers:
            yield (
                f"pod {allocation.uid} holds CPUs {allocation.cpus} without any container;"
                f" 'numawarden remove {allocation.uid}' frees them"
            )
    open_allocations = [
        uid for uid, allocation in allocations.items() if allocation.containers and uid not in pods
    ]
    if open_allocations:
        yield (
            f"known by uid alone until they are asked for: {len(open_allocations)} pods"
            f" ({', '.join(open_allocations)})"
        )


def _device_notes(
    rules: EffectivePolicy, allocations: Mapping[str, PodAllocation], pods: Mapping[str, Pod]
) -> Iterator[str]:
    """Yield the pods whose devices the agent would give again; a kubelet's plugins are no matter.

    Only of pods with a manifest is it known whether they have devices.
    """
    for uid in sorted({*allocations} & {*pods}):
        if resources := sorted(_asked_devices(rules, pods[uid])):
            yield (
                f"pod {full_name(pods[uid])} has devices ({', '.join(resources)}) that are not"
                " taken over, so another pod may be given them; end this pod before one asks for"
                " them"
            )


def _asked_devices(rules: EffectivePolicy, pod: Pod) -> set[str]:
    limits = rules.allocatable
    return {
        resource
        for container in pod.all_containers()
        for resource, amount in container.resources.limits.items()
        if amount.value
        and extended_resource_fault(resource) is None
        and not (limits is not None and limits.ignores(resource))
    }


def _missing_files(rules: EffectivePolicy, state: KubeletState) -> Iterator[str]:
    if state.cpu is None and rules.static_cpus:
        yield f"there is no {CPU_FILE}: no pod holds CPUs of its own"
    if state.memory is None and rules.static_memory:
        yield f"there is no {MEMORY_FILE}: no pod holds pinned memory"


_SUFFIXES: Final = (".json", ".yaml", ".yml")
_LISTS: Final = ("List", "PodList")
#: A cluster shows a static pod as a mirror with a uid of its own; this is the kubelet's uid for it.
_MIRRORED: Final = "kubernetes.io/config.mirror"


def read_pods(path: Path, desired: Collection[str], *, pod_level: bool) -> dict[str, Pod]:
    """Return the pods of the `desired` uids that a file, or the files of a directory, describe.

    A file is a Pod manifest or a list of pods (`kubectl get pods -o json`), YAML or JSON. Other
    pods are passed over unread. `pod_level` is the gate PodLevelResources. Raises `ManifestError`.
    """
    pods: dict[str, Pod] = {}
    for file in _manifests(path):
        for place, document in _documents(file):
            uid = _uid(document)
            if uid not in desired:
                continue
            source = f"{file}{place}"
            described = {**document, "metadata": {**_metadata(document), "uid": uid}}
            if uid in pods:
                raise ManifestError(source, (Mistake("metadata.uid", f"a second pod has {uid}"),))
            pods[uid] = pod_from_document(described, source, pod_level=pod_level)
    return pods


def _manifests(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())


def _documents(file: Path) -> Iterator[tuple[str, dict[str, Plain]]]:
    """Yield the pods of a file, unread, each with its place in the file."""
    document = _parsed(file)
    if isinstance(document, dict) and document.get("kind") in _LISTS:
        items = document.get("items")
        for number, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict):
                yield f" items[{number}]", item
    elif isinstance(document, dict) and document.get("kind") == "Pod":
        yield "", document
    else:
        problem = Mistake("kind", "expected a Pod, or a List of them", 1)
        raise ManifestError(str(file), (problem,))


def _parsed(file: Path) -> Plain:
    """Return the content of a file; a cluster's list in JSON may be larger than any manifest."""
    data = read_bounded(file)
    try:
        if data.lstrip().startswith(b"{"):
            parsed: Plain = json.loads(data)
            return parsed
        return plain(read_document(data))
    except UnreadableError as error:
        raise ManifestError(str(file), (error.problem,)) from error
    except (ValueError, RecursionError) as error:
        problem = Mistake("", f"this is not JSON: {error}")
        raise ManifestError(str(file), (problem,)) from error


def _uid(document: dict[str, Plain]) -> str:
    metadata = _metadata(document)
    annotations = metadata.get("annotations")
    mirrored = annotations.get(_MIRRORED) if isinstance(annotations, dict) else None
    uid = mirrored or metadata.get("uid")
    return uid if isinstance(uid, str) else ""


def _metadata(document: dict[str, Plain]) -> dict[str, Plain]:
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}
