from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent.managers.allocations.bindings import Binding, Bindings
from agent.reconcile.affected import AffectedPods, scope_of
from tests.agent.reconcile.pods import OTHER, UID, exclusive, mixed, on_host, pod, target

if TYPE_CHECKING:
    from agent.reconcile.desired.state import Desired
    from sysfs.mask import Mask

WEB = pod(on_host("web"), uid="web")
API = pod(on_host("api"), uid="api")
DATABASE = mixed(uid="database")
BATCH = pod(exclusive("batch", "8-9"), uid="batch")


def shares(uid: str, _pool: Mask) -> bool:
    return uid in ("web", "api")


def scope(before: Desired | None, after: Desired, uid: str | None = None) -> AffectedPods | None:
    return scope_of(before, after, uid, shares)


def test_everything_is_looked_at_when_nothing_is_known_to_be_enforced() -> None:
    assert scope(None, target(WEB), "web") is None


def test_a_pod_in_the_shared_pool_concerns_itself_only() -> None:
    assert scope(target(WEB, BATCH), target(WEB, BATCH, API), "api") == AffectedPods(
        frozenset({"api"})
    )


def test_a_pod_that_gets_exclusive_cpus_affects_all_cgroups() -> None:
    assert scope(target(WEB), target(WEB, BATCH), "batch") is None
    assert scope(target(WEB, BATCH), target(WEB, BATCH), "batch") is None


def test_a_change_that_came_unasked_is_looked_at_too() -> None:
    changed = replace(WEB, containers=(on_host("web", limit=500),))
    before, after = target(WEB, BATCH), target(changed, BATCH, API)
    assert scope(before, after, "api") == AffectedPods(frozenset({"web", "api"}), gone=(WEB,))
    moved = replace(BATCH, containers=(exclusive("batch", "8"),))
    assert scope(target(WEB, BATCH), target(WEB, moved, API), "api") is None


def test_no_change_affects_no_pod() -> None:
    same = target(WEB, BATCH)
    assert scope(same, same) == AffectedPods(frozenset())


def test_a_pod_that_left_the_shared_pool_leaves_its_own_cgroup() -> None:
    assert scope(target(WEB, API, BATCH), target(WEB, BATCH)) == AffectedPods(
        frozenset(), gone=(API,)
    )


def test_cpus_that_come_back_affect_all_pods_in_the_pool() -> None:
    found = scope(target(WEB, API, DATABASE, BATCH), target(WEB, API, DATABASE))
    assert found == AffectedPods(frozenset({"web", "api"}), gone=(BATCH,), orphaned=True)


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
