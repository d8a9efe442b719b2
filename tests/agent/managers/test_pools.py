"""Pools of shared CPUs: which pod is in which, what is rejected, and on which CPUs pods run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.managers.admission import admit, remove
from agent.managers.cpu.manager import exclusive_cpus, shared_cpus
from agent.managers.cpu.topology import CpuTopology
from agent.managers.machine import Machine
from agent.managers.policy import Cordon, Pool, PoolMemory, TopologyManagerScope
from agent.managers.pools import pod_pools, pool_of, shared_cpus_of
from agent.managers.quality import invalid_allocations
from agent.managers.resize import resize
from agent.managers.trials import advise
from agent.managers.violations import Rule
from agent.pods.model import POOL, QosClass
from agent.pods.validation import find_problems
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.drafts import allocated, rejected, with_pod
from tests.agent.managers.hosts import BEST_EFFORT, CONTAINER, PLAIN, POD, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod, resources

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy
    from agent.pods.model import Pod

CLASSES: Final = frozenset({QosClass.BEST_EFFORT})
POOLS: Final = (
    Pool("near", Mask.parse("0-3")),
    Pool("team", Mask.parse("4-7"), namespaces=("team",)),
    Pool("batch", Mask.parse("8-15"), qos_classes=CLASSES, memory=PoolMemory.BOUND),
)


OWN: Final = app("main", guaranteed("cpu=2 memory=1Gi"))


def pooled(rules: EffectivePolicy, *pools: Pool) -> EffectivePolicy:
    return replace(rules, policy=replace(rules.policy, pools=pools or POOLS))


RULES: Final = pooled(make_rules(topology=BEST_EFFORT))


def in_pool(name: str = "", *, uid: str = "u-0", namespace: str = "default", cpu: str = "") -> Pod:
    """Return a pod without CPUs of its own: BestEffort, or Burstable with a request."""
    annotations = {POOL: name} if name else None
    container = app("main", resources(f"cpu={cpu}") if cpu else None)
    return replace(pod(container, uid=uid, annotations=annotations), namespace=namespace)


def own(cpus: int, uid: str = "u-1") -> Pod:
    return pod(app("main", guaranteed(f"cpu={cpus} memory=1Gi")), uid=uid)


def filled(rules: EffectivePolicy, ledger: Ledger) -> Ledger:
    """Return the ledger in which another pod has all CPUs that are free but 1-4."""
    free = Mask.parse("1-4")
    return with_pod(rules.without(free), own(len(rules.open_cpus - free), "others"), ledger)


#: The pod, and the name of its pool.
CHOICES: Final[dict[str, tuple[Pod, str]]] = {
    "its annotation": (in_pool("near"), "near"),
    "its annotation before its namespace and class": (in_pool("near", namespace="team"), "near"),
    "its namespace": (in_pool(cpu="1", namespace="team"), "team"),
    "its namespace before its class": (in_pool(namespace="team"), "team"),
    "its class": (in_pool(), "batch"),
    "none": (in_pool(cpu="1"), ""),
    "none with CPUs of its own": (replace(own(2), namespace="team"), ""),
    "that of its container without CPUs of its own": (
        replace(pod(OWN, app("rest", guaranteed("cpu=500m memory=1Gi"))), namespace="team"),
        "team",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "name"), CHOICES.values(), ids=CHOICES)
def test_a_pod_is_in_one_pool_by_annotation_namespace_or_class(asked: Pod, name: str) -> None:
    found = pool_of(RULES.policy, allocated(RULES, asked))
    assert ("" if found is None else found.name) == name


def test_no_pod_is_in_a_pool_where_there_are_none() -> None:
    rules = make_rules()
    allocation = allocated(rules, in_pool())
    assert pool_of(rules.policy, allocation) is None
    assert pod_pools(rules, (allocation,), PLAIN.cpus.all) == {}
    assert shared_cpus_of(rules, allocation, PLAIN.cpus.all) == PLAIN.cpus.all


def test_a_pool_that_does_not_exist_is_rejected_with_those_that_do() -> None:
    for rules, names in ((RULES, "it has near, team, batch"), (make_rules(), "it has none")):
        rejection = rejected(rules, in_pool("nearby"))
        assert "names the pool nearby" in rejection.message
        assert rejection.message.endswith(names)
        [advice] = filter(None, advise(rules, rules.empty_ledger(), in_pool("nearby")))
        assert advice.text.startswith(f"leave out the annotation {POOL} (it runs in another pool")
    [mistake] = find_problems(in_pool("Near by"))
    assert '"Near by" is not the name of a pool' in str(mistake)


def test_a_bound_pool_has_the_nodes_of_its_cpus_with_memory() -> None:
    [of_batch] = pod_pools(RULES, (allocated(RULES, in_pool()),), Mask.parse("0-8")).values()
    assert (of_batch.name, str(of_batch.cpus), str(of_batch.mems)) == ("batch", "8", "1")


def test_an_exclusive_pod_leaves_a_pool_with_pods_its_last_cpu() -> None:
    rules = pooled(make_rules(topology=BEST_EFFORT), Pool("one", Mask.parse("1-2")))
    assert allocated(rules, own(2)).exclusive_cpus == Mask.parse("1-2")
    ledger = with_pod(rules, in_pool("one"))
    assert allocated(rules, own(2), ledger).exclusive_cpus == Mask.parse("1,3")
    ledger = with_pod(rules, own(1), ledger)
    grown = resize(rules, ledger, own(2)).allocation
    assert grown is not None
    assert grown.exclusive_cpus == Mask.parse("1,3")


@pytest.mark.parametrize(
    ("pools", "with_pods", "named", "fits"),
    [
        # (the CPUs of pools, those with a pod in them, that of the new pod; what fits of CPUs 1-4)
        (("1-2", "3-4"), [0], None, 3),
        (("1-2", "3-4"), [0, 1], None, 2),
        (("1-2", "3-4"), [0], 1, 2),
        (("1-2", "3-4"), [], None, 4),
        # A CPU that is in two pools is enough for both, whichever is the smaller.
        (("1-2", "2-4"), [0, 1], None, 3),
        (("1-2", "1,3-4"), [0, 1], None, 3),
        (("1-2", "2-3", "3-4"), [0, 1, 2], None, 2),
        # The reserved CPU 0 is left to a pool anyway.
        (("1-2", "0,3-4"), [0, 1], None, 3),
    ],
)
def test_only_pools_with_pods_are_left_a_cpu(
    pools: tuple[str, ...], with_pods: list[int], named: int | None, fits: int
) -> None:
    made = [Pool(f"pool-{place}", Mask.parse(cpus)) for place, cpus in enumerate(pools)]
    rules = pooled(make_rules(topology=BEST_EFFORT), *made)
    ledger = rules.empty_ledger()
    for place in with_pods:
        ledger = with_pod(rules, in_pool(f"pool-{place}", uid=f"in-{place}"), ledger)
    ledger = filled(rules, ledger)
    for cpus in (fits, fits + 1):
        asked = own(cpus)
        if named is not None:
            rest = app("rest", guaranteed("cpu=500m memory=1Gi"))
            asked = replace(pod(*own(cpus).containers, rest), annotations={POOL: f"pool-{named}"})
        assert admit(rules, ledger, asked).admitted == (cpus == fits)


@pytest.mark.parametrize(
    ("scope", "own_cpus", "budget", "with_pods", "named"),
    [
        # What shares the budget runs on its CPUs, in no pool.
        (POD, 2, 3, "one", "two"),
        # With container scope it runs in the shared pool, and in its own pool there.
        (CONTAINER, 3, 4, "", "one"),
    ],
)
def test_a_pod_with_a_budget_is_in_a_pool_with_container_scope_alone(
    scope: TopologyManagerScope, own_cpus: int, budget: int, with_pods: str, named: str
) -> None:
    two = (Pool("one", Mask.parse("1-2")), Pool("two", Mask.parse("3-4")))
    rules = pooled(make_rules(topology=BEST_EFFORT, scope=scope), *two)
    ledger = with_pod(rules, in_pool(with_pods)) if with_pods else rules.empty_ledger()
    ledger = filled(rules, ledger)
    main = app("main", guaranteed(f"cpu={own_cpus} memory=1Gi"))
    of_pod = guaranteed(f"cpu={budget} memory=2Gi")
    asked = pod(main, app("rest"), of_pod=of_pod, annotations={POOL: named})
    assert allocated(rules, asked, ledger).exclusive_cpus == Mask.parse("1,3-4")


def test_a_pod_that_grows_leaves_a_pool_a_cpu_that_it_has_not_itself() -> None:
    rules = pooled(make_rules(topology=BEST_EFFORT), Pool("one", Mask.parse("1-3")))
    ledger = with_pod(rules, in_pool("one"))
    ledger = with_pod(rules.on(Mask.of(3)), own(1), ledger)
    ledger = filled(rules, ledger)
    grown = resize(rules, ledger, own(3)).allocation
    assert grown is not None
    assert grown.exclusive_cpus == Mask.parse("1,3-4")


def test_no_pod_gets_the_last_cpu_of_a_pool_in_which_another_runs() -> None:
    rules = pooled(make_rules(topology=BEST_EFFORT), Pool("one", Mask.parse("1-2")))
    ledger = with_pod(rules, own(14), with_pod(rules, in_pool("one")))
    assert rejected(rules, own(2, "u-2"), ledger).message.startswith("not enough CPUs")
    rejection = rejected(rules, own(1, "u-2"), ledger)
    assert rejection.message == (
        "the pod would get the last shared CPUs of the pool one (1-2), in which pod default/p runs"
    )
    decision = resize(rules, ledger, own(15))
    assert "pool one" in (decision.rejection.message if decision.rejection else "")
    assert admit(rules, remove(rules, ledger, "u-0"), own(1, "u-2")).admitted


def test_a_pool_without_cpus_takes_no_new_pod() -> None:
    rules = pooled(make_rules(topology=BEST_EFFORT), Pool("one", Mask.parse("1-2")))
    ledger = with_pod(rules, own(2))
    assert "the pool one has no CPU left" in rejected(rules, in_pool("one"), ledger).message
    beside = replace(rules, policy=replace(rules.policy, cordon=Cordon(Mask.parse("1-2"))))
    assert "the pool one has no CPU left" in rejected(beside, in_pool("one")).message


def test_pods_of_a_pool_that_lost_its_cpus_run_in_the_whole_shared_pool_and_are_reported() -> None:
    ledger = with_pod(RULES, own(1), with_pod(RULES, in_pool("near")))
    rows = [row for row in PLAIN.cpus.rows if row.cpu > 3]
    lost = replace(RULES, machine=Machine(CpuTopology.from_rows(rows), PLAIN.nodes))
    shared, waiting = shared_cpus(lost, ledger), ledger.allocations["u-0"]
    assert pod_pools(lost, ledger.allocations.values(), shared) == {}
    assert shared_cpus_of(lost, waiting, shared) == shared == Mask.parse("4-15")
    found = [one for one in invalid_allocations(lost, ledger) if one.rule == Rule.POOLS]
    assert [one.uid for one in found] == ["u-0"]
    assert "its pool near has no CPU left: all of 0-3 are exclusive, cordoned" in found[0].message
    bare = pooled(lost, Pool("near", EMPTY))
    [bared] = [one for one in invalid_allocations(bare, ledger) if one.rule == Rule.POOLS]
    assert "its pool near has no CPU left: all of its CPUs are offline, so" in bared.message
    assert "all of its CPUs are offline" in rejected(bare, in_pool("near", uid="u-2")).message
    assert not [one for one in invalid_allocations(RULES, ledger) if one.rule == Rule.POOLS]


def test_a_pool_that_the_configuration_lost_is_reported() -> None:
    ledger = with_pod(RULES, in_pool("near"))
    [found] = invalid_allocations(make_rules(), ledger)
    assert (found.rule, found.uid) == (Rule.POOLS, "u-0")
    assert "which agent.pools does not have" in found.message


@st.composite
def pools(draw: st.DrawFn, rules: EffectivePolicy) -> tuple[Pool, ...]:
    """Draw pools that may overlap, be of reserved CPUs, or be of all."""
    cpus = st.sets(st.sampled_from(list(rules.machine.cpus.all)), min_size=1, max_size=5)
    classes = st.frozensets(st.sampled_from(QosClass))
    return tuple(
        Pool(f"pool-{number}", Mask.from_ids(draw(cpus)), qos_classes=draw(classes))
        for number in range(draw(st.integers(1, 3)))
    )


@given(drawn=rule_sets(), data=st.data())
@EVERY_SEQUENCE
def test_pods_stay_in_their_pools_and_off_exclusive_cpus_whatever_comes_and_goes(
    drawn: EffectivePolicy, data: st.DataObject
) -> None:
    rules = pooled(drawn, *data.draw(pools(drawn)))
    ledger = rules.empty_ledger()
    for number in range(data.draw(st.integers(1, 5))):
        asked = data.draw(pods(f"u-{number}"))
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(rules.policy.pools)).name
            asked = replace(asked, annotations={POOL: name})
        ledger = admit(rules, ledger, asked).ledger
        if ledger.allocations and data.draw(st.integers(0, 3)) == 0:
            ledger = remove(rules, ledger, data.draw(st.sampled_from(sorted(ledger.allocations))))
        assert broken(rules, ledger) == []


def broken(rules: EffectivePolicy, ledger: Ledger) -> list[str]:
    """Return the pods that run outside of their pool, on CPUs of others, or that no rule names."""
    shared, found = shared_cpus(rules, ledger), []
    made = pod_pools(rules, ledger.allocations.values(), shared)
    violated = {one.uid for one in invalid_allocations(rules, ledger) if one.rule == Rule.POOLS}
    for uid, allocation in ledger.allocations.items():
        pool, cpus = pool_of(rules.policy, allocation), shared_cpus_of(rules, allocation, shared)
        inside = shared if pool is None else pool.cpus & shared
        if cpus != (inside or shared) or cpus & exclusive_cpus(ledger):
            found.append(uid)
        if pool is not None and inside and made[uid].cpus != cpus:
            found.append(uid)
        # CPUs of the system alone are shared where strict-cpu-reservation leaves no others.
        strict = rules.policy.cpu.options.strict_cpu_reservation
        if (uid in violated) is bool(inside) or (not inside and not strict):
            found.append(uid)
    return found
