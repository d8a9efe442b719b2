from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from agent.managers.admission import admit, remove
from agent.managers.allocation import Origin, Source
from agent.managers.cpu.manager import shared_cpus
from agent.managers.recovery import ObservedPod, Recovery, recover
from sysfs.mask import EMPTY
from tests.agent.managers.hosts import CONTAINER, SMT, make_rules
from tests.agent.managers.test_from_cgroups import STRICT, allocated, as_shown, seen, shown
from tests.agent.managers.test_invariants import EVERY_SEQUENCE, pods, rule_sets
from tests.agent.pods.pods import app, guaranteed, pod
from tests.conformance.invariants import broken_invariants

if TYPE_CHECKING:
    from agent.managers.ledger import Ledger

RULES = make_rules(SMT, scope=CONTAINER, memory=False)


def checkpoint(*admitted: tuple[str, int]) -> Ledger:
    """Return a ledger to which pods (uid, CPUs) were admitted."""
    ledger = RULES.empty_ledger()
    for uid, cpus in admitted:
        asked = pod(app("c1", guaranteed(f"cpu={cpus} memory=1Gi")), uid=uid)
        ledger = admit(RULES, ledger, asked).ledger
    return ledger


def running_on(uid: str, cpus: str) -> ObservedPod:
    return shown(uid, cpus, seen("c1", cpus))


def displacements(recovery: Recovery) -> list[tuple[str, str, str, str]]:
    return [(each.uid, str(each.lost), each.by, str(each.kept)) for each in recovery.displaced]


def test_a_running_pod_that_the_checkpoint_does_not_know_keeps_its_cpus() -> None:
    ledger = checkpoint(("old", 2))
    assert allocated(ledger) == {"old": "1,9"}
    recovery = recover(RULES, ledger, [running_on("old", "1,9"), running_on("new", "2,10")])
    assert allocated(recovery.ledger) == {"old": "1,9", "new": "2,10"}
    assert (recovery.recovered, recovery.displaced, recovery.notes) == (("new",), (), ())
    assert recovery.ledger.allocations["old"] is ledger.allocations["old"]
    assert recovery.ledger.allocations["new"].origin is Origin.RECOVERED


def test_a_pod_that_gives_way_is_not_recovered_with_the_shared_pool() -> None:
    """It was confined to the pool, which it has alone, as the reserved CPUs are not in it."""
    old = pod(app("c1", guaranteed("cpu=2 memory=1Gi")), uid="old")
    ledger = admit(STRICT, STRICT.empty_ledger(), old).ledger
    running = [running_on("new", "1-2"), running_on("old", str(shared_cpus(STRICT, ledger)))]
    recovery = recover(STRICT, ledger, running)
    assert allocated(recovery.ledger) == {"new": "1-2"}
    assert displacements(recovery) == [("old", "1-2", "new", "")]


def test_a_pod_of_the_checkpoint_that_does_not_run_gives_way_to_one_that_does() -> None:
    recovery = recover(RULES, checkpoint(("old", 2), ("idle", 2)), [running_on("new", "1,9")])
    assert allocated(recovery.ledger) == {"idle": "2,10", "new": "1,9"}
    assert displacements(recovery) == [("old", "1,9", "new", "")]
    assert "it no longer has an allocation" in str(recovery.displaced[0])


def test_a_pod_that_runs_elsewhere_is_taken_as_the_kernel_shows_it() -> None:
    ledger = checkpoint(("old", 2), ("next", 2), ("last", 2))
    assert allocated(ledger) == {"old": "1,9", "next": "2,10", "last": "3,11"}
    source = Source("manifests", "/m/old.yaml")
    ledger = ledger.with_source("old", source)
    running = [running_on("new", "1,9"), running_on("old", "2,10"), running_on("last", "3,11")]
    recovery = recover(RULES, ledger, running)
    assert allocated(recovery.ledger) == {"new": "1,9", "old": "2,10", "last": "3,11"}
    assert displacements(recovery) == [("old", "1,9", "new", "2,10"), ("next", "2,10", "old", "")]
    old = recovery.ledger.allocations["old"]
    assert (old.origin, old.name) == (Origin.RECOVERED, ledger.allocations["old"].name)
    assert old.source == source
    assert recovery.ledger.allocations["last"] is ledger.allocations["last"]


def test_a_pod_that_is_confined_to_the_shared_pool_loses_what_the_checkpoint_gives_it() -> None:
    """It was removed after the checkpoint, and runs on."""
    running = [running_on("new", "1,9"), running_on("old", "0,2-8,10-15")]
    recovery = recover(RULES, checkpoint(("old", 2)), running)
    assert allocated(recovery.ledger) == {"new": "1,9"}
    assert displacements(recovery) == [("old", "1,9", "new", "")]


def test_of_two_that_run_on_the_same_cpus_the_checkpoint_names_the_owner() -> None:
    ledger = checkpoint(("old", 2))
    recovery = recover(RULES, ledger, [running_on("new", "1,9"), running_on("old", "1,9")])
    assert recovery.ledger is ledger
    (note,) = recovery.notes
    assert note == (
        "cgroups of pod new show CPUs 1,9, which the checkpoint allocates to pod old; that pod "
        "runs there too and keeps them"
    )


def test_what_is_known_to_be_of_no_pod_is_not_resurrected_and_casts_no_doubt() -> None:
    running = [running_on("new", "1,9"), running_on("other", "2,10")]
    recovery = recover(RULES, checkpoint(("old", 2)), running, {"new"})
    assert allocated(recovery.ledger) == {"old": "1,9", "other": "2,10"}
    assert recovery.displaced == ()
    # A removed pod was not yet confined when its CPUs' new owner was lost with the checkpoint.
    running = [running_on("gone", "1,9"), running_on("new", "1,9")]
    recovery = recover(RULES, RULES.empty_ledger(), running, {"gone"})
    assert allocated(recovery.ledger) == {"new": "1,9"}


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
    known = sorted(ledger.allocations)
    uids = st.sets(st.sampled_from(known)) if known else st.just(set())
    pool = shared_cpus(rules, ledger)
    running = [as_shown(ledger.allocations[uid], pool) for uid in sorted(data.draw(uids))]
    recovery = recover(rules, older, running)
    assert broken_invariants(rules, recovery.ledger) == []
    for each in running:
        own = ledger.allocations[each.uid].exclusive_cpus
        if not rules.static_cpus or not own or own == shared_cpus(rules, older):
            continue
        # Init containers are over: what only they had shows nowhere, or beside the shared pool.
        whole = (each.own,) if each.own.cpus.isdisjoint(pool) else ()
        now = EMPTY
        for part in (*whole, *each.containers):
            now |= part.cpus & own
        if not now:
            continue
        assert now <= recovery.ledger.allocations[each.uid].exclusive_cpus
        others = (g for uid, g in recovery.ledger.allocations.items() if uid != each.uid)
        assert not any(other.exclusive_cpus & now for other in others)
    for uid in recovery.ledger.allocations.keys() & older.allocations.keys():
        assert recovery.ledger.allocations[uid] is older.allocations[uid]
    assert recover(rules, recovery.ledger, running).ledger is recovery.ledger
