from __future__ import annotations

import errno
from itertools import product
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.managers.bindings import NO_BINDINGS, Binding, Bindings
from agent.reconcile.drivers import inhabited
from agent.reconcile.identify import (
    IdentifiedBy,
    Subgroup,
    identify,
    name_match,
)
from agent.reconcile.pod_cgroups import IdentifiedCgroups, identify_cgroups
from agent.reconcile.running_pods import pod_uids, seen_pods
from agent.runtimes import RuntimeName
from cgroupfs.names import Driver
from tests.agent.reconcile.pods import (
    OTHER,
    UID,
    exclusive,
    kernel,
    layout,
    ledger,
    mixed,
    on_host,
    path_of,
    pod,
)
from tests.fakes.kernel import FaultyTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.managers.allocation import ContainerAllocation, PodAllocation
    from agent.pods.model import Named
    from agent.reconcile.pod_cgroups import KnownContainers
    from cgroupfs.emulated.kernel import EmulatedKernel
    from cgroupfs.state import WriterRecord
    from tests.fakes.kernel import Operation

POD = path_of(mixed())


@pytest.mark.parametrize(
    ("directory", "container"),
    [
        ("db.scope", "db"),
        ("db.service", "db"),
        ("db", "db"),
        ("shop-db.scope", "db"),
        ("shop_db", "db"),
        ("run@db.service", "db"),
        ("shop.db.service", "db"),
        ("my-db.scope", "my-db"),
        ("x-my-db.scope", "my-db"),
        ("shopdb.scope", None),
        ("db-1.scope", None),
        ("db.slice", None),
        ("cri-containerd-db.scope", None),
        ("libpod-db.scope", None),
        ("libpod-conmon-db.scope", None),
        (".db", None),
    ],
)
def test_a_unit_called_after_a_container_is_that_container(
    directory: str, container: str | None
) -> None:
    assert name_match(directory, ["db", "my-db", "web"]) == container


def make(tree: EmulatedKernel, *paths: str) -> None:
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            above = "/".join(parts[:depth])
            if not tree.exists(above):
                tree.mkdir(above)


def look(
    tree: EmulatedKernel, *allocations: PodAllocation, bindings: Bindings = NO_BINDINGS
) -> IdentifiedCgroups:
    return identify_cgroups(tree, layout(), ledger(*allocations), bindings)


def found(
    identified: IdentifiedCgroups, uid: str = UID
) -> dict[str, tuple[str | None, IdentifiedBy]]:
    return {
        located.cgroup: (located.container, located.identity)
        for located in identified.pods[uid].containers
    }


def test_children_are_identified_by_binding_else_by_name_and_the_rest_is_unknown() -> None:
    tree = kernel()
    make(tree, f"{POD}/db", f"{POD}/shop-backup", f"{POD}/0f3a")
    named = {
        f"{POD}/db": ("db", IdentifiedBy.NAME),
        f"{POD}/shop-backup": ("backup", IdentifiedBy.NAME),
        f"{POD}/0f3a": (None, IdentifiedBy.UNKNOWN),
    }
    assert found(look(tree, mixed())) == named
    bindings = Bindings((Binding(UID, "backup", f"{POD}/db"),))
    bound = {f"{POD}/db": ("backup", IdentifiedBy.BOUND)}
    assert found(look(tree, mixed(), bindings=bindings)) == named | bound


@pytest.mark.parametrize(
    ("containers", "name", "by"),
    [
        ([exclusive("db", "2-5")], "db", IdentifiedBy.ONLY),
        ([on_host("a", limit=500), on_host("b", limit=500)], None, IdentifiedBy.ALIKE),
        ([on_host("a", limit=500), on_host("b", limit=600)], None, IdentifiedBy.UNKNOWN),
    ],
)
def test_a_name_does_not_matter_where_no_container_has_other_settings(
    containers: list[ContainerAllocation], name: str | None, by: IdentifiedBy
) -> None:
    tree = kernel()
    make(tree, f"{POD}/0f3a")
    assert found(look(tree, pod(*containers))) == {f"{POD}/0f3a": (name, by)}


def showing(sets: dict[str, str]) -> EmulatedKernel:
    """Return a tree in which cgroups of the pod show these CPUs."""
    tree = kernel()
    for name, cpus in sets.items():
        make(tree, f"{POD}/{name}")
        if cpus:
            for above in ("", *("/".join(POD.split("/")[:n]) for n in (1, 2))):
                tree.write(above, "cgroup.subtree_control", "+cpuset")
            tree.write(f"{POD}/{name}", "cpuset.cpus", cpus)
    return tree


