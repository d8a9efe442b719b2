from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from agent.managers.admission import admit, remove
from agent.managers.allocation import Origin, Source
from agent.managers.cpu.manager import shared_cpus
from agent.managers.recovery import ObservedContainer, ObservedPod, Recovery, recover
from agent.pods.model import QosClass
from sysfs.mask import EMPTY, Mask
from tests.agent.managers.hosts import CONTAINER, SMT, make_rules
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod
from tests.conformance.invariants import broken_invariants

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger
    from agent.managers.rules import EffectivePolicy

RULES = make_rules(SMT, scope=CONTAINER, memory=False)


def checkpoint(*admitted: tuple[str, int]) -> Ledger:
    """Return a ledger to which pods (uid, CPUs) were admitted."""
    ledger = RULES.empty_ledger()
    for uid, cpus in admitted:
        asked = pod(app("c1", guaranteed(f"cpu={cpus} memory=1Gi")), uid=uid)
        ledger = admit(RULES, ledger, asked).ledger
    return ledger


def shown(uid: str, cpus: str) -> ObservedPod:
    """Return a running Guaranteed pod of one container."""
    own = ObservedContainer(f"pod{uid}", Mask.parse(cpus), EMPTY)
    return ObservedPod(
        uid, QosClass.GUARANTEED, own, (ObservedContainer("c1", Mask.parse(cpus), EMPTY),)
    )


def allocated(ledger: Ledger) -> dict[str, str]:
    return {uid: str(allocation.exclusive_cpus) for uid, allocation in ledger.allocations.items()}


def displacements(recovery: Recovery) -> list[tuple[str, str, str, str]]:
    return [(each.uid, str(each.lost), each.by, str(each.kept)) for each in recovery.displaced]


def test_a_running_pod_that_the_checkpoint_does_not_know_keeps_its_cpus() -> None:
    ledger = checkpoint(("old", 2))
    assert allocated(ledger) == {"old": "1,9"}
    recovery = recover(RULES, ledger, [shown("old", "1,9"), shown("new", "2,10")])
    assert allocated(recovery.ledger) == {"old": "1,9", "new": "2,10"}
    assert (recovery.recovered, recovery.displaced, recovery.notes) == (("new",), (), ())
    assert recovery.ledger.allocations["old"] is ledger.allocations["old"]
    assert recovery.ledger.allocations["new"].origin is Origin.RECOVERED


def test_a_pod_of_the_checkpoint_that_does_not_run_gives_way_to_one_that_does() -> None:
    recovery = recover(RULES, checkpoint(("old", 2), ("idle", 2)), [shown("new", "1,9")])
    assert allocated(recovery.ledger) == {"idle": "2,10", "new": "1,9"}
    assert displacements(recovery) == [("old", "1,9", "new", "")]
    assert "it no longer has an allocation" in str(recovery.displaced[0])


def test_a_pod_that_runs_elsewhere_is_taken_as_the_kernel_shows_it() -> None:
    ledger = checkpoint(("old", 2), ("next", 2), ("last", 2))
    assert allocated(ledger) == {"old": "1,9", "next": "2,10", "last": "3,11"}
    source = Source("manifests", "/m/old.yaml")
    ledger = ledger.with_source("old", source)
    running = [shown("new", "1,9"), shown("old", "2,10"), shown("last", "3,11")]
    recovery = recover(RULES, ledger, running)
    assert allocated(recovery.ledger) == {"new": "1,9", "old": "2,10", "last": "3,11"}
    assert displacements(recovery) == [("old", "1,9", "new", "2,10"), ("next", "2,10", "old", "")]
    old = recovery.ledger.allocations["old"]
    assert (old.origin, old.name) == (Origin.RECOVERED, ledger.allocations["old"].name)
    assert old.source == source
    assert recovery.ledger.allocations["last"] is ledger.allocations["last"]


