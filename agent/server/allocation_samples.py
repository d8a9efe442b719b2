"""The gauges that cost more than others: verdicts, slow pods, shared cores, containers one by one.

In go policy, ledger, and what intrudes; out come samples, which are made again when one of these is
another one, not at every scrape, and a pod is judged again only when its allocation or what
intrudes on it is. With 4,096 CPUs a verdict takes 0.2 ms: for 1,500 pods that would be a third of a
second at each scrape, in which no other request is answered.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from agent.api.map import owners_of
from agent.api.map_warnings import shared_by
from agent.managers.allocation import Isolation
from agent.managers.metrics import Sample
from agent.managers.quality import verdict
from agent.pods.model import Quality
from agent.server import metrics as names
from agent.server.slowness import ALWAYS_KNOWN, known_causes
from sysfs.mask import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.isolation.report import LateInterrupt
    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.managers.ledger import Ledger
    from agent.managers.quality import Intrusion, Judgement
    from agent.managers.rules import EffectivePolicy

    #: The cgroups that may use exclusive CPUs of a pod they do not belong to, by that pod's uid.
    Intrusions: TypeAlias = Mapping[str, tuple[Intrusion, ...]]

#: The longest list of CPUs or nodes in a label, in characters. On a host with thousands of CPUs,
#: half of a container's core each, it would be tens of kilobytes in every series.
LONGEST_LIST: Final = 256


class AllocationSamples:
    """The samples of verdicts, slow pods, shared cores, and of containers one by one."""

    def __init__(self) -> None:
        #: What the last samples were made of, and those samples.
        self._inputs: (
            tuple[EffectivePolicy, Ledger, Intrusions, tuple[LateInterrupt, ...]] | None
        ) = None
        self._samples: tuple[Sample, ...] = ()
        #: The verdicts under the policy of `_inputs`, by uid, each behind what it was made of.
        self._verdicts: dict[
            str, tuple[PodAllocation, tuple[Intrusion, ...], tuple[Judgement, ...]]
        ] = {}

    def samples(
        self,
        rules: EffectivePolicy,
        ledger: Ledger,
        containers: int,
        intrusions: Intrusions = MappingProxyType({}),
        late: tuple[LateInterrupt, ...] = (),
    ) -> tuple[Sample, ...]:
        """Return the samples; `containers` is the most containers that are exported one by one.

        These are the first in the order of admission. `late` are interrupts as in `known_causes`.
        """
        last = self._inputs
        asked = (intrusions, late)
        if last is None or last[0] is not rules or last[1] is not ledger or last[2:] != asked:
            if last is not None and last[0] is not rules:
                self._verdicts.clear()
            samples = chain(
                self._verdict_samples(rules, ledger, intrusions),
                self._slow_samples(late),
                (Sample(names.SHARED_CORES, (), shared_cores(rules, ledger)),),
                _container_samples(rules, ledger, containers),
            )
            self._inputs, self._samples = (rules, ledger, intrusions, late), tuple(samples)
        return self._samples

    def _verdict_samples(
        self, rules: EffectivePolicy, ledger: Ledger, intrusions: Intrusions
    ) -> Iterator[Sample]:
        """Yield the samples of verdicts; judge only pods that changed, or whose intruders did."""
        before, self._verdicts = self._verdicts, {}
        for uid, allocation in ledger.allocations.items():
            entry, intruding = before.get(uid), intrusions.get(uid, ())
            if entry is None or entry[0] is not allocation or entry[1] != intruding:
                entry = allocation, intruding, verdict(rules, allocation, intruding)
            self._verdicts[uid] = entry
        counts = Counter(
            (judgement.quality, judgement.met)
            for _, _, judgements in self._verdicts.values()
            for judgement in judgements
        )
        for quality in Quality:
            for met in (True, False):
                labels = (str(quality), str(met).lower())
                yield Sample(names.VERDICTS, labels, counts[quality, met])

    def _slow_samples(self, late: tuple[LateInterrupt, ...]) -> Iterator[Sample]:
        """Yield how many of the judged pods have each cause."""
        pods = Counter(
            cause
            for allocation, intruding, judgements in self._verdicts.values()
            for cause in {
                each.cause for each in known_causes(allocation, judgements, intruding, late)
            }
        )
        for cause in ALWAYS_KNOWN:
            yield Sample(names.SLOW_PODS, (str(cause),), pods[cause])


def shared_cores(rules: EffectivePolicy, ledger: Ledger) -> int:
    """Return the number of physical cores whose online threads have different users, as on the map.

    At least one user is a pod or a container: a core whose threads are partly reserved and partly
    in the node's shared pool is not counted.
    """
    owners = owners_of(ledger.allocations.values())
    return sum(
        shared_by(owners.get(cpu, ()) for cpu in Mask(core.cpus))
        for core in rules.machine.cpus.cores
    )


def _container_samples(rules: EffectivePolicy, ledger: Ledger, most: int) -> Iterator[Sample]:
    """Yield the samples of at most `most` containers, and how many more there are; 0 is none."""
    if not most:
        return
    containers = [
        (allocation, container)
        for allocation in ledger.allocations.values()
        for container in allocation.containers
    ]
    for allocation, container in islice(containers, most):
        yield from _samples_of(rules, allocation, container)
    yield Sample(names.CONTAINERS_OMITTED, (), max(len(containers) - most, 0))


def _samples_of(
    rules: EffectivePolicy, allocation: PodAllocation, container: ContainerAllocation
) -> Iterator[Sample]:
    subject = (allocation.namespace, allocation.name, allocation.uid, container.name)
    allocated = (str(container.isolation), _listed(container.cpus), _listed(container.mems))
    yield Sample(names.CONTAINER_INFO, (*subject, *allocated), 1)
    if container.isolation is Isolation.CONTAINER and container.cpus:
        for node in rules.machine.cpus.nodes:
            if cpus := node.cpus & container.cpus.bits:
                labels = (*subject, str(node.id))
                yield Sample(names.CONTAINER_CPUS, labels, cpus.bit_count())


def _listed(ids: Mask | None) -> str:
    """Return ids as a list of a bounded length, such as `0-3,8`; a cut list ends in `...`."""
    text = "" if ids is None else str(ids)
    if len(text) <= LONGEST_LIST:
        return text
    whole = text[: LONGEST_LIST - 3].rpartition(",")[0]
    return f"{whole},..."
