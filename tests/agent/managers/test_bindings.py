from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.managers.bindings import NO_BINDINGS, Binding, Bindings
from tests.agent.reconcile.pods import on_host, pod

few = st.sampled_from(["a", "b", "c"])
bindings = st.lists(st.builds(Binding, few, few, few))


def bind_all(entries: list[Binding]) -> Bindings:
    bound = NO_BINDINGS
    for entry in entries:
        bound = bound.with_binding(entry)
    return bound


@given(bindings)
def test_a_container_and_a_cgroup_are_bound_at_most_once(entries: list[Binding]) -> None:
    bound = bind_all(entries)
    assert len({(b.pod_uid, b.container) for b in bound}) == len(bound)
    assert len({b.cgroup for b in bound}) == len(bound)


@given(bindings, st.builds(Binding, few, few, few))
def test_the_latest_binding_wins(entries: list[Binding], last: Binding) -> None:
    assert last in bind_all([*entries, last])


@given(bindings, few)
def test_a_pods_end_takes_its_bindings_and_no_others(entries: list[Binding], uid: str) -> None:
    bound = bind_all(entries)
    assert bound.without_pod(uid).of_pod(uid) == ()
    assert {*bound.without_pod(uid), *bound.of_pod(uid)} == set(bound)


@given(bindings)
def test_a_cgroup_is_remembered_from_its_binding_until_what_runs_there_has_ended(
    entries: list[Binding],
) -> None:
    bound = bind_all(entries)
    assert {*bound.released, *(b.cgroup for b in bound)} == {entry.cgroup for entry in entries}
    assert {*bound.given_up({})} == {entry.cgroup for entry in entries}
    living = {"a": pod(on_host("a"), on_host("b"), on_host("c"), uid="a")}
    for cgroup in bound.given_up(living):
        assert cgroup not in bound.without({cgroup}, living).given_up(living)
    assert bound.without({"a", "b", "c"}, living="a").of_pod("a") == bound.of_pod("a")


def test_a_cgroup_whose_pod_no_longer_has_the_container_is_given_up() -> None:
    """A recovered pod has containers named after their cgroups, whatever was bound before."""
    bound = bind_all([Binding("a", "main", "system/one"), Binding("a", "x1.scope", "system/two")])
    assert bound.given_up({"a": pod(on_host("x1.scope"), uid="a")}) == ("system/one",)
