"""Whether another answer than the kubelet's is right, by rules that do not ask our own code.

Each function is one reason for a deliberate difference; the user documentation lists them.
"""

from __future__ import annotations

from itertools import combinations
from statistics import pstdev
from typing import TYPE_CHECKING, Any, Final

from agent.managers.cpu.manager import exclusive_cpus
from agent.managers.decision import Reason
from agent.managers.memory.state import memory_charge
from agent.managers.metrics import ALIGNED_COUNT
from agent.pods.model import HUGEPAGES_PREFIX, ContainerKind
from sysfs.mask import Mask
from tests.conformance.effective import asked_memory, effective_memory, with_defaults

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from agent.managers.cpu.topology import CpuTopology, Groups
    from agent.managers.decision import Decision, Rejection
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

_ROUNDING: Final = 0.0011
#: How a recording names the counter of containers within one uncore cache.
UNCORE_ALIGNED: Final = (
    "kubelet_container_aligned_compute_resources_count{boundary=uncore_cache,scope=container}"
)
_CORES_ALIGNED: Final = (
    "kubelet_container_aligned_compute_resources_count{boundary=physical_cpu,scope=container}"
)


def valid_instead(
    rules: EffectivePolicy,
    before: Ledger,
    pod: Pod,
    decision: Decision,
    expected: Mapping[str, Any],
) -> bool:
    """Return whether a decision is valid where the kubelet's rests on averages (irregular hosts).

    Of an admitted pod: its containers hold as many CPUs as the kubelet gives, only ones that were
    free, in no more NUMA nodes, sockets and cores than the kubelet's touch; with
    `full-pcpus-only` in whole cores. Where the kubelet's own answer hands out a CPU twice or
    splits a core it is not a measure: then ours has to give every container what it asks for. A
    rejection for the cores' sake is valid when the free whole cores do not add up to the request.
    """
    free = rules.assignable_cpus - exclusive_cpus(before)
    broken = expected["admitted"] and _is_broken(rules, free, pod, expected["pod"])
    if decision.allocation is None:
        return broken or _rejection_is_valid(rules, before, pod, decision, expected)
    if decision.allocation.exclusive_cpus - free:
        return False
    if broken:
        return as_many_as_asked(rules, decision, pod)
    if rules.policy.cpu.options.full_pcpus_only and not _whole_cores(rules, decision):
        return False
    if not expected["admitted"]:
        return as_many_as_asked(rules, decision, pod)
    return all(
        _no_wider(rules.machine.cpus, ours, theirs)
        for ours, theirs in _pairs(decision, expected["pod"])
    )


def valid_reservation(rules: EffectivePolicy, expected: Mapping[str, Any]) -> bool:
    """Return whether the reserved CPUs are as many as the kubelet's, and no further apart."""
    return _no_wider(rules.machine.cpus, rules.policy.cpu.reserved, _mask(expected["reserved"]))


def evenly_reserved(rules: EffectivePolicy, expected: Mapping[str, Any]) -> bool:
    """Return whether CPUs are reserved by quantity as evenly as the kubelet does, and as many.

    It asks `distribute-cpus-across-numa` there, too, and loses the best distribution alike.
    """
    if not rules.policy.cpu.options.distribute_cpus_across_numa:
        return False
    everything, theirs = rules.machine.cpus.all, Mask.parse(expected["reserved"])
    ours = rules.policy.cpu.reserved
    even = _unevenness(rules, everything - ours) <= _unevenness(rules, everything - theirs)
    return len(ours) == len(theirs) and ours <= everything and even


