from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from hypothesis import given, settings

from agent.api.map import map_of_allocations
from agent.managers import admission
from agent.managers.allocation import ContainerAllocation, Isolation, PodAllocation
from agent.managers.quality import verdict
from agent.pods.model import ContainerKind, QosClass, Quality
from agent.server import gauges as allocations
from agent.server import metrics as names
from agent.server.gauges import LONGEST_LIST, AllocationSamples, shared_cores
from sysfs.mask import Mask
from tests.agent.api.maps import occupied_hosts
from tests.agent.managers.drafts import with_pod
from tests.agent.managers.hosts import SMT, make_rules
from tests.agent.managers.ledgers import ledger_with
from tests.agent.pods.pods import app, guaranteed, pod

if TYPE_CHECKING:
    import pytest

    from agent.managers.ledger import Ledger
    from agent.managers.metrics import MetricSpec
    from agent.managers.quality import Judgement
    from agent.managers.rules import EffectivePolicy
    from tests.agent.api.maps import Occupied

RULES = make_rules(SMT)


def values(metric: MetricSpec, ledger: Ledger, containers: int = 0) -> dict[tuple[str, ...], float]:
    found = AllocationSamples().samples(RULES, ledger, containers)
    return {sample.labels: sample.value for sample in found if sample.metric is metric}


def with_cpus(uid: str, cpus: Mask) -> PodAllocation:
    """Return a pod of one container with exclusive CPUs."""
    container = ContainerAllocation("c0", ContainerKind.APP, Isolation.CONTAINER, cpus)
    return PodAllocation(uid, f"pod-{uid}", "shop", QosClass.GUARANTEED, "", (container,))


@settings(max_examples=60, deadline=None)
@given(occupied_hosts())
def test_as_many_cores_are_shared_as_the_map_warns_of(case: Occupied) -> None:
    drawn = map_of_allocations(case.host, case.rules, case.ledger)
    owners = {cpu.id: {(each.uid, each.container) for each in cpu.owners} for cpu in drawn.cpus}
    threads: dict[int, list[int]] = defaultdict(list)
    for cpu in case.host.cpus:
        if cpu.online:
            threads[-1 - cpu.id if cpu.core is None else cpu.core].append(cpu.id)
    expected = [
        ids
        for ids in threads.values()
        if len({frozenset(owners[cpu]) for cpu in ids}) > 1
        or any(len(owners[cpu]) > 1 for cpu in ids)
    ]
    assert shared_cores(case.rules, case.ledger) == len(expected)


@settings(max_examples=30, deadline=None)
@given(occupied_hosts())
def test_every_judgement_is_counted_once_and_every_pair_of_labels_is_there(case: Occupied) -> None:
    found = {
        sample.labels: sample.value
        for sample in AllocationSamples().samples(case.rules, case.ledger, 0)
        if sample.metric is names.VERDICTS
    }
    judged = Counter(
        (str(one.quality), "true" if one.met else "false")
        for allocation in case.ledger.allocations.values()
        for one in verdict(case.rules, allocation)
    )
    pairs = {(str(quality), met) for quality in Quality for met in ("true", "false")}
    assert found == {pair: judged[pair] for pair in pairs}


def test_no_container_is_exported_unless_it_is_asked_for() -> None:
    ledger = ledger_with(with_cpus("a", Mask.of(1)))
    for metric in (names.CONTAINER_INFO, names.CONTAINER_CPUS, names.CONTAINERS_OMITTED):
        assert values(metric, ledger) == {}


