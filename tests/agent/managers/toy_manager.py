"""A resource manager of something that no package knows: lanes, so many on each NUMA node.

A pod asks for them by the limit `example.com/lane`. A container has lanes of one node; no two pods
have the same. The part of a container's allocation is a list of names, `1.0` being the first lane
of node 1, the part of the ledger is the set of the lanes of all pods.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from agent.managers.decision import Reason, Rejected, Rejection
from agent.managers.demand import PodPart, ResourceDemand
from agent.managers.metrics import MetricSpec, MetricType, Sample, gauge
from agent.managers.resource_manager import ResourceManager
from agent.managers.topology.hint import Hint
from agent.managers.violations import Violation
from sysfs.mask import EMPTY, Mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.demand import ContainerDemand, PodDemand, PodRequest
    from agent.managers.host import HostPolicy
    from agent.managers.ledger import Ledger
    from agent.managers.resource_manager import Draft
    from agent.managers.topology.many_nodes import ProviderHints

LANE: Final = "example.com/lane"
LANES: Final = gauge("toy_lanes", "Lanes of a NUMA node by state.", "numa_node", "state")
TAKEN: Final = MetricSpec(
    "toy_lanes_taken_total", MetricType.COUNTER, "Lanes that were ever allocated."
)
LANE_GONE: Final = "lane gone"

Lanes = frozenset[str]


class LaneDraft(PodPart):
    """`containers` are lists of lanes by name, `free` the lanes that no pod has."""

    free: Lanes = frozenset()


class ToyManager(ResourceManager):
    """The manager of so many lanes on each node, by the number of the node.

    `most` is how many lanes all pods together may have, None for no such limit.
    """

    name = "lanes"
    counters = (TAKEN,)
    gauges = (LANES,)
    rule_names = (LANE_GONE,)

    def __init__(self, lanes: Mapping[int, int], most: int | None = None) -> None:
        self.most = most
        self.lanes: Lanes = frozenset(
            f"{node}.{number}" for node, count in lanes.items() for number in range(count)
        )

    def demand(self, request: PodRequest) -> ResourceDemand:
        amounts = tuple(
            each.resources.limits[LANE].value if LANE in each.resources.limits else 0
            for each in request.containers
        )
        exclusive = tuple(amount > 0 for amount in amounts)
        why = tuple("it limits its lanes" if each else "it limits no lanes" for each in exclusive)
        return ResourceDemand(sum(amounts), amounts, active=True, exclusive=exclusive, why=why)

    def amount(self, demanded: int, resource: str) -> int:
        del resource
        return demanded

    def start(self, rules: HostPolicy, part: Lanes, demand: PodDemand) -> LaneDraft:
        del rules, demand
        return LaneDraft(free=self.lanes - part)

    def container_hints(self, draft: Draft, container: ContainerDemand) -> ProviderHints:
        return self._hints(draft, container.part(self.name))

    def pod_hints(self, draft: Draft) -> ProviderHints:
        return self._hints(draft, draft.demand.parts[self.name].pod)

    def _hints(self, draft: Draft, count: int) -> ProviderHints:
        if not count:
            return {}
        free = _by_node(self._own(draft).free)
        return {LANE: [Hint(1 << n, preferred=True) for n, some in free.items() if some >= count]}

    def _own(self, draft: Draft) -> LaneDraft:
        own: LaneDraft = draft.parts[self.name]
        return own

    def allocate(self, draft: Draft, container: ContainerDemand, hint: Hint) -> None:
        count, own = container.part(self.name), self._own(draft)
        if not count:
            return
        near = [lane for lane in sorted(own.free) if hint.nodes is None or _on(lane, hint.nodes)]
        if len(near) < count:
            raise Rejected(
                Rejection(
                    Reason.UNEXPECTED, f"{count} lanes asked, {len(near)} free", resource=LANE
                )
            )
        own.containers[container.name] = near[:count]
        own.free -= set(near[:count])
        draft.count(TAKEN.name, by=count)

    def veto(self, draft: Draft, ledger: Ledger, allocation: PodAllocation) -> Rejection | None:
        del draft, allocation
        taken = len(ledger.parts[self.name])
        if self.most is None or taken <= self.most:
            return None
        message = f"{taken} lanes would be taken, {self.most} may be"
        return Rejection(Reason.UNEXPECTED, message, resource=LANE)

    def free(self, draft: Draft, resource: str) -> Mapping[int, int]:
        del resource
        return _by_node(self._own(draft).free)

    def nodes(
        self,
        rules: HostPolicy,
        allocation: PodAllocation,
        container: ContainerAllocation | None,
    ) -> Mask:
        del rules
        containers = allocation.containers if container is None else (container,)
        lanes = (lane for each in containers for lane in self._of(each))
        return Mask.from_ids(map(_node, lanes)) or EMPTY

    def allocatable(self, rules: HostPolicy) -> Mapping[str, int]:
        del rules
        return {LANE: len(self.lanes)}

    def empty(self, rules: HostPolicy) -> Lanes:
        del rules
        return frozenset()

    def charged(self, rules: HostPolicy, part: Lanes, allocation: PodAllocation) -> Lanes:
        del rules
        return part.union(*map(self._of, allocation.containers))

    def released(self, rules: HostPolicy, part: Lanes, allocation: PodAllocation) -> Lanes:
        del rules
        return part.difference(*map(self._of, allocation.containers))

    def loaded(self, saved: None, allocations: Iterable[PodAllocation]) -> Lanes:
        del saved
        lanes = (lane for pod in allocations for each in pod.containers for lane in self._of(each))
        return frozenset(lanes)

    def renumbered(self, allocated: list[str], moves: Mapping[int, int]) -> list[str]:
        return [f"{moves.get(_node(lane), _node(lane))}.{lane.split('.')[1]}" for lane in allocated]

    def violations(
        self, rules: HostPolicy, ledger: Ledger, offline: Mask
    ) -> Callable[[PodAllocation], Iterable[Violation]]:
        del rules, ledger, offline
        return self._violations

    def _violations(self, allocation: PodAllocation) -> Iterator[Violation]:
        for container in allocation.containers:
            for lane in set(self._of(container)) - self.lanes:
                message = f"has lane {lane}, which is gone"
                yield Violation.of(allocation, LANE_GONE, message, container=container.name)

    def samples(self, rules: HostPolicy, ledger: Ledger) -> Iterator[Sample]:
        del rules
        taken: Lanes = ledger.parts[self.name]
        sample = partial(Sample, LANES)
        for node, count in _by_node(self.lanes - taken).items():
            yield sample((str(node), "free"), count)
        for node, count in _by_node(taken).items():
            yield sample((str(node), "taken"), count)

    def _of(self, container: ContainerAllocation) -> Iterable[str]:
        return container.part(self.name) or ()


def _node(lane: str) -> int:
    return int(lane.split(".", maxsplit=1)[0])


def _on(lane: str, nodes: int) -> bool:
    return bool(nodes >> _node(lane) & 1)


def _by_node(lanes: Lanes) -> dict[int, int]:
    nodes = [_node(lane) for lane in lanes]
    return {node: nodes.count(node) for node in sorted(set(nodes))}
