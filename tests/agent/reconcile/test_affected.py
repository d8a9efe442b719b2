from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.allocation import Binding, Bindings
from agent.pods.model import QosClass
from agent.reconcile.target import NO_PODS, AffectedPods, scope_of
from tests.agent.reconcile.pods import OTHER, UID, exclusive, mixed, on_host, pod, target

if TYPE_CHECKING:
    from agent.reconcile.target import Desired
    from sysfs.mask import Mask

WEB = pod(on_host("web"), uid="web")
API = pod(on_host("api"), uid="api")
DATABASE = mixed(uid="database")
BATCH = pod(exclusive("batch", "8-9"), uid="batch")


def shares(uid: str, _pool: Mask) -> bool:
    return uid in ("web", "api")


def scope(before: Desired | None, after: Desired, uid: str | None = None) -> AffectedPods | None:
    classes = NO_PODS.of(after.ledger.allocations)
    uids = () if uid is None else (uid,)
    return scope_of(before, after, uids, shares, frozenset(), "kubepods", classes)


def test_everything_is_looked_at_when_nothing_is_known_to_be_enforced() -> None:
    assert scope(None, target(WEB), "web") is None


def test_a_pod_in_the_shared_pool_concerns_itself_only() -> None:
    assert scope(target(WEB, BATCH), target(WEB, BATCH, API), "api") == AffectedPods(
        frozenset({"api"})
    )


def test_where_cpus_change_hands_the_own_cgroups_of_guaranteed_pods_are_looked_at() -> None:
    found = AffectedPods(frozenset({"batch"}), boundaries=frozenset({"web"}), orphaned=True)
    assert scope(target(WEB), target(WEB, BATCH), "batch") == found
    assert scope(target(WEB, BATCH), target(WEB, BATCH), "batch") == found


def test_pods_of_other_classes_inherit_from_their_class_and_are_left_out() -> None:
    burstable = replace(WEB, qos=QosClass.BURSTABLE)
    assert scope(target(burstable), target(burstable, BATCH), "batch") == AffectedPods(
        frozenset({"batch"}), orphaned=True
    )


def test_a_class_with_a_pod_that_has_cpus_of_its_own_does_not_confine() -> None:
    split = replace(DATABASE, qos=QosClass.BURSTABLE)
    assert scope(target(split), target(split, BATCH), "batch") is None
    assert scope(target(split, BATCH), target(BATCH)) is None


def test_a_pod_that_shares_beside_cpus_of_its_own_is_looked_at_in_full() -> None:
    half = pod(exclusive("own", "4"), on_host("rest"), uid="api")
    found = scope(target(half, WEB), target(half, WEB, BATCH), "batch")
    assert found == AffectedPods(
        frozenset({"api", "batch"}), boundaries=frozenset({"web"}), orphaned=True
    )


def test_a_pod_bound_outside_of_the_pods_is_looked_at_in_full() -> None:
    inside = Binding("api", "api", "kubepods/podapi/x")
    bound = Bindings().with_binding(Binding("web", "web", "system.slice/x")).with_binding(inside)
    before, after = target(WEB, API), target(WEB, API, BATCH)
    found = scope(replace(before, bindings=bound), replace(after, bindings=bound), "batch")
    assert found == AffectedPods(
        frozenset({"batch", "web"}), boundaries=frozenset({"api"}), orphaned=True
    )


def test_a_change_that_came_unasked_is_looked_at_too() -> None:
    changed = replace(WEB, containers=(on_host("web", limit=500),))
    before, after = target(WEB, BATCH), target(changed, BATCH, API)
    assert scope(before, after, "api") == AffectedPods(frozenset({"web", "api"}), gone=(WEB,))
    moved = replace(BATCH, containers=(exclusive("batch", "8"),))
    assert scope(target(WEB, BATCH), target(WEB, moved, API), "api") == AffectedPods(
        frozenset({"api", "batch"}), (BATCH,), frozenset({"web"}), orphaned=True
    )


def test_no_change_affects_no_pod() -> None:
    same = target(WEB, BATCH)
    assert scope(same, same) == AffectedPods(frozenset())


def test_a_pod_that_left_the_shared_pool_leaves_its_own_cgroup() -> None:
    assert scope(target(WEB, API, BATCH), target(WEB, BATCH)) == AffectedPods(
        frozenset(), gone=(API,)
    )


def test_cpus_that_come_back_affect_the_own_cgroups_of_guaranteed_pods() -> None:
    found = scope(target(WEB, API, DATABASE, BATCH), target(WEB, API, DATABASE))
    boundaries = frozenset({"web", "api", "database"})
    assert found == AffectedPods(frozenset(), (BATCH,), boundaries, orphaned=True)


def test_a_binding_concerns_both_who_loses_and_who_gets_a_cgroup() -> None:
    first, second = pod(on_host("a"), uid=UID), pod(on_host("b"), uid=OTHER)
    before = target(first, second, WEB)
    bound = Bindings().with_binding(Binding(UID, "a", "system.slice/x"))
    taken = bound.with_binding(Binding(OTHER, "b", "system.slice/x"))
    old, new = replace(before, bindings=bound), replace(before, bindings=taken)
    assert scope(before, old) == AffectedPods(frozenset({UID}))
    assert scope(old, new) == AffectedPods(frozenset({UID, OTHER}))
    assert scope(new, before) == AffectedPods(frozenset({OTHER}))


def test_a_binding_affects_pods_that_are_bound_around_it_or_inside() -> None:
    first, second = pod(on_host("a"), uid=UID), pod(on_host("b"), uid=OTHER)
    before = target(first, second, WEB)
    outer = Bindings().with_binding(Binding(UID, "a", "system.slice/x"))
    both = outer.with_binding(Binding(OTHER, "b", "system.slice/x/y"))
    old, new = replace(before, bindings=outer), replace(before, bindings=both)
    assert scope(old, new) == scope(new, old) == AffectedPods(frozenset({UID, OTHER}))