IDS = ("cri-containerd-aaa.scope", "cri-containerd-bbb.scope")


def test_what_was_pinned_before_is_known_by_its_cpus() -> None:
    tree = showing({IDS[0]: "2-5", IDS[1]: ""})
    assert found(look(tree, mixed())) == {
        f"{POD}/{IDS[0]}": ("db", IdentifiedBy.CPUS),
        f"{POD}/{IDS[1]}": (None, IdentifiedBy.UNKNOWN),
    }


@pytest.mark.parametrize(
    "sets",
    [
        {IDS[0]: "2-5", IDS[1]: "2-5"},
        {IDS[0]: "6-7"},
        {IDS[0]: "2-4"},
        {"db": "2-5", IDS[0]: "2-5"},
    ],
    ids=["shown twice", "allocated to two", "allocated to none", "already found"],
)
def test_ambiguous_cpus_identify_no_container(sets: dict[str, str]) -> None:
    located = found(look(showing(sets), mixed()))
    assert located[f"{POD}/{IDS[0]}"] == (None, IdentifiedBy.UNKNOWN)


class Finder:
    """Knows some cgroups."""

    def container_of(self, pod: Named, cgroup: str) -> RuntimeName | None:
        del pod
        known = {"x": RuntimeName("backup"), "y": RuntimeName("unheard-of"), "z": RuntimeName(None)}
        return known.get(cgroup.rpartition("/")[2])

    def remembered(self, cgroup: str) -> WriterRecord | None:
        raise NotImplementedError


ONE = pod(exclusive("db", "2-5"))


@pytest.mark.parametrize(
    ("allocation", "cgroup", "name", "by"),
    [
        (mixed(), "x", "backup", IdentifiedBy.RUNTIME),
        (mixed(), "y", None, IdentifiedBy.EPHEMERAL),
        (mixed(), "db", "db", IdentifiedBy.NAME),
        # Of a pod with one container neither sandbox nor ephemeral container is taken for it.
        (ONE, "z", None, IdentifiedBy.SANDBOX),
        (ONE, "y", None, IdentifiedBy.EPHEMERAL),
        (ONE, "unknown", "db", IdentifiedBy.ONLY),
    ],
)
def test_a_finder_is_asked_before_names_are_looked_at(
    allocation: PodAllocation, cgroup: str, name: str | None, by: IdentifiedBy
) -> None:
    assert identify(allocation, [f"{POD}/{cgroup}"], Finder()) == ((name, by),)


def test_what_was_identified_before_changes_nothing_of_what_is_identified_now() -> None:
    tree, aim, inner = kernel(), ledger(mixed()), f"{POD}/db/container"
    changes: tuple[Callable[[], object], ...] = (
        lambda: make(tree, f"{POD}/db"),
        lambda: None,
        lambda: make(tree, inner),
        lambda: tree.write(f"{POD}/db", "cgroup.subtree_control", "+cpuset"),
        lambda: tree.rmdir(inner),
        lambda: make(tree, f"{POD}/x"),
        lambda: make(tree, f"{POD}/0f3a"),
        lambda: tree.write(f"{POD}/0f3a", "cpuset.cpus", "2-5"),
        lambda: tree.rmdir(f"{POD}/db"),
        lambda: tree.write(f"{POD}/0f3a", "cpuset.cpus", "6"),
    )
    make(tree, f"{POD}")
    for above in ("", "kubepods", POD):
        tree.write(above, "cgroup.subtree_control", "+cpuset")
    worlds = (NO_BINDINGS, Bindings((Binding(UID, "backup", f"{POD}/db"),)))
    known: tuple[KnownContainers, KnownContainers] = ({}, {})
    for change in changes:
        change()
        for bindings, (finder, before) in product(
            worlds, zip((None, Finder()), known, strict=True)
        ):
            now = identify_cgroups(tree, layout(), aim, bindings, finder)
            again = identify_cgroups(tree, layout(), aim, bindings, finder, known=before)
            assert again == now


