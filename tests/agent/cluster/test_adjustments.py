"""What a container is given at its start agrees with what reconciling desires afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from agent.cluster.adjustments import adjustment_of
from agent.cluster.handover import still_shared
from agent.cluster.nri.messages import Adjustment
from agent.managers.allocation import Origin
from agent.managers.numa_policy import NumaMode, NumaPolicy
from agent.reconcile.diff import Cause, Difference
from sysfs.mask import Mask
from tests.agent.reconcile.pods import (
    ONLINE,
    OTHER,
    exclusive,
    kernel,
    memory_on,
    mixed,
    on_host,
    path_of,
    pod,
    run,
    target,
)
from tests.agent.reconcile.pods import directories as enforcer_of

if TYPE_CHECKING:
    from agent.managers.allocation import PodAllocation

POOL = ONLINE - mixed().exclusive_cpus


def test_an_exclusive_container_gets_its_cpus_its_memory_nodes_and_no_quota() -> None:
    given = adjustment_of(mixed(), "db", POOL)
    assert given is not None
    assert (given.cpus, given.mems, given.quota_us) == (Mask.parse("2-5"), Mask.of(0), -1)
    assert given.environment == {
        "NUMAWARDEN_POD": "default/pod-1111",
        "NUMAWARDEN_POD_UID": mixed().uid,
        "NUMAWARDEN_CPUS": "2-5",
        "NUMAWARDEN_MEMORY_NODES": "0",
    }


def test_a_numa_policy_goes_with_the_rest_or_alone() -> None:
    policy = NumaPolicy(NumaMode.INTERLEAVE, Mask.parse("0-1"))
    own, asked = adjustment_of(mixed(), "db", POOL), adjustment_of(mixed(), "db", POOL, policy)
    assert own is not None
    assert asked == replace(own, numa_policy=policy)
    shared = pod(on_host("log"))
    assert adjustment_of(shared, "log", ONLINE) is None
    assert adjustment_of(shared, "log", ONLINE, policy) == Adjustment(numa_policy=policy)


def test_a_container_of_the_pods_shared_pool_gets_that_pool() -> None:
    given = adjustment_of(mixed(), "metrics", POOL)
    assert given is not None
    assert (given.cpus, given.quota_us, given.period_us) == (Mask.parse("6-7"), 50_000, 100_000)


def test_a_container_in_the_nodes_pool_beside_exclusive_ones_is_confined_to_that_pool() -> None:
    allocation = pod(exclusive("db", "2-3"), on_host("log", limit=500))
    given = adjustment_of(allocation, "log", ONLINE - Mask.parse("2-3"))
    assert given is not None
    assert (given.cpus, given.mems, given.quota_us) == (Mask.parse("0-1,4-15"), None, 50_000)
    assert given.environment == {}


def test_a_pod_without_anything_of_its_own_is_left_to_the_kubelet() -> None:
    assert adjustment_of(pod(on_host("web", limit=500), limit=500), "web", POOL) is None


def test_memory_nodes_alone_are_pinned_and_the_quota_is_the_kubelets() -> None:
    allocation = pod(replace(on_host("web", limit=500), memory=memory_on(1)), limit=500)
    given = adjustment_of(allocation, "web", POOL)
    assert given is not None
    assert (given.cpus, given.mems, given.quota_us) == (None, Mask.of(1), None)
    assert given.environment["NUMAWARDEN_MEMORY_NODES"] == "1"


# Shows in differences.md: ephemeral-quota
@pytest.mark.parametrize(
    ("allocation", "lifted", "quota"),
    [
        (pod(exclusive("db", "2-3"), limit=2000), True, -1),
        (pod(exclusive("db", "2-3"), on_host("log", limit=500), limit=2500), True, -1),
        (pod(exclusive("db", "2-3"), on_host("log"), limit=3000), False, 100_000),
        (mixed(), False, 600_000),
    ],
)
def test_an_ephemeral_container_has_the_nodes_pool_and_the_bound_of_its_pod(
    allocation: PodAllocation,
    lifted: bool,  # noqa: FBT001  # of the table above
    quota: int,
) -> None:
    """The bound is what exclusive CPUs leave, else the quota that the kubelet leaves the pod."""
    pod_ = replace(allocation, quota_disabled=lifted)
    given = adjustment_of(pod_, "debugger", POOL)
    assert given is not None
    assert (given.cpus, given.mems, given.quota_us, given.environment) == (POOL, None, quota, {})


def test_an_ephemeral_container_of_a_pod_without_cpus_of_its_own_is_left_to_the_kubelet() -> None:
    assert adjustment_of(pod(on_host("web", limit=500), limit=500), "debugger", POOL) is None
    recovered = replace(pod(exclusive("db", "2-3")), origin=Origin.RECOVERED)
    assert adjustment_of(recovered, "app", POOL) is None


@pytest.mark.parametrize(
    "allocation",
    [
        mixed(),
        pod(exclusive("db", "2-3", node=1), on_host("log", limit=500), limit=2500),
        pod(exclusive("db", "2-3", quota=True), limit=2000),
        pod(exclusive("db", "2-3"), on_host("log")),
    ],
)
def test_a_container_that_started_so_does_not_differ(allocation: PodAllocation) -> None:
    tree = kernel()
    enforcer = enforcer_of(tree)
    assert enforcer.enforce(target(allocation)).ok
    for number, container in enumerate(allocation.containers):
        given = adjustment_of(allocation, container.name, target(allocation).shared_pool)
        assert given is not None
        cgroup = run(tree, f"{path_of(allocation)}/{container.name}", 100 + number)
        for file, value in (
            ("cpuset.cpus", given.cpus),
            ("cpuset.mems", given.mems),
            ("cpu.max", given.quota_us and f"{_quota(given.quota_us)} {given.period_us}"),
        ):
            if value is not None:
                tree.write(cgroup, file, str(value))
    differing = {
        (each.container, each.file) for each in enforcer.verify(target(allocation)).remaining
    }
    assert differing == set()


def _quota(microseconds: int) -> str:
    return "max" if microseconds < 0 else str(microseconds)


def differs(file: str, observed: str | None, *, cgroup: str = "kubepods/burstable",
            uid: str = "", cause: Cause = Cause.UNKNOWN) -> Difference:  # fmt: skip
    return Difference(cgroup, f"{file} shows {observed}", cause, uid, None, file, "", observed)


@pytest.mark.parametrize(
    ("difference", "shared"),
    [
        (differs("cpuset.cpus", "0-15"), True),
        (differs("cpuset.cpus.effective", "5,8"), True),
        (differs("cpuset.cpus", None), True),
        (differs("cpuset.cpus", "0-1,8-15"), False),
        (differs("cpu.max", "5"), False),
        (differs("cpuset.mems", "5"), False),
        (differs("cpuset.cpus", "0-15", uid=mixed().uid), False),
        (differs("cpuset.cpus", "0-15", uid=OTHER), True),
        (differs("", None, cgroup=""), True),
        (differs("", None, cgroup="", cause=Cause.REVERTED_BY_SYSTEMD), False),
    ],
)
def test_only_cgroups_of_others_with_the_cpus_count(
    difference: Difference, *, shared: bool
) -> None:
    assert bool(still_shared(mixed(), [difference])) is shared


def test_a_pod_without_exclusive_cpus_waits_for_nothing() -> None:
    assert still_shared(pod(on_host("web")), [differs("cpuset.cpus", "0-15")]) == ()