def test_a_container_is_exported_with_its_names_its_cpus_and_its_memory_nodes() -> None:
    two, shared = guaranteed("cpu=2 memory=1Gi"), guaranteed("cpu=500m memory=1Gi")
    desired = pod(app("own", two), app("rest", shared), of_pod=guaranteed("cpu=4 memory=4Gi"))
    ledger = with_pod(RULES, desired)
    (allocation,) = ledger.allocations.values()
    subject = (allocation.namespace, allocation.name, allocation.uid)
    own, rest = allocation.containers
    assert own.cpus
    assert values(names.CONTAINER_INFO, ledger, 10) == {
        (*subject, each.name, str(each.isolation), str(each.cpus), str(each.mems)): 1
        for each in (own, rest)
    }
    assert values(names.CONTAINER_CPUS, ledger, 10) == {(*subject, "own", "0"): 2}
    assert values(names.CONTAINERS_OMITTED, ledger, 10) == {(): 0}


def test_a_container_in_the_shared_pool_has_no_cpus_in_its_labels() -> None:
    """The pool changes with every exclusive pod: each time all of its series would be new."""
    ledger = with_pod(RULES, pod(app("c")))
    ((*_, cpus, nodes),) = values(names.CONTAINER_INFO, ledger, 10)
    assert (cpus, nodes) == ("", "")


def test_containers_beyond_the_limit_are_counted() -> None:
    ledger = ledger_with(*(with_cpus(str(number), Mask.of(number)) for number in range(5)))
    exported = values(names.CONTAINER_INFO, ledger, 2)
    assert [uid for _, _, uid, *_ in exported] == ["0", "1"]
    assert values(names.CONTAINERS_OMITTED, ledger, 2) == {(): 3}


def test_the_cpus_of_a_container_on_several_nodes_are_counted_by_node() -> None:
    ledger = ledger_with(with_cpus("a", Mask.parse("1-2,4,9-10")))
    found = values(names.CONTAINER_CPUS, ledger, 1)
    assert {node: cpus for (*_, node), cpus in found.items()} == {"0": 4, "1": 1}


def test_a_label_stays_short_however_many_cpus_a_container_has() -> None:
    every_other = Mask.from_ids(range(0, 4096, 2))
    ((*_, cpus, _),) = values(names.CONTAINER_INFO, ledger_with(with_cpus("a", every_other)), 1)
    assert len(cpus) <= LONGEST_LIST
    *listed, cut = cpus.split(",")
    assert cut == "..."
    assert [int(each) for each in listed] == list(range(0, 2 * len(listed), 2))


def test_the_samples_are_made_once_for_each_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Ledger] = []

    def counting(rules: object, ledger: Ledger) -> int:
        del rules
        made.append(ledger)
        return 0

    monkeypatch.setattr(allocations, "shared_cores", counting)
    ledger = with_pod(RULES, pod(app("c", guaranteed("cpu=2 memory=1Gi"))))
    kept = AllocationSamples()
    first = kept.samples(RULES, ledger, 1)
    assert kept.samples(RULES, ledger, 1) is first
    (uid,) = ledger.allocations
    without = admission.remove(RULES, ledger, uid)
    assert kept.samples(RULES, without, 1) != first
    assert made == [ledger, without]


def test_a_pod_is_judged_once_under_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []

    def judging(rules: EffectivePolicy, allocation: PodAllocation) -> tuple[Judgement, ...]:
        judged.append(allocation.uid)
        return verdict(rules, allocation)

    monkeypatch.setattr(allocations, "verdict", judging)
    kept = AllocationSamples()
    one = with_pod(RULES, pod(app("c", guaranteed("cpu=2 memory=1Gi")), uid="one"))
    both = with_pod(RULES, pod(app("c", guaranteed("cpu=2 memory=1Gi")), uid="two"), one)
    for ledger in (one, both, admission.remove(RULES, both, "one"), both):
        assert kept.samples(RULES, ledger, 0) == AllocationSamples().samples(RULES, ledger, 0)
    fresh = ["one", "one", "two", "two", "one", "two"]
    assert sorted(judged) == sorted([*fresh, "one", "two", "one"])
    judged.clear()
    other = make_rules(SMT, reserved="0-1")
    assert kept.samples(other, both, 0) == AllocationSamples().samples(other, both, 0)
    assert judged == ["one", "two"] * 2