def test_cgroups_around_a_bound_one_are_not_containers() -> None:
    tree = kernel()
    make(tree, f"{POD}/outer/inner/db")
    bindings = Bindings((Binding(UID, "db", f"{POD}/outer/inner/db"),))
    assert list(found(look(tree, mixed(), bindings=bindings))) == [f"{POD}/outer/inner/db"]


def test_of_two_bound_cgroups_in_each_other_the_inner_one_counts() -> None:
    tree = kernel()
    make(tree, "machine/a/b")
    other = pod(on_host("web"), uid=OTHER)
    bindings = Bindings((Binding(UID, "db", "machine/a"), Binding(OTHER, "web", "machine/a/b")))
    identified = look(tree, mixed(), other, bindings=bindings)
    assert found(identified) == {}
    assert found(identified, OTHER) == {"machine/a/b": ("web", IdentifiedBy.BOUND)}


@pytest.mark.parametrize(
    "binding",
    [
        Binding(UID, "db", f"{POD}/gone"),
        Binding(UID, "unheard-of", f"{POD}/x"),
        Binding("no-such-pod", "db", f"{POD}/x"),
        Binding(UID, "db", path_of(mixed(OTHER)) + "/x"),
        Binding(UID, "db", "kubepods"),
        Binding(UID, "db", POD),
    ],
)
def test_a_binding_that_is_no_longer_valid_is_ignored(binding: Binding) -> None:
    tree = kernel()
    make(tree, f"{POD}/x", f"{path_of(mixed(OTHER))}/x")
    located = look(tree, mixed(), bindings=Bindings((binding,))).pods[UID]
    assert [c.identity for c in located.containers] == [IdentifiedBy.UNKNOWN]


def test_runtime_subgroups_with_sets_of_their_own_belong_to_the_container() -> None:
    tree = kernel()
    make(tree, f"{POD}/db/container")
    assert look(tree, mixed()).pods[UID].containers[0].subgroups == ()
    for above in ("", "kubepods", POD, f"{POD}/db"):
        tree.write(above, "cgroup.subtree_control", "+cpuset")
    located = look(tree, mixed()).pods[UID].containers[0]
    assert located.subgroups == (Subgroup(f"{POD}/db/container", quota=False),)
    for above in ("", "kubepods", POD, f"{POD}/db"):
        tree.write(above, "cgroup.subtree_control", "+cpu")
    located = look(tree, mixed()).pods[UID].containers[0]
    assert located.subgroups == (Subgroup(f"{POD}/db/container", quota=True),)


@pytest.mark.parametrize("driver", list(Driver))
def test_pod_cgroups_without_a_pod_are_orphaned(driver: Driver) -> None:
    tree = kernel()
    gone = [replace(mixed(), uid=OTHER), pod(uid=OTHER)]
    for allocation in (mixed(), *gone):
        make(tree, f"{path_of(allocation, driver)}/x")
    make(tree, f"{layout(driver).pods()}/something-else")
    identified = identify_cgroups(tree, layout(driver), ledger(mixed()), NO_BINDINGS)
    orphan = path_of(gone[0], driver)
    assert [(entry.cgroup, entry.containers) for entry in identified.orphaned] == [
        (orphan, (f"{orphan}/x",))
    ]


@pytest.mark.parametrize("above", ["system", "system/burstable"])
def test_pods_of_the_system_partition_exist_and_are_left_alone(above: str) -> None:
    tree, place = kernel(), layout(Driver.CGROUPFS)
    make(tree, f"{POD}/db", f"kubepods/{above}/pod{OTHER}/x")
    tree.spawn(f"kubepods/{above}/pod{OTHER}/x", 1)
    assert pod_uids(tree, place) == {UID, OTHER}
    assert identify_cgroups(tree, place, ledger(mixed()), NO_BINDINGS).orphaned == ()
    assert seen_pods(tree, place) == ()


@pytest.mark.parametrize("error", [errno.ENOENT, errno.ENODEV])
def test_a_doubted_pod_whose_cgroup_is_being_removed_runs_no_more(error: int) -> None:
    def removed(operation: Operation) -> None:
        if operation.path == POD:
            raise OSError(error, "gone")

    there = kernel()
    make(there, f"{POD}/db")
    tree = FaultyTree(there, removed)
    assert pod_uids(tree, layout(Driver.CGROUPFS)) == {UID}
    assert pod_uids(tree, layout(Driver.CGROUPFS), (UID,)) == frozenset()
    assert inhabited(tree, POD) is None
