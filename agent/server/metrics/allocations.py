"""Samples of what containers have: verdicts, shared cores, and containers one by one.

They follow from the policy and the ledger, and cost more than other gauges: they are made when one
of these is replaced, not at every scrape, and a pod is judged once. With 4,096 CPUs a verdict takes
0.2 ms, which would be a third of a second for 1,500 pods, in which no other request is answered.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from agent.api.host.mapped import owners_of, shared_by
from agent.managers.allocations.allocation import Isolation
from agent.managers.assessment.verdict import verdict
from agent.managers.decision import Sample
from agent.pods.requirements import Quality
from agent.server.metrics import names
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.managers.allocations.allocation import ContainerAllocation, PodAllocation
    from agent.managers.allocations.ledger import Ledger
    from agent.managers.assessment.verdict import Judgement
    from agent.managers.effective_policy import EffectivePolicy

#: The longest list of CPUs or nodes in a label, in characters. On a host with thousands of CPUs,
#: half of a container's core each, it would be tens of kilobytes in every series.
LONGEST_LIST: Final = 256


class AllocationSamples:
    """Samples that follow from the policy and the ledger, kept until one of these changes."""

    def __init__(self) -> None:
        self._of: tuple[EffectivePolicy, Ledger] | None = None
        self._made: tuple[Sample, ...] = ()
        #: The allocations that were judged under the policy, by uid.
        self._judged: dict[str, tuple[PodAllocation, tuple[Judgement, ...]]] = {}

    def samples(
        self, rules: EffectivePolicy, ledger: Ledger, containers: int
    ) -> tuple[Sample, ...]:
        """Return the samples, made again if the policy or the ledger is another one.

        `containers` is how many containers are exported one by one at most, in the order of
        admission.
        """
        if self._of is None or self._of[0] is not rules or self._of[1] is not ledger:
            if self._of is not None and self._of[0] is not rules:
                self._judged.clear()
            made = chain(
                self._verdicts(rules, ledger),
                (Sample(names.SHARED_CORES, (), shared_cores(rules, ledger)),),
                _each(rules, ledger, containers),
            )
            self._of, self._made = (rules, ledger), tuple(made)
        return self._made

    def _verdicts(self, rules: EffectivePolicy, ledger: Ledger) -> Iterator[Sample]:
        allocations = ledger.allocations
        self._judged = {
            uid: known
            if (known := self._judged.get(uid)) is not None and known[0] is allocation
            else (allocation, verdict(rules, allocation))
            for uid, allocation in allocations.items()
        }
        counted = Counter(
            (judgement.quality, judgement.met)
            for _, judgements in self._judged.values()
            for judgement in judgements
        )
        for quality in Quality:
            for met in (True, False):
                labels = (str(quality), str(met).lower())
                yield Sample(names.VERDICTS, labels, counted[quality, met])


def shared_cores(rules: EffectivePolicy, ledger: Ledger) -> int:
    """Return the number of physical cores whose online threads have different users.

    One user at least is a pod or a container (as on the map). A core of which some threads are
    reserved and the others are in the node's shared pool is not counted.
    """
    owners = owners_of(ledger.allocations.values())
    users = {
        cpu: frozenset((owner.uid, owner.container) for owner in owning)
        for cpu, owning in owners.items()
    }
    none: frozenset[tuple[str, str | None]] = frozenset()
    return sum(
        shared_by([users.get(cpu, none) for cpu in Mask(core.cpus)])
        for core in rules.machine.cpus.cores
    )


def _each(rules: EffectivePolicy, ledger: Ledger, most: int) -> Iterator[Sample]:
    """Yield the samples of single containers, and how many containers have none."""
    if not most:
        return
    containers = [
        (allocation, container)
        for allocation in ledger.allocations.values()
        for container in allocation.containers
    ]
    for allocation, container in islice(containers, most):
        yield from _one(rules, allocation, container)
    yield Sample(names.CONTAINERS_OMITTED, (), max(len(containers) - most, 0))


def _one(
    rules: EffectivePolicy, allocation: PodAllocation, container: ContainerAllocation
) -> Iterator[Sample]:
    subject = (allocation.namespace, allocation.name, allocation.uid, container.name)
    what = (str(container.isolation), _listed(container.cpus), _listed(container.mems))
    yield Sample(names.CONTAINER_INFO, (*subject, *what), 1)
    if container.isolation is Isolation.CONTAINER and container.cpus:
        for node in rules.machine.cpus.nodes:
            if cpus := node.cpus & container.cpus.bits:
                labels = (*subject, str(node.id))
                yield Sample(names.CONTAINER_CPUS, labels, cpus.bit_count())


def _listed(ids: Mask | None) -> str:
    """Return ids as a list of a bounded length: `0-3,8`, what is cut ends in `...`."""
    text = "" if ids is None else str(ids)
    if len(text) <= LONGEST_LIST:
        return text
    whole = text[: LONGEST_LIST - 3].rpartition(",")[0]
    return f"{whole},..."