def evenly_distributed(
    rules: EffectivePolicy, before: Ledger, decision: Decision, expected: Mapping[str, Any]
) -> bool:
    """Return whether `distribute-cpus-across-numa` leaves the nodes at least as even as theirs.

    The kubelet loses the best distribution to slice aliasing on four nodes and more.
    """
    if not rules.policy.cpu.options.distribute_cpus_across_numa or decision.allocation is None:
        return False
    if not expected["admitted"]:
        return False
    free = rules.assignable_cpus - exclusive_cpus(before)
    theirs = Mask(0)
    for _, cpus in _pairs(decision, expected["pod"]):
        theirs |= cpus or Mask(0)
    ours = decision.allocation.exclusive_cpus
    same_numbers = all(
        (a is None) == (b is None) and len(a or ()) == len(b or ())
        for a, b in _pairs(decision, expected["pod"])
    )
    return (
        same_numbers
        and not ours - free
        and _unevenness(rules, free - ours) <= _unevenness(rules, free - theirs) + _ROUNDING
    )


def with_our_slices(
    rules: EffectivePolicy, decision: Decision, expected: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the recorded answer with our slices of a budget where they are the better ones.

    With `full-pcpus-only` (KEP-2625: no physical core is shared among containers), of a budget of
    the very same CPUs: every exclusive container has as many CPUs as the kubelet gives it, those
    that run at the same time have none in common and share fewer cores than the kubelet's, and the
    others have just what is left. Else the recorded answer as it is.
    """
    if not rules.policy.cpu.options.full_pcpus_only or decision.allocation is None:
        return expected
    allocation, theirs = decision.allocation, (expected.get("pod") or {})
    if allocation.cpus is None or _mask(theirs.get("cpus")) != allocation.cpus:
        return expected
    containers: dict[str, dict[str, Any]] = theirs["containers"]
    slices = {one.name: one.cpus or Mask(0) for one in allocation.containers}
    kinds = {one.name: one.kind for one in allocation.containers}
    their_slices = {name: Mask.parse(one["cpus"]) for name, one in containers.items()}
    own = {name for name, one in containers.items() if one["isolation"] == "container"}
    if (
        any(len(slices[name]) != len(their_slices[name]) for name in slices)
        or not _divides(allocation.cpus, slices, kinds, own)
        or _shared_cores(rules, slices, kinds, own)
        >= _shared_cores(rules, their_slices, kinds, own)
    ):
        return expected
    ours = {
        name: {**one, "cpus": str(slices[name]), "effective": str(slices[name])}
        for name, one in containers.items()
    }
    return {**expected, "pod": {**theirs, "containers": ours}}


def in_whole_cores(
    rules: EffectivePolicy,
    before: Ledger,
    pod: Pod,
    decision: Decision,
    expected: Mapping[str, Any],
) -> bool:
    """Return whether `full-pcpus-only` is kept where the kubelet tears cores on an even host.

    It compares the total of whole free cores and then takes any free CPUs of the hint's nodes. Of
    an admitted pod ours has all that is asked for, in free whole cores. A pod that it admits is
    rejected where the torn container has no whole cores among the kubelet's own nodes, or none of
    any nodes. Both reject, for want of alignment or of cores, only while half cores are free.
    """
    topology = rules.machine.cpus
    if not (rules.policy.cpu.options.full_pcpus_only and topology.cores_alike):
        return False
    free = rules.assignable_cpus - exclusive_cpus(before)
    if not expected["admitted"]:
        reasons = {expected["reason"], decision.rejection.reason if decision.rejection else ""}
        others = {Reason.TOPOLOGY_AFFINITY, Reason.SMT_ALIGNMENT}
        return reasons == others and _has_half_cores(rules, before)
    theirs = expected["pod"]
    torn = {
        name: len(cpus)
        for name, cpus in _taken_of_node(theirs).items()
        if _splits_a_core(topology, cpus)
    }
    if not torn:
        return False
    if decision.allocation is not None:
        only_free = not decision.allocation.exclusive_cpus - free
        return (
            only_free and _whole_cores(rules, decision) and as_many_as_asked(rules, decision, pod)
        )
    rejection = decision.rejection
    assert rejection is not None
    if rejection.reason is not Reason.TOPOLOGY_AFFINITY:
        return _no_whole_cores(rules, before, pod, rejection)
    named = rejection.container if rejection.container in torn else next(iter(torn))
    containers = theirs["containers"]
    hint = containers[named or next(iter(containers))]["hint"]
    inside = topology.cpus_in_nodes(Mask.from_ids(hint["mask"] or ())) & free
    return len(topology.whole_cores_in(inside)) < (rejection.asked or 0)


def reuses_cores(
    rules: EffectivePolicy,
    before: Ledger,
    pod: Pod,
    decision: Decision,
    expected: Mapping[str, Any],
) -> bool:
    """Return whether whole cores of ended init containers serve again with `full-pcpus-only`.

    The kubelet reuses them (KEP-753), but leaves them out when it counts the free cores, and so has
    rejected the pod. Admitted, ours has all that is asked for, in free whole cores (init containers
    of an uneven host perhaps not). Rejected, more containers got whole cores than the kubelet gave.
    """
    wants = rules.policy.cpu.options.full_pcpus_only and not expected["admitted"]
    if not wants or expected["reason"] != Reason.SMT_ALIGNMENT:
        return False
    if not any(each.is_standard_init and each.cpus for each in rules.demand(pod).containers):
        return False
    if decision.allocation is None:
        ours = decision.counters.get((ALIGNED_COUNT.name, ("container", "physical_cpu")), 0)
        return bool(ours > expected["metrics"].get(_CORES_ALIGNED, 0))
    free, topology = rules.assignable_cpus - exclusive_cpus(before), rules.machine.cpus
    torn = any(
        _splits_a_core(topology, one.cpus)
        for one in decision.allocation.containers
        if one.cpus and (topology.cores_alike or one.kind is not ContainerKind.INIT)
    )
    beside = decision.allocation.cpus is not None or decision.allocation.exclusive_cpus - free
    return not torn and not beside and as_many_as_asked(rules, decision, pod)


def _has_half_cores(rules: EffectivePolicy, before: Ledger) -> bool:
    """Return whether only a part of some core is free."""
    free = (rules.assignable_cpus - exclusive_cpus(before)).bits
    return any(core.cpus & free not in (0, core.cpus) for core in rules.machine.cpus.cores)


def drops_budget(rules: EffectivePolicy, before: Ledger, pod: Pod, decision: Decision) -> bool:
    """Return whether `spec.resources` counts for nothing with the gate PodLevelResources off.

    An API server drops the field; the recorded kubelet was asked without one. Admitted, a pod has
    what its containers ask for, of free CPUs; rejected, some container asks for CPUs or memory.
    """
    if rules.policy.gates.pod_level_resources or pod.resources is None:
        return False
    if decision.allocation is None:
        demand = rules.demand(pod)
        return any(each.may_have(m.name) for each in demand.containers for m in rules.managers)
    taken = decision.allocation.exclusive_cpus
    whole = decision.allocation.cpus is None and not taken - (
        rules.assignable_cpus - exclusive_cpus(before)
    )
    return whole and as_many_as_asked(rules, decision, pod)


def _taken_of_node(allocation: Mapping[str, Any]) -> dict[str | None, Mask]:
    """Return the CPUs that a recorded pod took: its budget (None), or those of its containers."""
    budget = _mask(allocation["cpus"])
    if budget is not None:
        return {None: budget}
    return {
        name: Mask.parse(one["cpus"])
        for name, one in allocation["containers"].items()
        if one["isolation"] == "container"
    }


def on_fewer_sockets(
    rules: EffectivePolicy, before: Ledger, decision: Decision, expected: Mapping[str, Any]
) -> bool:
    """Return whether `align-by-socket` is served better: on fewer sockets than by the kubelet.

    Counted are the sockets of each container's exclusive CPUs and of the nodes that it is aligned
    to. Of the containers in the order of admission the first that differs has to be on fewer: what
    it leaves to the next ones is another set of CPUs. All have as many, and only free ones.
    """
    if not rules.policy.cpu.options.align_by_socket or decision.allocation is None:
        return False
    if not expected["admitted"]:
        return False
    pairs = list(_pairs(decision, expected["pod"]))
    if any((a is None) != (b is None) or len(a or ()) != len(b or ()) for a, b in pairs):
        return False
    if decision.allocation.exclusive_cpus - (rules.assignable_cpus - exclusive_cpus(before)):
        return False
    ours, theirs = _sockets(rules, decision, expected)
    return ours < theirs


def on_closer_nodes(
    rules: EffectivePolicy, decision: Decision, expected: Mapping[str, Any]
) -> bool:
    """Return whether `prefer-closest-numa-nodes` is served better where ids of nodes have gaps.

    The kubelet looks the distances of a node up by its id in a row that has none of the gaps. Of
    the containers in the order of admission the first that differs has to be aligned to as many
    nodes that are no farther apart: what it leaves to the next ones is another choice.
    """
    nodes = rules.machine.nodes
    gaps = [node.id for node in nodes] != list(range(len(nodes)))
    if (
        not (gaps and rules.policy.topology.prefer_closest_numa_nodes)
        or decision.allocation is None
    ):
        return False
    distances = {node.id: node.distances for node in nodes}
    for container in decision.allocation.containers if expected["admitted"] else ():
        ours = Mask(container.hint.nodes or 0)
        theirs = Mask.from_ids(expected["pod"]["containers"][container.name]["hint"]["mask"] or ())
        if ours != theirs:
            apart = [sum(distances[a][b] for a in set_ for b in set_) for set_ in (ours, theirs)]
            return len(ours) == len(theirs) and apart[0] <= apart[1]
    return False


def caches_of_rejected(
    rules: EffectivePolicy, before: Ledger, decision: Decision, expected: Mapping[str, Any]
) -> tuple[str, int] | None:
    """Return how many containers of a rejected pod may be counted as within a cache, and the rule.

    A container that got CPUs before its pod was rejected for the same reason may have got those of
    one socket with `align-by-socket`, or of whole cores with `full-pcpus-only`, where the kubelet
    tore them. What it got is not recorded, so there is nothing to compare the number of caches
    with. None: the number is to be as it is.
    """
    if decision.rejection is None or expected["admitted"]:
        return None
    ours = decision.counters.get((ALIGNED_COUNT.name, ("container", "uncore_cache")), 0)
    same = ours == expected["metrics"].get(UNCORE_ALIGNED, 0)
    if same or decision.rejection.reason != expected["reason"]:
        return None
    if rules.policy.cpu.options.align_by_socket:
        return "fewer sockets", ours
    tears = rules.policy.cpu.options.full_pcpus_only and rules.machine.cpus.cores_alike
    return ("whole cores", ours) if tears and _has_half_cores(rules, before) else None


def is_invalid(pod: Mapping[str, Any]) -> bool:
    """Return whether the API server rejects a recorded pod for what the recording did not look at.

    It asks for less than nothing, or for more huge pages than its pod-level budget has.
    """
    return _has_negative_amounts(pod) or _exceeds_pages(pod)


def _exceeds_pages(pod: Mapping[str, Any]) -> bool:
    budget = asked_memory({"resources": pod["spec"].get("resources") or {}})
    together = effective_memory(with_defaults(pod))
    return any(
        together.get(name, 0) > size
        for name, size in budget.items()
        if name.startswith(HUGEPAGES_PREFIX)
    )


def _has_negative_amounts(pod: Mapping[str, Any]) -> bool:
    spec = pod["spec"]
    parts = [*spec.get("initContainers", ()), *spec["containers"], spec]
    return any(
        str(amount).startswith("-")
        for part in parts
        for amounts in part.get("resources", {}).values()
        for amount in amounts.values()
    )


def same_memory_in_all(ledger: Ledger, expected: Mapping[str, Any]) -> bool:
    """Return whether the charges add up to the kubelet's over all nodes, type by type."""
    ours: dict[str, int] = {}
    theirs: dict[str, int] = {}
    for node, memory in expected.get("mem_nodes", {}).items():
        for kind, (_, reserved) in memory["memory"].items():
            theirs[kind] = theirs.get(kind, 0) + reserved
            charged = memory_charge(ledger)[int(node)].reserved.get(kind, 0)
            ours[kind] = ours.get(kind, 0) + charged
    return ours == theirs


def _is_broken(rules: EffectivePolicy, free: Mask, pod: Pod, allocation: Mapping[str, Any]) -> bool:
    """Return whether a recorded allocation takes busy CPUs, overlaps in itself, or splits a core.

    Or divides a budget wrongly: into CPUs outside of it, or, with `full-pcpus-only`, into a slice
    that tears a core apart though whole ones add up to it.
    """
    slices = {
        name: Mask.parse(container["cpus"])
        for name, container in allocation["containers"].items()
        if container["isolation"] == "container"
    }
    together = [
        slices[container.name]
        for container in pod.all_containers()
        if container.name in slices and container.kind is not ContainerKind.INIT
    ]
    overlaps = any(one & other for one, other in combinations(together, 2))
    budget = _mask(allocation["cpus"])
    if budget is not None and _is_divided_wrongly(rules, budget, allocation, slices.values()):
        return True
    taken = list(slices.values()) if budget is None else [budget]
    splits = rules.policy.cpu.options.full_pcpus_only and any(
        _splits_a_core(rules.machine.cpus, cpus) for cpus in taken
    )
    return overlaps or splits or any(cpus - free for cpus in taken)


def _is_divided_wrongly(
    rules: EffectivePolicy, budget: Mask, allocation: Mapping[str, Any], slices: Iterable[Mask]
) -> bool:
    outside = any(
        Mask.parse(container["cpus"]) - budget
        for container in allocation["containers"].values()
        if container["cpus"] is not None
    )
    if outside or not rules.policy.cpu.options.full_pcpus_only:
        return outside
    cores = [core.cpus & budget.bits for core in rules.machine.cpus.cores]
    sums = {0}
    for core in cores:
        sums |= {total + core.bit_count() for total in sums}
    return any(
        len(part) in sums and any(core & part.bits not in (0, core) for core in cores)
        for part in slices
    )


def as_many_as_asked(rules: EffectivePolicy, decision: Decision, pod: Pod) -> bool:
    """Return whether an admitted pod and its containers have as many CPUs as they ask for.

    Without the static policy no pod has CPUs of its own.
    """
    assert decision.allocation is not None
    if not rules.static_cpus:
        return not decision.allocation.exclusive_cpus
    demand = rules.demand(pod)
    if decision.allocation.cpus is not None and len(decision.allocation.cpus) != demand.cpus:
        return False
    given = {container.name: container.cpus for container in decision.allocation.containers}
    return all(len(given[c.name] or ()) == c.cpus for c in demand.containers if c.cpus)


def _rejection_is_valid(
    rules: EffectivePolicy,
    before: Ledger,
    pod: Pod,
    decision: Decision,
    expected: Mapping[str, Any],
) -> bool:
    assert decision.rejection is not None
    if not expected["admitted"]:
        # What earlier containers got, and left, is not recorded of a rejected pod.
        first = next((c.name for c in rules.demand(pod).containers if c.cpus), None)
        later = decision.rejection.container not in (None, first)
        return bool(decision.rejection.reason == expected["reason"]) or later
    return _no_whole_cores(rules, before, pod, decision.rejection)


def _no_whole_cores(rules: EffectivePolicy, before: Ledger, pod: Pod, rejection: Rejection) -> bool:
    """Return whether no whole cores are free that make up the request.

    Once an earlier container of the pod has taken some, nothing is known of what was left.
    """
    if rejection.reason is not Reason.SMT_ALIGNMENT or rejection.asked is None:
        return False
    first = next((c.name for c in rules.demand(pod).containers if c.cpus), None)
    free = rules.assignable_cpus - exclusive_cpus(before) - rules.closed_physical_cpus
    sums = {0}
    for core in rules.machine.cpus.cores:
        if not core.cpus & ~free.bits:
            sums |= {total + core.size for total in sums}
    return rejection.asked not in sums or rejection.container not in (None, first)


def _whole_cores(rules: EffectivePolicy, decision: Decision) -> bool:
    assert decision.allocation is not None
    parts = [decision.allocation.cpus] if decision.allocation.cpus is not None else [
        container.cpus for container in decision.allocation.containers
    ]  # fmt: skip
    return not any(_splits_a_core(rules.machine.cpus, cpus) for cpus in parts if cpus is not None)


def _splits_a_core(topology: CpuTopology, cpus: Mask) -> bool:
    return any(core.cpus & cpus.bits not in (0, core.cpus) for core in topology.cores)


def _pairs(
    decision: Decision, expected: Mapping[str, Any]
) -> Iterator[tuple[Mask | None, Mask | None]]:
    assert decision.allocation is not None
    yield decision.allocation.cpus, _mask(expected["cpus"])
    for container in decision.allocation.containers:
        yield container.cpus, _mask(expected["containers"][container.name]["cpus"])


def _no_wider(topology: CpuTopology, ours: Mask | None, theirs: Mask | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return len(ours) == len(theirs) and all(
        _touched(groups, ours) <= _touched(groups, theirs)
        for groups in (topology.nodes, topology.sockets, topology.cores)
    )


def _unevenness(rules: EffectivePolicy, left: Mask) -> float:
    return pstdev((node.cpus & left.bits).bit_count() for node in rules.machine.cpus.nodes)


def _divides(
    budget: Mask,
    slices: Mapping[str, Mask],
    kinds: Mapping[str, ContainerKind],
    own: Collection[str],
) -> bool:
    """Return whether slices lie inside the budget, apart, and leave all others just the rest."""
    running = Mask(0)
    for name, cpus in slices.items():
        if kinds[name] is ContainerKind.INIT:
            if cpus - budget or cpus & running:
                return False
        elif name in own:
            if cpus - budget or cpus & running:
                return False
            running |= cpus
    rest = budget - running
    shared = (n for n in slices if n not in own and kinds[n] is not ContainerKind.INIT)
    return all(slices[name] == rest for name in shared)


def _shared_cores(
    rules: EffectivePolicy,
    slices: Mapping[str, Mask],
    kinds: Mapping[str, ContainerKind],
    own: Collection[str],
) -> int:
    """Count over all cores and pairs of exclusive containers at one time: those that share it."""
    shared, running = 0, list[Mask]()
    for name, cpus in slices.items():
        if name in own:
            shared += sum(
                1
                for other in running
                for core in rules.machine.cpus.cores
                if core.cpus & cpus.bits and core.cpus & other.bits
            )
            if kinds[name] is not ContainerKind.INIT:
                running.append(cpus)
    return shared


def _sockets(
    rules: EffectivePolicy, decision: Decision, expected: Mapping[str, Any]
) -> tuple[list[int], list[int]]:
    """Return how many sockets CPUs and hints touch, the budget first: ours and theirs."""
    assert decision.allocation is not None
    topology, theirs = rules.machine.cpus, expected["pod"]

    def touched(cpus: Mask | None) -> int:
        return _touched(topology.sockets, cpus or Mask(0))

    our_sockets = [touched(decision.allocation.cpus)]
    their_sockets = [touched(_mask(theirs["cpus"]))]
    for container in decision.allocation.containers:
        other = theirs["containers"][container.name]
        if other["isolation"] == "container":
            our_sockets.append(touched(container.cpus))
            their_sockets.append(touched(_mask(other["cpus"])))
        aligned = Mask(container.hint.nodes or 0), Mask.from_ids(other["hint"]["mask"] or ())
        our_sockets.append(touched(topology.cpus_in_nodes(aligned[0])))
        their_sockets.append(touched(topology.cpus_in_nodes(aligned[1])))
    return our_sockets, their_sockets


def _touched(groups: Groups, cpus: Mask) -> int:
    return sum(1 for group in groups if group.cpus & cpus.bits)


def _mask(text: str | None) -> Mask | None:
    return None if text is None else Mask.parse(text)