def test_a_pod_that_is_confined_to_the_shared_pool_loses_what_the_checkpoint_gives_it() -> None:
    """It was removed after the checkpoint, and runs on."""
    running = [shown("new", "1,9"), shown("old", "0,2-8,10-15")]
    recovery = recover(RULES, checkpoint(("old", 2)), running)
    assert allocated(recovery.ledger) == {"new": "1,9"}
    assert displacements(recovery) == [("old", "1,9", "new", "")]


def test_of_two_that_run_on_the_same_cpus_the_checkpoint_names_the_owner() -> None:
    ledger = checkpoint(("old", 2))
    recovery = recover(RULES, ledger, [shown("new", "1,9"), shown("old", "1,9")])
    assert recovery.ledger is ledger
    (note,) = recovery.notes
    assert note == (
        "cgroups of pod new show CPUs 1,9, which the checkpoint allocates to pod old; that pod "
        "runs there too and keeps them"
    )


def test_what_is_known_to_be_of_no_pod_is_not_resurrected() -> None:
    ledger = checkpoint(("old", 2))
    running = [shown("new", "1,9"), shown("other", "2,10")]
    recovery = recover(RULES, ledger, running, {"new"})
    assert allocated(recovery.ledger) == {"old": "1,9", "other": "2,10"}
    assert recovery.displaced == ()


def test_an_orphan_does_not_make_the_cpus_of_a_running_pod_doubtful() -> None:
    """A removed pod was not yet confined when its CPUs' new owner was lost with the checkpoint."""
    running = [shown("gone", "1,9"), shown("new", "1,9")]
    recovery = recover(RULES, RULES.empty_ledger(), running, {"gone"})
    assert allocated(recovery.ledger) == {"new": "1,9"}


def runs_as_allocated(rules: EffectivePolicy, ledger: Ledger, uid: str) -> ObservedPod:
    """Return a pod of a ledger as the kernel shows it when all of it runs."""
    allocation = ledger.allocations[uid]
    pool = shared_cpus(rules, ledger)
    containers = tuple(
        ObservedContainer(each.name, pool if each.cpus is None else each.cpus, each.mems)
        for each in allocation.containers
        if each.kind != "init"
    )
    cpus = EMPTY
    for each in containers:
        cpus |= each.cpus
    return ObservedPod(
        uid,
        allocation.qos,
        ObservedContainer(f"pod{uid}", cpus | (allocation.cpus or EMPTY), EMPTY),
        containers,
    )


@EVERY_SEQUENCE
@given(st.data())
def test_whatever_checkpoint_is_put_back_no_pod_is_given_what_a_running_pod_has(
    data: st.DataObject,
) -> None:
    rules = data.draw(rule_sets())
    ledger = older = rules.empty_ledger()
    for number in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()) and ledger.allocations:
            ledger = remove(rules, ledger, data.draw(st.sampled_from(sorted(ledger.allocations))))
        ledger = admit(rules, ledger, data.draw(pods(f"p{number}"))).ledger
        if data.draw(st.booleans()):
            older = ledger
    uids = (
        st.sets(st.sampled_from(sorted(ledger.allocations)))
        if ledger.allocations
        else st.just(set())
    )
    running = [runs_as_allocated(rules, ledger, uid) for uid in sorted(data.draw(uids))]
    recovery = recover(rules, older, running)
    assert broken_invariants(rules, recovery.ledger) == []
    for each in running:
        own = ledger.allocations[each.uid].exclusive_cpus
        if not rules.static_cpus or not own or own == shared_cpus(rules, older):
            continue
        # Init containers are over: what only they had shows nowhere.
        now = EMPTY
        for seen in (each.own, *each.containers):
            now |= seen.cpus & own
        if not now:
            continue
        assert now <= recovery.ledger.allocations[each.uid].exclusive_cpus
        others = (g for uid, g in recovery.ledger.allocations.items() if uid != each.uid)
        assert not any(other.exclusive_cpus & now for other in others)
    for uid in recovery.ledger.allocations.keys() & older.allocations.keys():
        assert recovery.ledger.allocations[uid] is older.allocations[uid]
    again = recover(rules, recovery.ledger, running)
    assert again.ledger is recovery.ledger
